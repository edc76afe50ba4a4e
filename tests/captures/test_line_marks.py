"""What stands before every line of a capture comes off, and nothing else does."""

import html
from collections.abc import Callable

import pytest

from gputopo.captures import detect
from gputopo.captures.line_marks import without_marks
from gputopo.values.errors import InputError
from tests.captures.samples import ALL

MARKS: dict[str, Callable[[int, str], str]] = {
    "pdsh": lambda _, line: f"node3: {line}",
    "pdsh, trimmed": lambda _, line: f"gpu-17.rack: {line}".rstrip(),
    "clush": lambda _, line: f"[node3]: {line}",
    "srun -l": lambda _, line: f"0: {line}",
    "mpirun --tag-output": lambda _, line: f"[1,0]<stdout>:{line}",
    "Kubernetes": lambda at, line: f"2026-01-02T03:04:05.{at:09d}Z stdout F {line}",
    "docker -t": lambda at, line: f"2026-01-02T03:04:05.{at:09d}Z {line}",
    "syslog": lambda at, line: f"Jan  2 03:04:{at % 60:02d} node7 smi[4711]: {line}",
    "a log of pdsh": lambda at, line: f"2026-01-02 03:04:{at % 60:02d},123 node3: {line}",
    "mail": lambda _, line: f"> {line}".rstrip(),
    "mail, answered": lambda _, line: f"> > {line}",
    "docker compose": lambda _, line: f"gpu-1  | {line}",
    "kubectl --prefix": lambda _, line: f"[pod/gpu-0/smi] {line}",
    "cat -n": lambda at, line: f"{at + 1:6d}\t{line}",
    "vim with numbers": lambda at, line: f"{at + 97:4d} {line}".rstrip(),
    "indented": lambda _, line: f"    {line}".rstrip(),
    "a quotation, indented": lambda _, line: f"\t> {line}",
    "MATLAB": lambda _, line: f"% {line}",
    "comment": lambda _, line: f"# {line}",
    "colours": lambda _, line: f"\x1b[1;32m{line}\x1b[0m",
    "title of a terminal": lambda _, line: f"\x1b]0;a terminal\x07{line}",
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("name", ALL)
def test_a_marked_capture_reads_as_the_bare_one(name: str, mark: str) -> None:
    marked = "\n".join(MARKS[mark](at, line) for at, line in enumerate(ALL[name].split("\n")))
    assert detect.read_text(marked, origin="log") == detect.read_text(ALL[name], origin="log")


@pytest.mark.parametrize("name", ALL)
def test_a_bare_capture_stays_as_it_is(name: str) -> None:
    assert without_marks(ALL[name], origin="x") == ALL[name]


def test_rows_of_a_matrix_are_no_numbered_lines() -> None:
    rows = "0 1.5 2.5\n1 3.5 4.5\n2 5.5 6.5\n"
    assert without_marks(rows, origin="x") == rows


def test_line_breaks_of_markdown_come_off() -> None:
    broken = "".join(f"{line} \\\n" for line in ALL["topo"].splitlines())
    assert detect.read_text(broken, origin="page") == detect.read_text(ALL["topo"], origin="page")


@pytest.mark.parametrize("name", ["nvlink -s", "nccl"])
def test_the_source_of_a_page_reads_as_the_page(name: str) -> None:
    source = html.escape(ALL[name], quote=False)
    assert "&lt;" in source
    assert detect.read_text(source, origin="page") == detect.read_text(ALL[name], origin="page")


@pytest.mark.parametrize(
    "text",
    [
        "Device: 0, A\nDevice: 1, A\n",  # two lines may begin alike by chance
        "a: 1\nb: 2\na: 3\nsomething else",
        "2018-09-29 10:19:05.759292: I tensorflow/x.cc:1] a\n" * 4,
        "",
    ],
)
def test_what_may_be_the_text_itself_is_no_mark(text: str) -> None:
    assert without_marks(text, origin="x") == text


def test_lines_of_several_machines_are_refused_and_it_is_said_how_to_part_them() -> None:
    mixed = "".join(f"node{1 + at % 2}: {line}\n" for line in ALL["topo"].splitlines() for at in range(2))
    with pytest.raises(InputError, match="mixes the lines of several places: node1, node2") as error:
        detect.read_text(mixed, origin="log")
    assert "grep '^node1:'" in error.value.hint
