"""Remedies fit what the GPU is in, and send no card back that NVIDIA keeps."""

import re

import pytest
from msgspec.structs import replace

from gputopo.findings.memory_health import ECC_UNCORRECTED
from gputopo.findings.pcie import PCIE_REPLAYS, REPLAYS_OF_A_MODULE, USUAL_LANES
from gputopo.findings.places import ELSEWHERE, Place, place_of
from gputopo.findings.xids import XIDS, xid_case
from gputopo.report.check_commands import check_command
from gputopo.values.machine import Gpu, Host, KernelEvent, Machine
from tests.findings.boxes import Change, all_of, every_gpu, find, gpu, host, sound
from tests.findings.catalogue import catalogue
from tests.findings.faults import OF_A_GPU


def remedy(machine: Machine, id: str) -> str:
    return next(one.remedy or "" for one in find(machine) if one.id == id)


@pytest.mark.parametrize(
    ("name", "virtual", "place"),
    [
        ("NVIDIA H100 PCIe", "none", "server card"),
        ("NVIDIA H100 80GB HBM3", "none", "module"),
        ("NVIDIA GH200 480GB", "none", "module"),
        ("NVIDIA A800 40GB Active", "none", None),
        ("NVIDIA RTX A6000", "none", None),
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


@pytest.mark.parametrize("place", [None, *ELSEWHERE["slot"]])
def test_nobody_is_told_to_reseat_what_cannot_be(place: Place | None) -> None:
    names = {"module": "Tesla V100-SXM2-16GB", "notebook": "NVIDIA GeForce RTX 4090 Laptop GPU"}
    machine = sound()
    cards = tuple(
        replace(one, name=names.get(place or "", "NVIDIA GeForce RTX 3090")) for one in machine.gpus
    )
    machine = gpu(1, pcie={"replay_counter": 20_000, "replay_rollovers": 2})(replace(machine, gpus=cards))
    if place == "virtual machine":
        machine = host(virtual_machine="kvm")(machine)
    own = REPLAYS_OF_A_MODULE.remedy if place == "module" else PCIE_REPLAYS.remedy
    expected = own if place is None or place == "module" else ELSEWHERE["slot"][place]
    assert remedy(machine, "pcie.replays") == expected.replace("-i GPU", "-i 1")


def test_a_module_with_fewer_lanes_is_not_moved_to_another_slot() -> None:
    machine = gpu(1, pcie={"width_now": 8, "width_max": 16})(sound())
    found = [one for one in find(machine) if one.id.startswith("pcie.")]
    assert found
    assert {one.remedy for one in found} <= {
        ELSEWHERE["slot"]["module"].replace("-i GPU", "-i 1"),
        USUAL_LANES.remedy,
    }


@pytest.mark.parametrize("name", OF_A_GPU)
def test_a_remedy_has_the_number_of_the_gpu_and_the_values(name: str) -> None:
    for one in find(OF_A_GPU[name][0](2)(sound())):
        words = set(re.split(r"[ ,;.()]", one.remedy or ""))
        assert not words & {"WATTS", "DEFAULT_WATTS", "MAX_WATTS", "ECC_NOW", "NODE"}, one.remedy
        assert "-i GPU" not in (one.remedy or "")
        commands = re.findall(r"-i ([0-9A-Z][^ ,;).]*)", one.remedy or "")
        assert set(commands) <= {"2"}, one.remedy


@pytest.mark.parametrize(
    ("change", "id", "words"),
    [
        (
            gpu(2, power_w={"limit": 200.0, "default_limit": 400.0}),
            "power.limit_below_default",
            "-i 2 -pl 400 ",
        ),
        (
            every_gpu(power_w={"limit": 200.0, "default_limit": 400.0}),
            "power.limit_below_default",
            "with sudo nvidia-smi -i 0,1,2,3 -pl 400 (until",
        ),
        (
            gpu(1, power_w={"draw": 299.0, "max": 350.0}, throttle={"mask": 4}),
            "throttle.sw_power_cap",
            "a higher limit (sudo nvidia-smi -i 1 -pl 350)",
        ),
        (
            gpu(1, power_w={"draw": 299.0}, throttle={"mask": 4}),
            "throttle.sw_power_cap",
            "full load; better cooling allows",  # the limit is the highest
        ),
        (
            gpu(3, ecc={"mode": False, "mode_pending": False}),
            "configuration.differs",
            "as on the other GPUs: sudo nvidia-smi -i 3 -e 1 and a reboot.",
        ),
        (
            all_of(
                every_gpu(power_w={"limit": 250.0, "default_limit": 250.0}), gpu(0, power_w={"limit": 260.0})
            ),
            "configuration.differs",
            "as on the other GPUs: sudo nvidia-smi -i 0 -pl 250.",
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


def test_a_gpu_without_a_number_is_named_by_its_address_in_a_command() -> None:
    unnumbered = replace(
        gpu(1, remapped_rows={"pending": True})(sound()), missing={"gpus[1].index": "not in the capture"}
    )
    assert "sudo nvidia-smi -r -i 0000:06:00.0)" in remedy(unnumbered, "memory.remap_pending")
    logged = KernelEvent(kind="xid", text="x", code=48, pci_address="0000:81:00.0")
    assert "sudo nvidia-smi -r -i 0000:81:00.0)" in remedy(
        Machine(source="x", kernel_events=(logged,)), "driver.xid"
    )
    unknown = KernelEvent(kind="xid", text="x", code=48)
    assert "sudo nvidia-smi -r -i GPU)" in remedy(Machine(source="x", kernel_events=(unknown,)), "driver.xid")


def test_memory_errors_that_were_repaired_or_contained_are_no_reason_for_a_return() -> None:
    assert not any("replace" in case.remedy for case in XIDS.values())
    # All codes but those that NVIDIA's catalogs call unused or reserved.
    unused = {5, 10, 15, 17, 23, *range(49, 54), 55, 87, 90, 91, 111}
    assert {code for code, _ in XIDS} == set(range(1, 173)) - unused
    assert all("qualify for an RMA" in XIDS[code, ""].remedy for code in (63, 156, 160))
    assert "field diagnostic" in ECC_UNCORRECTED.remedy


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("NVIDIA GeForce RTX 3090", {}, "heat sink and thermal paste"),
        ("NVIDIA A10", {}, "fans and air baffles"),
        ("NVIDIA H100 80GB HBM3", {}, "fans and air baffles"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", {}, "air vents"),
        ("NVIDIA A10", {"virtual_machine": "kvm"}, "report it to the operator of the host"),
    ],
)
def test_a_hot_gpu_is_cooled_where_it_is(name: str, changes: dict[str, str], words: str) -> None:
    warm = all_of(every_gpu(name=name), gpu(1, throttle={"mask": 0x48}))
    assert words in remedy(host(**changes)(warm(sound())), "throttle.hw_thermal_slowdown")


@pytest.mark.parametrize(
    ("code", "said", "severity", "words"),
    [
        (23001, "fatal", "error", "reset GPUs and NVSwitches together"),
        (20034, None, "error", "See Xid 74"),
        (20034, "nonfatal", "warning", "See Xid 74"),
        (11012, "nonfatal", "info", "None needed."),
        (22012, "nonfatal", "warning", "mechanical connections"),
        (99999, "fatal", "error", "reset GPUs and NVSwitches together"),  # not in the table
        (99999, "nonfatal", "warning", "None needed at once"),
    ],
)
def test_an_nvswitch_error_has_the_action_of_nvidias_guide(
    code: int, said: str | None, severity: str, words: str
) -> None:
    event = KernelEvent(kind="sxid", text="Link 30", code=code, severity=said)
    (finding,) = find(replace(sound(), kernel_events=(event,)))
    assert (finding.id, finding.severity) == ("nvlink.errors", severity)
    assert words in (finding.remedy or "")


def test_in_a_container_the_remedy_is_for_the_host() -> None:
    machine = host(container="docker")(gpu(1, remapped_rows={"pending": True})(sound()))
    assert remedy(machine, "memory.remap_pending").startswith("On the host, not in this container: Stop all")
    waiting = host(container="docker")(gpu(1, power_w={"draw": 90.0})(sound()))
    assert remedy(waiting, "power.below_peers").startswith("Check whether its program")


@pytest.mark.parametrize(
    ("code", "said", "architecture", "severity", "words"),
    [
        (63, None, "Volta", "warning", "Dynamic Page Retirement"),
        (63, None, "Hopper", "warning", "GPU Memory Error Management"),
        (145, "fatal", "Blackwell", "error", "reset it"),
        (145, "nonfatal", "Blackwell", "warning", "Xid 154 in the same log"),
        (154, "node reboot required", None, "error", "Reboot"),
        (154, "drain and reset", None, "warning", "start no new ones"),
        (154, "a new one", None, "warning", "gpu_recovery_action"),
    ],
)
def test_an_xid_is_judged_by_its_message_and_by_the_architecture(
    code: int, said: str | None, architecture: str | None, severity: str, words: str
) -> None:
    case = xid_case(code, said, Gpu(index=0, architecture=architecture))
    assert (case.severity, words in case.remedy) == (severity, True)


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        (13, "warning", "compute-sanitizer"),
        (45, "info", "None"),
        (48, "error", "reset it"),
        (79, "error", "power cables"),
        (94, "error", "Restart the program"),
        (131, "warning", "Start the program again"),
        (149, "warning", "nvlink -s"),
        (154, "warning", "gpu_recovery_action"),
        (157, "warning", "vendor"),
        (172, "error", "reset it"),
    ],
)
def test_an_xid_has_the_action_of_nvidias_catalog(code: int, severity: str, words: str) -> None:
    assert (XIDS[code, ""].severity, words in XIDS[code, ""].remedy) == (severity, True)


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
        ("RmInitAdapter: Cannot initialize GSP firmware RM", "warning", "Reset the GPU"),
        ("_kgspBootGspRm: unexpected WPR2 already up", "error", "Power the machine off"),
        ("This PCI I/O region assigned to your NVIDIA device is invalid", "error", "Above 4G"),
        ("GPU 0000:05:00.0: vGPU is unlicensed", "warning", "nvidia-gridd"),
        (
            "GPU installed in this system requires use of the NVIDIA open kernel modules",
            "error",
            "nvidia-open",
        ),
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


@pytest.mark.parametrize(
    ("id", "gpus", "address", "command"),
    [
        ("ecc.uncorrected", [1, 3], None, "nvidia-smi -q -i 1,3 -d ECC"),
        ("ecc.uncorrected", [], None, "nvidia-smi -q -d ECC"),
        ("pcie.replays", [1], None, "nvidia-smi -q -i 1 | grep"),
        ("pcie.errors", [], None, "sudo dmesg"),
        ("pcie.slow_bridge", [], "0000:80:01.0", "sudo lspci -vvv -s 0000:80:01.0"),
        ("driver.not_loaded", [], None, "lsmod | grep nvidia"),
    ],
)
def test_a_finding_can_be_checked_by_a_command_for_its_gpus(
    id: str, gpus: list[int], address: str | None, command: str
) -> None:
    assert check_command(id, gpus, address).startswith(command)


def test_each_rule_has_a_command_that_can_be_pasted() -> None:
    for rule in catalogue():
        assert not re.search(r"-i GPU|ADDRESS|^$", check_command(rule.id))
