"""Errors of one GPU: corrected ones that its peers do not have, and facts that it cannot report."""

import pytest
from msgspec.structs import replace

from gputopo.findings import memory_health
from gputopo.values.machine import Machine
from tests.findings.boxes import all_of, every_gpu, gpu, sound


def unread(reason: str, *gpus: int) -> Machine:
    change = all_of(*(gpu(index, power_w={"draw": None}) for index in gpus))
    return replace(change(sound()), missing={f"gpus[{index}].power_w.draw": reason for index in gpus})


@pytest.mark.parametrize("reason", ["Unknown Error", "ERR!", "UNKNOWN", "TIMEOUT"])
def test_an_error_of_one_gpu_is_found(reason: str) -> None:
    (found,) = memory_health.field_errors(unread(reason, 2))
    assert (found.subject.text, found.severity) == ("gpu:2", "warning")
    assert found.says.endswith(f"{reason} in place of power draw")
    assert found.evidence == {"missing": {"power_w.draw": reason}}


@pytest.mark.parametrize("reason", ["N/A", "NOT_SUPPORTED"])
def test_what_one_gpu_alone_does_not_support_is_worth_a_note(reason: str) -> None:
    (found,) = memory_health.field_errors(unread(reason, 2))
    assert (found.subject.text, found.severity) == ("gpu:2", "info")
    assert memory_health.field_errors(unread(reason, 1, 2)) == []


@pytest.mark.parametrize(
    "reason", ["not in the capture", "NO_PERMISSION", "NOT_ASKED", "the capture ends here"]
)
def test_other_reasons_are_no_fault_of_the_gpu(reason: str) -> None:
    assert memory_health.field_errors(unread(reason, 2)) == []


def test_an_error_of_all_gpus_is_no_fault_of_one() -> None:
    assert memory_health.field_errors(unread("Unknown Error", 0, 1, 2, 3)) == []


def test_what_depends_on_a_mode_is_no_fault() -> None:
    machine = unread("N/A", 2)
    assert memory_health.field_errors(gpu(2, mig={"mode": True})(machine)) == []
    assert memory_health.field_errors(gpu(2, ecc={"mode": False})(machine)) == []


@pytest.mark.parametrize(("count", "found"), [(99, 0), (100, 1)])
def test_corrected_errors_count_from_a_floor(count: int, found: int) -> None:
    assert len(memory_health.memory_errors(gpu(1, ecc={"corrected_volatile": count})(sound()))) == found


def test_corrected_errors_that_peers_have_too_are_usual() -> None:
    change = all_of(every_gpu(ecc={"corrected_aggregate": 200}), gpu(1, ecc={"corrected_aggregate": 1999}))
    assert memory_health.memory_errors(change(sound())) == []
    assert (
        len(memory_health.memory_errors(all_of(change, gpu(1, ecc={"corrected_aggregate": 2000}))(sound())))
        == 1
    )


def test_a_gpu_that_needs_a_repair_has_that_finding_alone() -> None:
    sick = gpu(1, ecc={"corrected_aggregate": 5000}, remapped_rows={"pending": True})
    assert memory_health.memory_errors(sick(sound())) == []
