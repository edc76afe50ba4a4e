"""What the driver requests before a GPU can be used again."""

import msgspec
import pytest

from gputopo.values.finding import Finding
from gputopo.values.machine import KernelEvent, Machine
from tests.findings.boxes import Change, find, gpu, sound


def only(change: Change) -> Finding:
    (finding,) = find(change(sound()))
    return finding


@pytest.mark.parametrize(
    ("action", "says", "remedy"),
    [
        ("reset", "must be reset", "--gpu-reset"),
        ("drain p2p", "all P2P traffic must end", "gpu_recovery_action"),
        (
            "system reboot",
            "recovery action requested by the driver: system reboot",
            "Do what the driver requests",
        ),
    ],
)
def test_a_gpu_that_must_be_recovered_is_an_error_that_names_the_action(
    action: str, says: str, remedy: str
) -> None:
    finding = only(gpu(2, recovery_action=action))
    assert (finding.id, finding.severity, finding.subject.text) == ("gpu.reset_required", "error", "gpu:2")
    assert says in finding.says
    assert remedy in (finding.remedy or "")
    assert finding.evidence["recovery_action"] == action


@pytest.mark.parametrize(
    ("reason", "id", "says"),
    [
        ("UNKNOWN", "gpu.no_answer", "refused with NVML's UNKNOWN"),
        ("HUNG", "gpu.no_answer", "the call did not return"),
        ("GPU_IS_LOST", "gpu.lost", "was detected but stopped responding"),
        ("Unknown Error", "gpu.lost", "was detected but stopped responding (Unknown Error)"),
    ],
)
def test_a_gpu_that_does_not_answer_is_an_error_with_the_reason(reason: str, id: str, says: str) -> None:
    box = gpu(2, lost=True)(sound())
    (finding,) = find(msgspec.structs.replace(box, missing={"gpus[2]": reason}))
    assert (finding.id, finding.severity, finding.subject.text) == (id, "error", "gpu:2")
    assert finding.says.endswith(says)


def test_the_xid_of_a_gpu_that_does_not_answer_is_named_with_it() -> None:
    box = gpu(2, lost=True)(sound())
    event = KernelEvent(kind="xid", code=79, text="NVRM: Xid", pci_address=box.gpus[2].pci_address)
    found = find(msgspec.structs.replace(box, missing={"gpus[2]": "UNKNOWN"}, kernel_events=(event,)))
    (finding,) = [finding for finding in found if finding.id == "gpu.no_answer"]
    assert finding.says.endswith("refused with NVML's UNKNOWN; Xid 79 in the kernel log")
    assert finding.evidence["kernel_events"][0]["code"] == 79


def unlisted(container: str | None, driver: str = "nvidia", address: str = "0000:81:00.0") -> Machine:
    machine = sound()
    return msgspec.structs.replace(
        machine,
        driver=msgspec.structs.replace(machine.driver, status="ok"),
        host=msgspec.structs.replace(machine.host, container=container),
        missing={f"pci[{address}].gpu": f"NOT_COUNTED_BY_NVML (kernel driver {driver})"},
    )


def test_a_gpu_that_the_kernel_driver_has_and_nvml_does_not_list_is_a_warning() -> None:
    found = [finding for finding in find(unlisted(None)) if finding.id == "gpu.no_answer"]
    assert [(finding.severity, finding.evidence["pci_address"]) for finding in found] == [
        ("warning", "0000:81:00.0")
    ]


@pytest.mark.parametrize(
    "machine",
    [unlisted("docker"), unlisted(None, driver="vfio-pci"), unlisted(None, address="0000:81:00.4")],
    ids=["in a container", "reserved", "virtual function"],
)
def test_a_gpu_that_is_not_meant_to_be_listed_is_no_fault(machine: Machine) -> None:
    assert "gpu.no_answer" not in {finding.id for finding in find(machine)}
