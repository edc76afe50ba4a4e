"""When a reading counts as taken at work."""

import pytest

from gputopo.findings.load import at_work
from gputopo.machine import Gpu, Throttle, UtilizationPercent

HELD = Throttle(reasons=("hw_slowdown",))


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [(Throttle(mask=8), True), (Throttle(reasons=()), True), (HELD, False), (Throttle(), False)],
)
def test_words_that_may_be_a_part_of_the_reasons_do_not_say_that_a_card_is_not_idle(
    throttle: Throttle, expected: bool
) -> None:
    assert at_work(Gpu(index=0, pstate="P0", throttle=throttle)) is expected


@pytest.mark.parametrize("percent", [0, 90])
def test_beside_such_words_the_use_of_the_card_says_whether_it_works(percent: int) -> None:
    used = UtilizationPercent(gpu=percent)
    assert at_work(Gpu(index=0, pstate="P0", throttle=HELD, utilization_percent=used)) is (percent > 0)
