import pytest

from gputopo.findings import find
from gputopo.findings.throttling import THROTTLE, UNTHROTTLED
from gputopo.reference.clock_events import BITS
from tests.findings.boxes import every_gpu, gpu, sound
from tests.findings.faults import throttled


def test_how_bad_each_reason_is_and_what_to_do_is_known() -> None:
    assert {*THROTTLE, *UNTHROTTLED} == set(BITS)
    assert all(f"throttle.{reason}" == rule.id for reason, rule in THROTTLE.items())


def test_a_reason_that_a_capture_tells_in_words_alone_is_a_finding() -> None:
    (found,) = find(gpu(1, throttle={"mask": None, "reasons": ("hw_slowdown",)})(sound()))
    assert found.id == "throttle.hw_slowdown"


@pytest.mark.parametrize("mask", [0, 0x1, 0x2, 0x3])
def test_idle_and_set_clocks_are_no_slowdown(mask: int) -> None:
    assert find(throttled(mask)(sound())) == ()


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        (0x48, {"throttle.hw_thermal_slowdown"}),
        (0x88, {"throttle.hw_power_brake_slowdown"}),
        (0xC8, {"throttle.hw_thermal_slowdown", "throttle.hw_power_brake_slowdown"}),
        (0x28, {"throttle.hw_slowdown", "throttle.sw_thermal_slowdown"}),
        (0x24, {"throttle.sw_power_cap", "throttle.sw_thermal_slowdown"}),
        (0x1800, {"throttle.unknown"}),
    ],
)
def test_two_bits_give_two_findings_unless_one_only_repeats_the_other(mask: int, ids: set[str]) -> None:
    found = find(throttled(mask)(sound()))
    assert {finding.id for finding in found} == ids
    assert all(finding.evidence["mask"] == f"{mask:#x}" for finding in found)


def test_bits_without_names_are_told_as_numbers() -> None:
    (found,) = find(throttled(0x1800)(sound()))
    assert found.says.endswith("throttled, unknown reason bit 0x800, 0x1000")


@pytest.mark.parametrize(
    ("draw", "severity"),
    [(300.0, "info"), (240.0, "info"), (239.0, "warning"), (None, "info")],
)
def test_a_power_cap_at_full_draw_is_normal_and_one_below_it_is_not(
    draw: float | None, severity: str
) -> None:
    (found,) = find(gpu(1, throttle={"mask": 4}, power_w={"draw": draw})(sound()))
    assert (found.id, found.severity) == ("throttle.sw_power_cap", severity)


def test_a_power_cap_of_a_card_that_does_nothing_is_no_fault() -> None:
    resting = {"throttle": {"mask": 4}, "power_w": {"draw": 20.0}, "pstate": "P8"}
    assert find(gpu(1, **resting, utilization_percent={"gpu": 0})(sound())) == ()


def test_a_card_that_is_used_and_held_in_a_low_state_by_its_power_cap_is_a_fault() -> None:
    held = {"throttle": {"mask": 4}, "power_w": {"draw": 20.0}, "pstate": "P8"}
    (found,) = find(gpu(1, **held, utilization_percent={"gpu": 97})(sound()))
    assert (found.id, found.severity) == ("throttle.sw_power_cap", "warning")


def test_a_cap_of_all_cards_is_said_once() -> None:
    (found,) = find(every_gpu(throttle={"mask": 4})(sound()))
    assert found.subject.text == "gpus:0-3"
