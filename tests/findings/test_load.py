"""When a reading counts as taken under load."""

import pytest

from gputopo.findings.load import idle, under_load
from gputopo.values.machine import Gpu, Throttle, UtilizationPercent

HELD = Throttle(reasons=("hw_slowdown",))


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [(Throttle(mask=8), True), (Throttle(reasons=()), True), (HELD, False), (Throttle(), False)],
)
def test_words_that_may_be_a_part_of_the_reasons_do_not_state_that_a_card_is_not_idle(
    throttle: Throttle, expected: bool
) -> None:
    assert under_load(Gpu(index=0, pstate="P0", throttle=throttle)) is expected


@pytest.mark.parametrize("percent", [0, 90])
def test_beside_such_words_the_use_of_the_card_shows_whether_it_is_under_load(percent: int) -> None:
    used = UtilizationPercent(gpu=percent)
    assert under_load(Gpu(index=0, pstate="P0", throttle=HELD, utilization_percent=used)) is (percent > 0)


@pytest.mark.parametrize(
    ("pstate", "percent", "expected"),
    [
        ("P8", 0, True),
        ("P8", 3, True),
        ("P8", None, True),
        ("P8", 95, False),
        ("P0", 0, True),
        ("P0", 95, False),
        ("P0", None, False),
        (None, None, False),
    ],
)
def test_a_card_is_idle_where_that_is_reported_and_not_where_it_is_used_in_a_low_state(
    pstate: str | None, percent: int | None, expected: bool
) -> None:
    used = UtilizationPercent(gpu=percent)
    assert idle(Gpu(index=0, pstate=pstate, utilization_percent=used)) is expected


def test_a_card_that_reports_idle_is_idle() -> None:
    assert idle(Gpu(index=0, pstate="P0", throttle=Throttle(mask=1)))
