"""What an input states as the cause is what is reported, from a part of an output too."""

import re

import pytest

from gputopo.captures import read_text
from gputopo.findings import find
from gputopo.reference import expected_of
from gputopo.values.finding import Finding
from gputopo.values.machine import Hop, Machine
from tests import there
from tests.captures import samples

NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


def read(text: str) -> Machine:
    return read_text(text, origin="paste")


def serious(machine: Machine) -> list[Finding]:
    return [one for one in find(machine) if one.severity != "info"]


@pytest.mark.parametrize("code", [149, 79])
def test_an_xid_that_another_one_caused_has_the_severity_and_the_remedy_of_that_one(code: int) -> None:
    line = "[ 1.000000] NVRM: Xid (PCI:0000:18:00): {}, pid=7, name=a{}\n"
    (cause,) = serious(read(line.format(code, ", Ch 00000003")))
    (effect,) = serious(read(line.format(45, f", Ch 00000003 caused by previous Xid {code}")))
    assert f"caused by Xid {code}: " in effect.says
    assert effect.severity in ("warning", "error")
    assert code == 79 or (effect.severity, effect.remedy) == (cause.severity, cause.remedy)


@pytest.mark.parametrize(
    ("holder", "error"), [("nouveau", NO_DRIVER), ("vfio-pci", "No devices were found\n")]
)
def test_another_driver_that_holds_every_gpu_is_the_cause_of_a_driver_that_does_not_answer(
    holder: str, error: str
) -> None:
    held = samples.LSPCI_VERBOSE.replace("in use: nvidia", f"in use: {holder}")
    (found,) = serious(read(error + held))
    assert (found.id, found.severity) == ("driver.other_driver", "error")
    assert holder in found.says
    assert ("Blacklist" in there(found.remedy) or "blacklist" in there(found.remedy)) == (holder == "nouveau")


GRAPH = """\
=== System : maxBw 240.0 totalBw 240.0 ===
CPU/0-0 (1/1/2)
+ PCI[24.0] - PCI/0-1000 (1000c010)
              + PCI[24.0] - GPU/0-3000 (0)
                            + NVL[{}] - GPU/0-4000
              + PCI[24.0] - GPU/0-4000 (1)
                            + NVL[240.0] - GPU/0-3000
+ PCI[{}] - GPU/0-5000 (2)
CPU/0-1 (1/1/2)
+ PCI[24.0] - GPU/0-81000 (3)
==========================================
"""


def log(text: str, *, ranks: int = 1) -> str:
    """Return NCCL's log of a text that each of some ranks prints, their lines mixed."""
    lines = text.splitlines()
    return "".join(f"n1:7{rank}:9 [{rank}] NCCL INFO {line}\n" for line in lines for rank in range(ranks))


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_tree_of_nccls_log_shows_hops_and_nvlinks(ranks: int) -> None:
    machine = read(log(GRAPH.format("240.0", "24.0"), ranks=ranks))
    assert [gpu.pci_address for gpu in machine.gpus] == [
        *("0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "0000:81:00.0"),
    ]
    hops = {(link.a, link.b): (link.hop, link.nvlinks) for link in machine.links}
    assert hops[0, 1] == (Hop.PIX, 12)
    assert hops[0, 2] == (Hop.PHB, 0)
    assert hops[2, 3] == (Hop.SYS, 0)
    assert serious(machine) == []


def test_nvlinks_that_are_slower_one_way_and_a_slow_path_are_found() -> None:
    found = {one.id: one.says for one in serious(read(log(GRAPH.format("20.0", "6.0"))))}
    assert "1 (nccl log, from GPU 0); 12 (nccl log, from GPU 1)" in found["topology.contradiction"]
    assert "GPU 2 behind 6 GB/s of PCIe, another one behind 24 GB/s" in found["program.error"]


@pytest.mark.parametrize("ways", [("1", "12"), ("12", "12")])
def test_an_xml_that_counts_links_differently_in_two_directions_contradicts_itself(
    ways: tuple[str, str],
) -> None:
    first, second = samples.GPUS[:2]
    text = samples.NCCL
    for number, (other, count) in enumerate(zip((second, first), ways, strict=True)):
        link = f'<nvlink target="{other}" count="{count}" tclass="0x030000"/>'
        text = re.sub(rf'(<gpu dev="{number}"[^>]*)/>', rf"\1>{link}</gpu>", text)
    machine = read(text)
    assert there(machine.link(0, 1)).nvlinks == min(map(int, ways))
    assert [one.fact for one in machine.contradictions] == ["links[0-1].nvlinks"] * (ways[0] != ways[1])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("3b:00.0 3D controller: NVIDIA Corporation GH100 [H100L 94GB] (rev a1)", "H100L 94GB"),
        (
            "3b:00.0 VGA compatible controller [0300]: NVIDIA Corporation GB299 [X 1] [10de:fff1] (rev a1)",
            "X 1",
        ),
        ("3b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)", None),
    ],
)
def test_a_list_of_lspci_names_the_models(line: str, name: str | None) -> None:
    (gpu,) = read(f"{line}\n").gpus
    assert gpu.name == name
    assert (expected_of(gpu) is None) == (name == "X 1")


FRAGMENT = """\
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 4x
        Replays Since Reset               : 7
    Fan Speed                             : 40 %
    Performance State                     : P2
"""


def test_a_fragment_without_its_headings_keeps_what_it_has() -> None:
    (gpu,) = read(FRAGMENT).gpus
    assert (gpu.pcie.width_now, gpu.pcie.width_max, gpu.pcie.gen_now) == (4, 16, 4)
    assert (gpu.pcie.replay_counter, gpu.pstate) == (7, "P2")


WHOLE = """\
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:01:00.0
    Product Name                          : NVIDIA RTX A5000
    GPU UUID                              : GPU-1a2b3c4d-0000-1111-2222-334455667780
    Clocks
        SM                                : 1530 MHz
"""


@pytest.mark.parametrize("width", [72, 80])
def test_a_line_that_a_terminal_wrapped_is_never_read_as_a_shorter_value(width: int) -> None:
    wrapped = re.sub(rf"(?m)^(.{{{width}}})(.+)$", r"\1\n\2", WHOLE)
    assert wrapped != WHOLE
    (gpu,) = read(wrapped).gpus
    assert (gpu.uuid, gpu.name, gpu.clocks_mhz.sm.now) == (None, "NVIDIA RTX A5000", 1530)


ROWS = """\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid   4100 on     n1 device  0 [0x01] NVIDIA RTX A5000
#  Rank  1 Group  0 Pid   4100 on     n1 device  1 [0x81] NVIDIA RTX A5000
#   size    count   type redop root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
 1048576   262144  float   sum   -1   131.2   7.99   7.99      0   132.5   7.91   7.91      0
67108864 16777216  float   sum   -1  6101.9  11.00  11.00      0  6162.9  10.89  10.89      0
# Avg bus bandwidth    : 9.4475
"""


def test_rows_that_lines_of_the_log_interrupt_are_read() -> None:
    message = "n1:700:700 [1] NCCL INFO AllReduce: opCount 0 sendbuff 0x72 count 1 datatype 7\n"
    mixed = re.sub(r"(sum +-1)( +\d)", rf"\1{message}{message}\2", ROWS)
    assert mixed.count(message) == 4
    found = there(read(mixed).bandwidth)
    assert found.samples == there(read(ROWS).bandwidth).samples
    assert len(found.samples) == 4
