"""Remedies fit what the GPU is in, and send no card back that NVIDIA keeps."""

import pytest
from msgspec.structs import replace

from gputopo.findings.driver import XIDS
from gputopo.findings.memory_health import ECC_UNCORRECTED
from gputopo.findings.pcie import PCIE_REPLAYS, WIDTH_DEGRADED
from gputopo.findings.rule import ELSEWHERE, place_of
from gputopo.values.machine import Gpu, Host, KernelEvent, Machine
from tests.findings.boxes import find, gpu, host, sound

NARROW = {"pcie": {"width_now": 8, "width_max": 16}}


def remedy(machine: Machine, id: str) -> str:
    return next(one.remedy or "" for one in find(machine) if one.id == id)


@pytest.mark.parametrize(
    ("name", "virtual", "place"),
    [
        ("NVIDIA H100 PCIe", "none", None),
        ("NVIDIA H100 80GB HBM3", "none", "module"),
        ("Tesla V100-SXM2-16GB", None, "module"),
        ("NVIDIA GeForce RTX 4090", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, "notebook"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", None, "notebook"),
        ("NVIDIA H100 80GB HBM3", "kvm", "virtual machine"),
        ("NVIDIA GeForce RTX 4090", "kvm", "virtual machine"),
    ],
)
def test_a_gpu_is_in_a_slot_on_a_board_in_a_notebook_or_in_a_virtual_machine(
    name: str, virtual: str | None, place: str | None
) -> None:
    assert place_of(Machine(source="x", host=Host(virtual_machine=virtual)), Gpu(index=0, name=name)) == place


@pytest.mark.parametrize("place", [None, *ELSEWHERE])
def test_nobody_is_told_to_reseat_what_cannot_be(place: str | None) -> None:
    names = {"module": "Tesla V100-SXM2-16GB", "notebook": "NVIDIA GeForce RTX 4090 Laptop GPU"}
    machine = sound()
    cards = tuple(
        replace(one, name=names.get(place or "", "NVIDIA GeForce RTX 3090")) for one in machine.gpus
    )
    machine = gpu(1, pcie={"replay_counter": 20_000, "replay_rollovers": 2})(replace(machine, gpus=cards))
    if place == "virtual machine":
        machine = host(virtual_machine="kvm")(machine)
    own = PCIE_REPLAYS.cases["SXM"].remedy if place == "module" else PCIE_REPLAYS.remedy
    expected = own if place in (None, "module") else ELSEWHERE[place]
    assert remedy(machine, "pcie.replays") == expected


def test_a_module_with_fewer_lanes_is_not_moved_to_another_slot() -> None:
    machine = gpu(1, pcie={"width_now": 8, "width_max": 16})(sound())
    found = [one for one in find(machine) if one.id.startswith("pcie.")]
    assert found
    assert {one.remedy for one in found} <= {ELSEWHERE["module"], WIDTH_DEGRADED.cases["usual"].remedy}


def test_memory_errors_that_were_repaired_or_contained_are_no_reason_for_a_return() -> None:
    assert not any("replace" in case.remedy for case in XIDS.values())
    assert all("No reason for a return" in XIDS[code].remedy for code in (63, 156, 160))
    assert "field diagnostic" in ECC_UNCORRECTED.remedy


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        (13, "warning", "compute-sanitizer"),
        (45, "info", "None"),
        (48, "error", "reset it"),
        (79, "error", "power cables"),
        (94, "error", "Start the program"),
        (131, "warning", "Start the program again"),
        (149, "warning", "nvlink -s"),
        (154, "warning", "gpu_recovery_action"),
        (157, "warning", "vendor"),
        (172, "error", "reset it"),
    ],
)
def test_an_xid_has_the_action_of_nvidias_catalog(code: int, severity: str, words: str) -> None:
    assert (XIDS[code].severity, words in XIDS[code].remedy) == (severity, True)


@pytest.mark.parametrize(
    ("text", "severity", "words"),
    [
        ("NVRM: RmFetchGspRmImages: No firmware image found", "error", "with its firmware"),
        ("NVRM: API mismatch: the client has the version 550.1", "warning", "Reboot: the driver was updated"),
        (
            "NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x22:0x56:667)",
            "error",
            "driver version that supports",
        ),
        ("NVRM: infoROM is corrupted at gpu 0000:05:00.0", "warning", "vendor"),
        ("NVRM: GSP_RPC failed", "warning", "update the driver"),
        ("NVRM: something else", "warning", "look the message up"),
    ],
)
def test_an_error_of_the_kernel_module_has_the_remedy_of_its_cause(
    text: str, severity: str, words: str
) -> None:
    events = (KernelEvent(kind="nvrm", text=text),)
    (found,) = (
        one for one in find(replace(sound(), kernel_events=events)) if one.id == "driver.kernel_error"
    )
    assert (found.severity, words in (found.remedy or "")) == (severity, True)
