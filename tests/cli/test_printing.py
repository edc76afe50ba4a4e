"""What commands do where what they print is not taken: by a full disk, or a reader that has gone."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gputopo.cli.printing import can_redraw, for_this_stdout, redrawn_lines, show
from gputopo.cli.progress import ProgressLine, progress_in_words
from gputopo.probes import SessionProgress
from gputopo.report import Document
from gputopo.report.document import Section, Styled
from tests.kit import commands

UNWRITTEN = (
    "gputopo: cannot write the output: No space left on device\n  write it where there is free space\n"
)
NO_OPTION = "gputopo: there is no option '--bad'\n  `gputopo plan --help` shows how it is called\n"

PRINTING = [("--help",), ("--version",), ("plan", "--help"), ("inspect", "--from", "7gforce", "--json")]
FAILING = [("plan", "--bad"), ("plan", "--model", "alexnet"), ("inspect", "--watch"), ("run", "--", "/none")]
CODES = {FAILING[0]: 2, FAILING[1]: 3, FAILING[2]: 3, FAILING[3]: 2}


class Ended(NamedTuple):
    """How a command ended; of its streams what went elsewhere than to the place that takes nothing."""

    code: int
    out: str
    err: str


@pytest.fixture(params=["a full disk", "a pipe that nobody reads"])
def place(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the descriptor of a place that takes nothing."""
    if request.param == "a full disk":
        if not Path("/dev/full").exists():
            pytest.skip("this system has no /dev/full")
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    yield writing
    os.close(writing)


def run(root: Path, *arguments: str, out: int | None = None, err: int | None = None) -> Ended:
    """Run gputopo on a machine without any PCI device, with buffers as they are when nobody asks."""
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    done = commands.run("-m", "gputopo", *arguments, out=out, err=err, GPUTOPO_ROOT=str(root))
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_data_that_is_not_taken_ends_a_command_without_a_traceback(
    arguments: tuple[str, ...], place: int, tmp_path: Path
) -> None:
    done = run(tmp_path, *arguments, out=place)
    is_full = os.readlink(f"/proc/self/fd/{place}") == "/dev/full"
    assert (done.code, done.err) == ((3, UNWRITTEN) if is_full else (141, ""))  # a reader had enough


@pytest.mark.parametrize("arguments", FAILING, ids=" ".join)
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(
    arguments: tuple[str, ...], place: int, tmp_path: Path
) -> None:
    assert run(tmp_path, *arguments, err=place) == (CODES[arguments], "", "")


def test_an_error_is_reported_where_data_could_not_be_written(place: int, tmp_path: Path) -> None:
    assert run(tmp_path, "plan", "--bad", out=place) == (2, "", NO_OPTION)


MEASURES = """
from gputopo.cli import main
from gputopo.probes.session import host_memory, measuring
measuring.measure_host_memory = lambda host, **_: host_memory.HostMemoryRates()
main()
"""


def test_progress_that_is_not_taken_changes_nothing_of_a_measurement(place: int, tmp_path: Path) -> None:
    done = commands.run("-c", MEASURES, "bandwidth", "--json", err=place, GPUTOPO_ROOT=str(tmp_path))
    assert done.returncode == 3  # no GPU: the host's memory was measured
    assert done.stdout.startswith("{")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], io.StringIO]:
    """Makes stdout a terminal of 30 columns and 5 lines."""
    for name, text in {"COLUMNS": "30", "LINES": "5", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, text)

    def begin() -> io.StringIO:
        stdout = Terminal()
        monkeypatch.setattr(sys, "stdout", stdout)
        return stdout

    return begin


UP, ERASE = "\x1b[1A", "\x1b[2K"


def test_a_second_drawing_takes_the_place_of_the_first(on_terminal: Callable[[], io.StringIO]) -> None:
    stdout = on_terminal()
    with redrawn_lines() as draw:
        draw([(("one", ""),), (("two", ""),)])
        first = stdout.getvalue()
        draw([(("three", ""),)])
    assert all(line in first for line in ("one", "two"))
    second = stdout.getvalue().removeprefix(first)
    before = second[: second.index("three")]
    assert (before.count(UP), before.count(ERASE)) == (1, 2)


def test_what_does_not_fit_is_cut(on_terminal: Callable[[], io.StringIO]) -> None:
    stdout = on_terminal()
    with redrawn_lines() as draw:
        draw([(("x" * 20, ""), ("y" * 20, ""))] * 50)
        shown = stdout.getvalue()
    assert shown.count("x" * 20 + "y" * 10) == 5
    assert "y" * 11 not in shown


def test_styles_become_codes_and_no_color_is_heard(
    on_terminal: Callable[[], io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = on_terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    with redrawn_lines() as draw:
        draw([(("hot", "bold red"),)])
    assert "\x1b[1;31mhot\x1b[0m" in stdout.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    with redrawn_lines() as draw:
        draw([(("cool", "cyan"),)])
    assert "\x1b[36m" not in stdout.getvalue()


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", "├─ ▁█"), ("ascii", "+- .#"), ("latin-1", "+- .#")]
)
def test_an_output_that_cannot_write_boxes_gets_ascii(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    (line,) = for_this_stdout([(("├─ ", "dim"), ("▁█", ""))])
    assert "".join(text for text, _ in line) == shown


def test_the_pseudo_terminal_of_a_rank_of_open_mpi_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    assert can_redraw()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert not can_redraw()
    show(Document("", "", (Section("", (Styled("hot", "bold red"),)),)))
    assert stdout.getvalue() == "hot\n"


def step(done: int, total: int, left: float | None, now: str) -> SessionProgress:
    return SessionProgress(done=done, total=total, seconds_left=left, now=now)


class Closed(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.tried: list[str] = []

    def write(self, text: str) -> int:
        self.tried.append(text)
        raise BrokenPipeError


def test_it_shows_how_far_it_is_what_is_left_and_what_runs() -> None:
    said = progress_in_words(step(11, 87, 21.04, "h2d host -> gpu:0"))
    assert said == "measuring 12 of 87, about 21.0 s left: h2d host -> gpu:0"
    assert progress_in_words(step(1, 1, None, "soak")) == "measuring 1 of 1: soak"


def test_a_pipe_gets_a_line_a_quarter_and_no_control_characters() -> None:
    stream = io.StringIO()
    with ProgressLine(stream) as line:
        for done in range(100):
            line.show(step(done, 100, 5.0, "copy"))
    assert [row.split()[2] for row in stream.getvalue().splitlines()] == ["1", "26", "51", "76"]
    assert stream.getvalue().replace("\n", "").isprintable()


def test_a_terminal_gets_one_line_that_is_drawn_again_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    with ProgressLine(stream) as line:
        for done in range(3):
            line.show(step(done, 3, 1.0, "a long name of a copy that does not fit"))
    text = stream.getvalue()
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")
    assert max(len(part.replace("\x1b[K", "")) for part in text.split("\r")) <= 30


def test_a_stderr_that_nobody_reads_does_not_end_the_measuring_and_is_not_written_to_again() -> None:
    stream = Closed()
    with ProgressLine(stream) as line:
        for done in range(4):
            line.show(step(done, 4, None, "copy"))
    assert stream.tried == ["gputopo: measuring 1 of 4: copy\n"]
