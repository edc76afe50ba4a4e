"""The hardware of a run by its samples alone: one fault each, and none where all is well or nothing known."""

from typing import Any

import msgspec
import pytest

from gputopo.reference.clock_events import BITS
from gputopo.runs.hardware.checks import CHECKS
from gputopo.runs.hardware.judge import judge_hardware
from gputopo.runs.hardware.record import HardwareRecord
from gputopo.values.run.events import Xid
from gputopo.values.run.verdict import FAULTY, NOT_JUDGED, SOUND
from tests.runs.hardware.samples import IDLE_HOST, Changes, devices, recorded


def always(**changes: Any) -> Changes:
    return lambda number: changes


def since(first: int, **changes: Any) -> Changes:
    return lambda number: changes if number >= first else {}


def test_all_well_is_said_with_what_was_checked() -> None:
    found = judge_hardware(recorded())
    assert (found.word, found.faults, found.not_checked) == (SOUND, (), {})
    assert found.says == "nothing wrong found, in 60 samples, 60 of each GPU under load"
    assert found.checked == tuple(check.id for check in CHECKS)


@pytest.mark.parametrize(
    ("changes", "fault", "severity", "said"),
    [
        (always(throttle_mask=BITS["sw_thermal_slowdown"]), "throttled", "warning", "too warm"),
        (always(throttle_mask=BITS["hw_thermal_slowdown"]), "throttled", "error", "100% of the samples"),
        (always(throttle_mask=BITS["sw_power_cap"]), "throttled", "info", "power limit reached"),
        (always(graphics_mhz=1380), "clock-below-peers", "warning", "10% below GPUs of its model"),
        (since(30, pcie_width=1), "pcie-link", "warning", "fell from x16 to x1 under load"),
        (since(30, pcie_gen=1), "pcie-link", "warning", "fell from generation 3 to generation 1"),
        (always(pcie_gen=1), "pcie-link", "warning", "generation 1 x16 under load, twice as fast"),
        (lambda number: {"pcie_gen": 1 + 2 * (number % 2)}, "pcie-link", "warning", "changed 58 times"),
        (since(30, processes=2, other_processes=1), "other-process", "warning", "another process came"),
        (always(processes=2, other_processes=1), "other-process", "info", "from the start"),
    ],
)
def test_a_fault_of_a_gpu_is_named(changes: Changes, fault: str, severity: str, said: str) -> None:
    (found,) = judge_hardware(recorded(changes)).faults
    assert (found.id, found.severity, found.gpu, said in found.says) == (fault, severity, 1, True)


def test_a_clock_that_falls_without_a_reason_is_named_also_where_there_is_no_peer() -> None:
    def sags(number: int) -> dict[str, Any]:
        return {"graphics_mhz": 1530 if number < 30 else 1000}

    names = [fault.id for fault in judge_hardware(recorded(sags, count=90)).faults]
    assert names == ["clock-below-peers", "clock-fell"]


def test_an_xid_and_a_lost_gpu_are_errors_and_come_first() -> None:
    record = recorded(lambda number: {"graphics_mhz": 1300, "lost": number == 59}, xids=[Xid(code=79, gpu=1)])
    found = judge_hardware(record)
    assert [(fault.id, fault.severity) for fault in found.faults] == [
        ("xid", "error"),
        ("lost", "error"),
        ("clock-below-peers", "warning"),
    ]
    assert found.word == FAULTY


def test_a_busy_host_is_named() -> None:
    busy = msgspec.structs.replace(IDLE_HOST, other_cpu_share=0.9, run_cpu_share=0.1, run_queue=20.0)
    (found,) = judge_hardware(recorded(host=busy)).faults
    assert (found.id, found.gpu, found.says) == ("host", None, "host: other programs took 90 % of the CPU")


def test_idle_gpus_have_low_clocks_and_links_for_no_fault() -> None:
    found = judge_hardware(
        recorded(always(graphics_mhz=135, pcie_gen=1), of_both={"gpu_utilization_percent": 3})
    )
    assert (found.word, found.faults) == (NOT_JUDGED, ())
    assert found.says == "not judged: no GPU was under load long enough"
    assert set(found.not_checked) == {"throttled", "clock-below-peers", "clock-fell", "pcie-link"}


def test_what_lasts_a_moment_is_no_fault() -> None:
    def moment(number: int) -> dict[str, Any]:
        return {"throttle_mask": 0x20, "graphics_mhz": 900, "pcie_width": 8} if number == 30 else {}

    assert judge_hardware(recorded(moment)).faults == ()


def test_gpus_at_different_loads_are_not_compared() -> None:
    found = judge_hardware(recorded(always(graphics_mhz=1200, gpu_utilization_percent=60)))
    assert (found.faults, "clock-below-peers" in found.not_checked) == ((), True)


def test_what_a_driver_does_not_report_is_not_checked_rather_than_fine() -> None:
    nothing = dict.fromkeys(("throttle_mask", "pcie_gen", "pcie_width", "other_processes"))
    found = judge_hardware(recorded(always(**nothing), of_both=nothing))
    assert set(found.not_checked) == {"throttled", "pcie-link", "other-process"}


def test_without_a_sample_nothing_is_judged() -> None:
    found = judge_hardware(HardwareRecord(devices()))
    assert (found.word, found.says) == (NOT_JUDGED, "not judged: no GPU was sampled")
    assert set(found.not_checked) == {check.id for check in CHECKS}
