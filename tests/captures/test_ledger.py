"""Each line of an input is read, known, or listed as not understood: in every dialect, wherever it stands."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import load, read_text
from gputopo.findings import find
from gputopo.values.machine import Machine
from tests.captures.samples import ALL, GPUS, NCCL, TOPO
from tests.captures.smi.test_dmon import BUSY, HEAD
from tests.captures.test_host import LSCPU_2_34, NUMACTL
from tests.captures.test_kernel_log import LINES
from tests.captures.test_proc_nvidia import GPU, UUID, VERSION

MARKER = "zzz unknown marker 42"
PROMPTS = (
    "$ nvidia-smi topo -m",
    "user@box:~$ nvidia-smi",
    "[root@box ~]# nvidia-smi -q",
    "(base) user@box:~/a$ exit",
    "C:\\Users\\me> nvidia-smi",
    "PS C:\\Users\\me> nvidia-smi",
    "+ nvidia-smi",
    "sudo dmesg -T",
    "Every 2.0s: nvidia-smi      box: Tue Mar  5 10:01:02 2024",
)
RULES = ("```", "```console", "----------")
SMI = """\
==============NVSMI LOG==============

Timestamp                                 : Tue Mar  5 10:01:02 2024
Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:05:00.0
    Product Name                          : NVIDIA L40S
    Display Mode                          : Enabled
    FB Memory Usage
        Total                             : 46068 MiB
        Used                              : 3 MiB
    Utilization
        Gpu                               : 0 %
"""
SMI_XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<driver_version>535.104.05</driver_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:05:00.0">
		<product_name>NVIDIA L40S</product_name>
	</gpu>
</nvidia_smi_log>
"""
CSV = "index, name, power.draw [W]\n0, NVIDIA L40S, 87.50 W\n1, NVIDIA L40S, 88.50 W\n"
BANDWIDTH = """\
[CUDA Bandwidth Test] - Starting...
Running on...

 Device 0: GeForce GTX 1070
 Quick Mode

 Host to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)	Bandwidth(MB/s)
   33554432			12345.6

Result = PASS
"""
KERNEL = "".join(f"[    1.000000] {message}\n" for message in LINES)
DIALECTS = ALL | {
    "nvidia-smi -q": SMI,
    "nvidia-smi -q -x": SMI_XML,
    "nvidia-smi --query-gpu": CSV,
    "nvidia-smi dmon": HEAD + BUSY,
    "lscpu": LSCPU_2_34,
    "numactl": NUMACTL,
    "/proc/driver/nvidia": VERSION + GPU.format(address=GPUS[0], uuid=UUID),
    "bandwidthTest": BANDWIDTH,
    "dmesg": KERNEL,
}
# A stray line there is an error of the document: it is refused, or it is the content of an element.
WHOLE_DOCUMENTS = ("nvidia-smi -q -x",)


def loaded(text: str, folder: Path) -> Machine:
    path = folder / "capture"
    path.write_text(text, encoding="utf-8")
    return load([str(path)])


def total(machine: Machine) -> int:
    return sum(one.read + one.known + one.not_understood for one in machine.lines)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_line_is_counted_once(name: str, tmp_path: Path) -> None:
    machine = loaded(DIALECTS[name], tmp_path)
    assert total(machine) == sum(1 for line in DIALECTS[name].splitlines() if line.strip())
    assert sum(one.not_understood for one in machine.lines) == len({one.line for one in machine.unread}) == 0
    assert sum(one.read for one in machine.lines) > 0


@pytest.mark.parametrize("name", sorted({*DIALECTS} - {*WHOLE_DOCUMENTS}))
@given(st.data())
@settings(max_examples=6)
def test_a_line_of_nothing_known_is_listed_wherever_it_stands(name: str, data: st.DataObject) -> None:
    lines = DIALECTS[name].splitlines()
    places = range(len(lines) + 1) if DIALECTS[name] != NCCL else (0, len(lines))
    place = data.draw(st.sampled_from(places))
    lines.insert(place, MARKER)
    machine = read_text("\n".join(lines) + "\n", origin="x")
    assert (place + 1, MARKER) in [(one.line, one.text) for one in machine.unread]
    bare = read_text(DIALECTS[name], origin="x")
    assert (machine.gpus, machine.links, machine.host) == (bare.gpus, bare.links, bare.host)


@pytest.mark.parametrize("name", WHOLE_DOCUMENTS)
def test_lines_around_a_document_are_listed(name: str) -> None:
    machine = read_text(f"{MARKER}\n{DIALECTS[name]}{MARKER} 2\n", origin="x")
    assert [one.text for one in machine.unread] == [MARKER, f"{MARKER} 2"]


@pytest.mark.parametrize("name", sorted({*ALL} - {"nvlink -s", "topo -p2p"}))
def test_a_line_between_two_captures_is_listed(name: str, tmp_path: Path) -> None:
    machine = loaded(
        f"{TOPO}\n{MARKER}\n{DIALECTS[name]}\n{MARKER} 2\n[  1.000000] {next(iter(LINES))}\n", tmp_path
    )
    assert {MARKER, f"{MARKER} 2"} <= {one.text for one in machine.unread}
    assert machine.kernel_events
    assert sum(one.not_understood for one in machine.lines) == 2


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        *((line, True) for line in (*PROMPTS, *RULES)),
        *((line, False) for line in ("GPU 0 is hot", "Error: 5", "0, 1, 2")),
    ],
)
def test_prompts_commands_and_rules_are_known_and_other_lines_are_not(line: str, is_known: bool) -> None:
    unread = read_text(f"{TOPO}\n{line}\n", origin="x").unread
    assert ([one.text for one in unread] == []) == is_known


def test_the_lines_are_counted_and_the_finding_has_them(tmp_path: Path) -> None:
    machine = loaded(f"$ nvidia-smi topo -m\n{TOPO}{MARKER}\n", tmp_path)
    assert [(one.read, one.known, one.not_understood) for one in machine.lines] == [(6, 0, 1)]
    (unread,) = (one for one in find(machine) if one.id == "capture.unread")
    assert unread.says == "1 line not understood in nvidia-smi topo: line 7"


def test_a_flood_is_counted_and_listed_in_part(tmp_path: Path) -> None:
    machine = loaded(TOPO + "".join(f"{MARKER} {number}\n" for number in range(5000)), tmp_path)
    assert [one.not_understood for one in machine.lines] == [5000]
    assert len(machine.unread) == 1000
    (unread,) = (one for one in find(machine) if one.id == "capture.unread")
    assert unread.says.startswith("5000 lines not understood")
