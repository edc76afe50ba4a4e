"""Each line of an input is read, known, or listed as not understood: in every dialect, wherever it stands."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.findings import find
from gputopo.values.machine import Machine
from tests.captures.samples import ALL, GPUS, NCCL, TOPO
from tests.captures.smi.test_dmon import BUSY, HEAD
from tests.captures.test_host import LSCPU_2_34, NUMACTL
from tests.captures.test_kernel_log import LINES
from tests.captures.test_proc_nvidia import GPU, UUID, VERSION
from tests.kit.dialects import bandwidthtest, random_gpus, smi

MARKER = "zzz unknown marker 42"
PROMPTS = (
    "$ nvidia-smi topo -m",
    "user@box:~$ nvidia-smi",
    "(base) user@box:~/a$ exit",
    "C:\\Users\\me> nvidia-smi",
    "+ nvidia-smi",
    "sudo dmesg -T",
    "Every 2.0s: nvidia-smi      box: Tue Mar  5 10:01:02 2024",
)
RULES = ("```", "```console", "----------")
KERNEL = "".join(f"[    1.000000] {message}\n" for message in LINES)
DIALECTS = ALL | {
    "nvidia-smi -q": smi.text(random_gpus.machine(Random(1), 535, "text"), 535),
    "nvidia-smi -q -x": smi.xml(random_gpus.machine(Random(2), 535, "xml"), 535),
    "nvidia-smi --query-gpu": smi.csv(random_gpus.machine(Random(3), 535, "csv"), 535),
    "nvidia-smi dmon": HEAD + BUSY,
    "lscpu": LSCPU_2_34,
    "numactl": NUMACTL,
    "/proc/driver/nvidia": VERSION + GPU.format(address=GPUS[0], uuid=UUID),
    "bandwidthTest": bandwidthtest.quick("GeForce GTX 1070", {"Host to Device": 12345.6}),
    "dmesg": KERNEL,
}
# A stray line there is an error of the document: it is refused, or it is the content of an element.
WHOLE_DOCUMENT = "nvidia-smi -q -x"


def read(text: str) -> Machine:
    return read_text(text, origin="x")


@pytest.mark.parametrize("name", DIALECTS)
def test_every_line_is_counted_once(name: str) -> None:
    machine = read(DIALECTS[name])
    total = sum(one.read + one.known + one.not_understood for one in machine.lines)
    assert total == sum(1 for line in DIALECTS[name].splitlines() if line.strip())
    assert sum(one.not_understood for one in machine.lines) == len({one.line for one in machine.unread}) == 0
    assert sum(one.read for one in machine.lines) > 0


@pytest.mark.parametrize("name", sorted({*DIALECTS} - {WHOLE_DOCUMENT}))
@given(st.data())
@settings(max_examples=1)
def test_a_line_of_nothing_known_is_listed_wherever_it_stands(name: str, data: st.DataObject) -> None:
    lines = DIALECTS[name].splitlines()
    places = range(len(lines) + 1) if DIALECTS[name] != NCCL else (0, len(lines))
    place = data.draw(st.sampled_from(places))
    lines.insert(place, MARKER)
    machine = read("\n".join(lines) + "\n")
    assert (place + 1, MARKER) in [(one.line, one.text) for one in machine.unread]
    bare = read(DIALECTS[name])
    assert (machine.gpus, machine.links, machine.host) == (bare.gpus, bare.links, bare.host)


def test_lines_around_a_document_are_listed() -> None:
    machine = read(f"{MARKER}\n{DIALECTS[WHOLE_DOCUMENT]}{MARKER} 2\n")
    assert [one.text for one in machine.unread] == [MARKER, f"{MARKER} 2"]


@pytest.mark.parametrize("name", ["lspci -tv", "TensorFlow 2"])
def test_a_line_between_two_captures_is_listed(name: str) -> None:
    machine = read(f"{TOPO}\n{MARKER}\n{DIALECTS[name]}\n{MARKER} 2\n[  1.000000] {next(iter(LINES))}\n")
    assert {MARKER, f"{MARKER} 2"} <= {one.text for one in machine.unread}
    assert machine.kernel_events
    assert sum(one.not_understood for one in machine.lines) == 2


def test_prompts_commands_and_rules_are_known_and_other_lines_are_not() -> None:
    others = ("GPU 0 is hot", "Error: 5", "0, 1, 2")
    unread = read("\n".join([TOPO, *PROMPTS, *RULES, *others])).unread
    assert [one.text for one in unread] == [*others]


def test_the_lines_are_counted_and_the_finding_has_them() -> None:
    machine = read(f"$ nvidia-smi topo -m\n{TOPO}{MARKER}\n")
    assert [(one.read, one.known, one.not_understood) for one in machine.lines] == [(6, 0, 1)]
    (unread,) = (one for one in find(machine) if one.id == "capture.unread")
    assert unread.says == "1 line not understood in nvidia-smi topo: line 7"
