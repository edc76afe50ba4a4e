"""Remedies fit what the GPU is in, and send no card back that NVIDIA keeps."""

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gputopo.findings import rules
from gputopo.report import document_text, inspection_document
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import KernelEvent, Machine
from gputopo.values.subject import MACHINE, Subject
from tests.findings.boxes import Change, address, all_of, every_gpu, find, gpu, host, sound


def remedy(machine: Machine, id: str) -> str:
    return next(one.remedy or "" for one in find(machine) if one.id == id)


# Remedies of a hot GPU, and of one whose link repeats packets, by what it is in.
COOLED = {"card": "heat sink and thermal paste", "server": "fans and air baffles", "notebook": "air vents"}
RESEATED = {
    "card": "Reseat card and riser",
    "server": "Reseat card and riser",
    "module": "reseat or replace the module or its baseboard",
    "notebook": "GPU and lanes are soldered",
}
OPERATOR = "report it to the operator of the host"


@pytest.mark.parametrize(
    ("name", "virtual", "cooled", "reseated"),
    [
        ("NVIDIA H100 PCIe", "none", COOLED["server"], RESEATED["server"]),
        ("NVIDIA H100 80GB HBM3", "none", COOLED["server"], RESEATED["module"]),
        ("NVIDIA A800 40GB Active", "none", COOLED["card"], RESEATED["card"]),
        ("NVIDIA GeForce RTX 4090", None, COOLED["card"], RESEATED["card"]),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, COOLED["notebook"], RESEATED["notebook"]),
        ("NVIDIA H100 80GB HBM3", "kvm", OPERATOR, RESEATED["module"]),
        ("NVIDIA GeForce RTX 4090", "kvm", OPERATOR, OPERATOR),
    ],
)
def test_a_remedy_fits_the_slot_board_notebook_or_virtual_machine_that_a_gpu_is_in(
    name: str, virtual: str | None, cooled: str, reseated: str
) -> None:
    machine = all_of(every_gpu(name=name), host(virtual_machine=virtual))(sound())
    hot = gpu(1, throttle={"mask": 0x48})(machine)
    assert cooled in remedy(hot, "throttle.hw_thermal_slowdown")
    replays = gpu(1, pcie={"replay_counter": 20_000, "replay_rollovers": 2})(machine)
    assert reseated in remedy(replays, "pcie.replays")


@pytest.mark.parametrize(
    ("change", "id", "words"),
    [
        (
            gpu(2, power_w={"limit": 200.0, "default_limit": 400.0}),
            "power.limit_below_default",
            "-i 2 -pl 400 ",
        ),
        (
            gpu(1, power_w={"draw": 299.0, "max": 350.0}, throttle={"mask": 4}),
            "throttle.sw_power_cap",
            "a higher limit (sudo nvidia-smi -i 1 -pl 350)",
        ),
        (gpu(3, bar1_mib={"total": 256}), "configuration.differs", "Resizable BAR in the BIOS."),
        (
            gpu(1, clocks_mhz={"sm": {"application": 1312}}),
            "configuration.differs",
            "as on the other GPUs: sudo nvidia-smi -i 1 -rac.",
        ),
    ],
)
def test_a_command_can_be_pasted(change: Change, id: str, words: str) -> None:
    assert words in remedy(change(sound()), id)


def test_memory_errors_that_were_repaired_or_contained_are_no_reason_for_a_return() -> None:
    (xid,) = (rule for rule in rules() if rule.id == "driver.xid")
    cases = {case.name: case for case in xid.cases}
    assert not any("replace" in case.remedy for case in cases.values())
    # All codes but those that NVIDIA's catalogs call unused or reserved.
    unused = {5, 10, 15, 17, 23, *range(49, 54), 55, 87, 90, 91, 111}
    assert cases.keys() >= {f"Xid {code}" for code in set(range(1, 173)) - unused}
    assert not cases.keys() & {f"Xid {code}" for code in unused | {0, 173}}
    assert all("qualify for an RMA" in cases[f"Xid {code}"].remedy for code in (63, 156, 160))
    uncorrected = gpu(1, ecc={"uncorrected_volatile": 1})(sound())
    assert "field diagnostic" in remedy(uncorrected, "ecc.uncorrected")


@pytest.mark.parametrize(
    ("code", "said", "architecture", "severity", "words"),
    [
        (13, None, None, "warning", "compute-sanitizer"),
        (48, None, None, "error", "reset it"),
        (63, None, "Hopper", "warning", "GPU Memory Error Management"),
        (145, "fatal", "Blackwell", "error", "reset it"),
        (145, "nonfatal", "Blackwell", "warning", "Xid 154 in the same log"),
        (154, "node reboot required", None, "error", "Reboot"),
        (154, "drain and reset", None, "warning", "start no new ones"),
    ],
)
def test_an_xid_has_the_action_of_nvidias_catalog(
    code: int, said: str | None, architecture: str | None, severity: str, words: str
) -> None:
    event = KernelEvent(kind="xid", text="x", code=code, severity=said, pci_address=address(1))
    card = every_gpu(name="NVIDIA GeForce RTX 3090", architecture=architecture)(sound())
    found = find(replace(card, kernel_events=(event,)))
    (xid,) = (one for one in found if one.id == "driver.xid")
    assert (xid.severity, words in (xid.remedy or "")) == (severity, True)


@pytest.mark.parametrize(
    ("text", "severity", "words"),
    [
        ("NVRM: RmFetchGspRmImages: No firmware image found", "error", "with its firmware"),
        ("RmInitAdapter: Cannot initialize GSP firmware RM", "warning", "Reset the GPU"),
        ("_kgspBootGspRm: unexpected WPR2 already up", "error", "Power the machine off"),
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


def command_for(id: str, gpus: Sequence[int] = (), **evidence: str) -> str:
    """Return the command by which a user can check a finding."""
    subject = Subject.of_gpus(gpus) if gpus else MACHINE
    one = Finding(id=id, severity="warning", subject=subject, says="x", evidence=evidence, remedy="Y.")
    inspection = Inspection(machine=Machine(source="x"), findings=(one,))
    text = document_text(inspection_document(inspection, "all"), 500)
    return text.partition("Check with: ")[2].partition("\n")[0]


def test_each_rule_has_a_command_that_can_be_pasted() -> None:
    for rule in rules():
        assert not re.search(r"-i GPU|ADDRESS|^$", command_for(rule.id))
