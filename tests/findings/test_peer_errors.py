"""Facts that one GPU cannot report, and its peers can."""

import pytest
from msgspec.structs import replace

from gputopo.findings import find
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests.findings.boxes import all_of, gpu, sound


def unread(reason: str, *gpus: int) -> Machine:
    change = all_of(*(gpu(index, power_w={"draw": None}) for index in gpus))
    return replace(change(sound()), missing={f"gpus[{index}].power_w.draw": reason for index in gpus})


def field_errors(machine: Machine) -> list[Finding]:
    return [one for one in find(machine) if one.id == "gpu.field_error"]


@pytest.mark.parametrize("reason", ["Unknown Error", "UNKNOWN"])
def test_an_error_of_one_gpu_is_found(reason: str) -> None:
    (found,) = field_errors(unread(reason, 2))
    assert (found.subject.text, found.severity) == ("gpu:2", "warning")
    assert found.says.endswith(f"{reason} instead of power draw")
    assert found.evidence == {"missing": {"power_w.draw": reason}}


@pytest.mark.parametrize("reason", ["not in the capture", "N/A", "NOT_ASKED"])
def test_other_reasons_are_no_fault_of_the_gpu(reason: str) -> None:
    assert field_errors(unread(reason, 2)) == []


def test_an_error_of_all_gpus_is_no_fault_of_one() -> None:
    assert field_errors(unread("Unknown Error", 0, 1, 2, 3)) == []
