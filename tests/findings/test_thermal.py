import pytest

from gputopo.findings import find
from gputopo.findings.throttling import degrees_left
from tests.findings.boxes import gpu, sound

UNTOLD = {"slowdown": None, "shutdown": None, "max_operating": None}


@pytest.mark.parametrize(
    ("degrees", "severity"), [(81, None), (82, "warning"), (86, "warning"), (87, "error"), (95, "error")]
)
def test_the_distance_to_the_slowdown_decides(degrees: int, severity: str | None) -> None:
    found = find(gpu(1, temperature_c={"gpu": degrees})(sound()))  # the slowdown is at 87
    assert [finding.severity for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("margin", "slowdown", "severity"),
    [
        (20, -2, None),
        (4, -2, None),
        (3, -2, "warning"),
        (-1, -2, "warning"),
        (-2, -2, "error"),
        (5, None, "warning"),
        (0, None, "error"),
    ],
)
def test_cards_that_tell_margins_are_judged_by_them(
    margin: int, slowdown: int | None, severity: str | None
) -> None:
    told = UNTOLD | {"gpu": 80, "margin": margin, "margin_slowdown": slowdown}
    found = find(gpu(1, temperature_c=told)(sound()))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_a_margin_without_a_temperature_is_taken_as_told() -> None:
    told = UNTOLD | {"gpu": None, "margin": 2, "margin_slowdown": -2}
    (found,) = find(gpu(1, temperature_c=told)(sound()))
    assert found.evidence["degrees_left"] == 4


def test_a_cool_card_with_no_margin_is_not_believed() -> None:
    told = UNTOLD | {"gpu": 64, "margin": -3}
    assert find(gpu(1, temperature_c=told)(sound())) == ()


@pytest.mark.parametrize("slowdown", [None, 0, 127, 255])
def test_thresholds_that_are_not_told_or_make_no_sense_give_nothing(slowdown: int | None) -> None:
    machine = gpu(1, temperature_c={"gpu": 99, "slowdown": slowdown})(sound())
    assert find(machine) == ()
    assert degrees_left(machine.gpus[1]) is None


def test_a_low_operating_limit_counts_although_the_slowdown_is_far() -> None:
    # A limit of 57 degrees was once in force beside a slowdown at 97: the card throttled at once.
    (found,) = find(gpu(1, temperature_c={"gpu": 60, "max_operating": 57, "slowdown": 97})(sound()))
    assert (found.id, found.severity) == ("thermal.near_slowdown", "warning")
    assert "57" in found.says


def test_a_card_that_slows_down_for_heat_says_it_once() -> None:
    found = find(gpu(1, temperature_c={"gpu": 88}, throttle={"mask": 0x20})(sound()))
    assert [finding.id for finding in found] == ["throttle.sw_thermal_slowdown"]


def test_memory_at_its_limit_is_hot_and_below_it_is_not() -> None:
    assert find(gpu(1, temperature_c={"memory": 84})(sound())) == ()
    (found,) = find(gpu(1, temperature_c={"memory": 85})(sound()))
    assert found.id == "thermal.memory_hot"
