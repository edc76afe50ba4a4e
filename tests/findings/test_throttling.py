import pytest

from tests.findings.boxes import find, gpu, sound
from tests.findings.faults import throttled


@pytest.mark.parametrize("mask", [0, 0x3])
def test_idle_and_set_clocks_are_no_slowdown(mask: int) -> None:
    assert find(throttled(1, mask)(sound())) == ()


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
    found = find(throttled(1, mask)(sound()))
    assert {finding.id for finding in found} == ids
    assert all(finding.evidence["mask"] == f"{mask:#x}" for finding in found)


@pytest.mark.parametrize(
    ("draw", "severity"), [(300.0, "info"), (240.0, "info"), (239.0, "warning"), (None, "info")]
)
def test_a_power_cap_at_full_draw_is_normal_and_one_below_it_is_not(
    draw: float | None, severity: str
) -> None:
    (found,) = find(gpu(1, throttle={"mask": 4}, power_w={"draw": draw})(sound()))
    assert (found.id, found.severity) == ("throttle.sw_power_cap", severity)


# A card that is idle, or little used in a low state, is not held by its power cap.
@pytest.mark.parametrize(
    ("pstate", "percent", "severities"),
    [
        ("P8", 0, []),
        ("P0", 0, []),
        ("P8", 95, ["warning"]),
        (None, None, ["warning"]),
    ],
)
def test_a_power_cap_is_a_fault_of_a_card_that_is_used(
    pstate: str | None, percent: int | None, severities: list[str]
) -> None:
    held = {"throttle": {"mask": 4}, "power_w": {"draw": 20.0}, "pstate": pstate}
    found = find(gpu(1, **held, utilization_percent={"gpu": percent})(sound()))
    assert [one.severity for one in found if one.id == "throttle.sw_power_cap"] == severities


UNREPORTED = {"slowdown": None, "shutdown": None, "max_operating": None}


@pytest.mark.parametrize(
    ("degrees", "severity"), [(81, None), (82, "warning"), (86, "warning"), (87, "error")]
)
def test_the_distance_to_the_slowdown_decides(degrees: int, severity: str | None) -> None:
    found = find(gpu(1, temperature_c={"gpu": degrees})(sound()))  # the slowdown is at 87
    assert [finding.severity for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("margin", "slowdown", "severity"),
    [
        (4, -2, None),
        (3, -2, "warning"),
        (-2, -2, "error"),
        (5, None, "warning"),
    ],
)
def test_cards_that_report_margins_are_judged_by_them(
    margin: int, slowdown: int | None, severity: str | None
) -> None:
    reported = UNREPORTED | {"gpu": 80, "margin": margin, "margin_slowdown": slowdown}
    found = find(gpu(1, temperature_c=reported)(sound()))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_a_cool_card_with_no_margin_is_not_believed() -> None:
    reported = UNREPORTED | {"gpu": 64, "margin": -3}
    assert find(gpu(1, temperature_c=reported)(sound())) == ()


@pytest.mark.parametrize(
    ("spent", "severity"),
    [
        ({"hw_thermal_slowdown": 599}, None),
        ({"hw_thermal_slowdown": 600}, "warning"),
        ({"sw_thermal_slowdown": 3600}, "warning"),
        ({"sw_power_cap": 1_000_000}, None),
    ],
)
def test_time_in_slowdown_is_evidence_after_the_fact(spent: dict[str, int], severity: str | None) -> None:
    counters = {name: seconds * 10**9 for name, seconds in spent.items()}
    found = find(gpu(1, violation_ns=counters)(sound()))
    assert [(one.id, one.severity) for one in found] == ([("throttle.time", severity)] if severity else [])
    assert not found or (" 1.0 h" in found[0].says) == (3600 in spent.values())
