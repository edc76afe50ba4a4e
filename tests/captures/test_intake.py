"""From bytes to captures: encodings, what stands before each line, and several captures in one text."""

import html
import json
from collections.abc import Callable

import pytest

from gputopo.captures import merge, read_bytes, read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.captures.samples import ALL, in_turn
from tests.captures.smi.test_text import BOX


@pytest.mark.parametrize(
    ("codec", "letter"),
    [
        *((codec, "\xe9") for codec in ("utf-8", "utf-8-sig", "utf-16")),
        ("cp1252", "\ufffd"),
        ("cp850", "\ufffd"),
    ],
)
def test_a_text_in_any_form_of_unicode_or_code_page_loses_at_most_a_letter(codec: str, letter: str) -> None:
    data = f"{ALL['topo']}\x1b[4mC:\\Users\\Andr\xe9 42\x1b[0m\n".encode(codec)
    machine = read_bytes(data, origin="log")
    assert machine.gpus == read(ALL["topo"]).gpus
    assert [line.text for line in machine.unread] == [f"C:\\Users\\Andr{letter} 42"]


def read(text: str) -> Machine:
    return read_text(text, origin="log")


MARKS: dict[str, Callable[[int, str], str]] = {
    "pdsh": lambda _, line: f"node3: {line}",
    "srun -l": lambda _, line: f"0: {line}",
    "mpirun --tag-output": lambda _, line: f"[1,0]<stdout>:{line}",
    "syslog": lambda at, line: f"Jan  2 03:04:{at % 60:02d} node7 smi[4711]: {line}",
    "mail": lambda _, line: f"> {line}".rstrip(),
    "docker compose": lambda _, line: f"gpu-1  | {line}",
    "cat -n": lambda at, line: f"{at + 1:6d}\t{line}",
    "indented": lambda _, line: f"    {line}".rstrip(),
    "a quotation, indented": lambda _, line: f"\t> {line}",
    "comment": lambda _, line: f"# {line}",
    "colours": lambda _, line: f"\x1b[1;32m{line}\x1b[0m",
    "zero-width spaces": lambda _, line: f"\u200b{line}",
    "line breaks of HTML": lambda _, line: f"{line}<br>",
    "a time in brackets": lambda at, line: f"[2026-01-02 03:04:{at % 60:02d}] {line}",
    "a list of Ansible": lambda _, line: "        " + json.dumps(line, ensure_ascii=False) + ",",
    "GitHub Actions": lambda at, line: f"2026-01-02T03:04:05.{at:07d}Z {line}".rstrip(),
    "a logger of vLLM": lambda _, line: f"INFO 01-02 03:04:05 [worker.py:12] {line}",
    "Airflow": lambda at, line: f"[2026-01-02 03:04:{at % 60:02d},123] {{a.py:12}} INFO - {line}",
    "a border of tmux": lambda _, line: f"\u2502{line} \u2502",
    "colours as a page shows them": lambda _, line: f"\\x1b[1;32m{line}\\x1b[0m",
    "blanks of a page": lambda _, line: line.replace(" ", "\xa0"),
    "title of a terminal": lambda _, line: f"\x1b]0;a terminal\x07{line}",
}


@pytest.mark.parametrize(("mark", "text"), in_turn(MARKS, [*ALL.values(), BOX]))
def test_a_marked_capture_reads_as_the_bare_one(mark: str, text: str) -> None:
    assert read("\n".join(MARKS[mark](at, line) for at, line in enumerate(text.split("\n")))) == read(text)


CSV = "index, name, pcie.link.width.current, ecc.errors.uncorrected.volatile.total\n"
CSV += "0, NVIDIA RTX A5000, 16, 0\n1, NVIDIA RTX A5000, 8, 2\n2, NVIDIA RTX A5000, 16, 0\n"
KERNEL = (
    "[    5.120001] nvidia: loading out-of-tree module taints kernel.\n"
    "[  812.440210] pcieport 0000:00:01.1: AER: Corrected error message received from 0000:01:00.0\n"
    "[  812.440233] nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer\n"
    "[ 1840.120040] NVRM: Xid (PCI:0000:01:00): 48, DBE (double bit error) ECC Error occurred\n"
)


@pytest.mark.parametrize("text", [CSV, KERNEL], ids=["a query", "a kernel log"])
def test_a_query_and_a_kernel_log_lose_nothing_behind_a_mark(text: str) -> None:
    bare = read(text)
    for name in ("pdsh", "GitHub Actions", "mail", "comment"):
        machine = read("\n".join(MARKS[name](at, line) for at, line in enumerate(text.split("\n"))))
        assert (name, machine.gpus, machine.kernel_events) == (name, bare.gpus, bare.kernel_events)


def test_the_markup_of_a_page_hides_no_line() -> None:
    page = f"<html><body><pre>{ALL['lspci -vvv']}</pre></body></html>"
    assert read(page).pci == read(ALL["lspci -vvv"]).pci


def test_a_diff_is_refused_with_what_to_give() -> None:
    with pytest.raises(InputError, match="is a diff of two texts"):
        read(f"--- a.txt\n+++ b.txt\n@@ -1,2 +1,2 @@\n-GPU0 X\n+{CSV}")


def test_the_source_of_a_page_reads_as_the_page() -> None:
    assert read(html.escape(ALL["nccl"], quote=False)) == read(ALL["nccl"])


def test_lines_of_several_machines_are_refused_with_how_to_part_them() -> None:
    mixed = "".join(f"node{1 + at % 2}: {line}\n" for line in ALL["topo"].splitlines()[:3] for at in range(2))
    with pytest.raises(InputError, match="mixes the lines of several hosts: node1, node2") as error:
        read(mixed)
    assert "grep '^node1:'" in error.value.hint


MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
PEERS = (
    " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\n"
    "Legend:\n\n  X    = Self\n  GNS  = GPU not supported\n"
)
XML = "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='00000000:05:00.0'></gpu></nvidia_smi_log>"


def facts(machine: Machine) -> tuple[object, ...]:
    return machine.gpus, machine.links, machine.nics, machine.pci, machine.host, machine.contradictions


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("topo", "topo -p2p"),
        ("nccl", "lspci -tv"),
        ("nvidia-smi", "lspci -vvv"),
        ("TensorFlow 1", "nvlink -s"),
    ],
)
def test_two_captures_in_one_text_are_read_as_two_files_are(above: str, below: str) -> None:
    together = read(f"Here it is:\n```\n{ALL[above]}\n```\n\n{ALL[below]}\n```\nThanks\n")
    alone = [read(ALL[above]), read(ALL[below])]
    assert any(facts(together) == facts(merge(order)) for order in (alone, alone[::-1]))


def test_a_capture_beside_a_bandwidth_test_and_a_third_one() -> None:
    test = "P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n     1\t     1     1\n"
    machine = read(MATRIX + test + PEERS)
    assert machine.gpus[0].cpu_affinity == "0-7"
    assert {one.fact for one in machine.contradictions} == {"links[0-1].p2p_read", "links[0-1].p2p_write"}


def test_a_document_in_prose_is_read_alone_and_beside_another() -> None:
    assert read(f"It is this:\n```xml\n{XML}\n```\nSlow!").gpus[0].pci_address == "0000:05:00.0"
    again = read(f"{XML}\n\n{XML}\n")  # a loop
    assert [gpu.pci_address for gpu in again.gpus] == ["0000:05:00.0"]
    assert again.contradictions == ()
    both = read(f"{XML}\n{MATRIX}")
    assert (both.gpus[0].pci_address, both.gpus[0].cpu_affinity) == ("0000:05:00.0", "0-7")
