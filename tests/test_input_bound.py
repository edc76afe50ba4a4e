"""Whether the input holds training back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.errors import UsageError
from gputopo.input_bound import ENOUGH, NOISE, judge, waited_share

RATES = st.floats(1e-3, 1e9)


@pytest.mark.parametrize(
    ("headroom", "verdict"),
    [(0.1, "input"), (0.94, "input"), (0.96, "close"), (1.0, "close"), (1.19, "close"), (1.21, "enough")],
)
def test_the_verdict_follows_from_the_two_rates(headroom: float, verdict: str) -> None:
    assert judge(1000 * headroom, 1000).verdict == verdict


def test_the_words_hold_both_rates_and_what_is_lost() -> None:
    found = judge(3058, 8560)  # alexnet, real against synthetic, of a published table
    assert found.verdict == "input"
    assert "3058.0 images/sec against 8560.0" in found.says
    assert "64 % less" in found.says


@given(RATES, RATES)
def test_nothing_runs_faster_than_the_slower_of_the_two(input_rate: float, training_rate: float) -> None:
    found = judge(input_rate, training_rate)
    assert found.at_most == min(input_rate, training_rate)
    assert found.headroom == pytest.approx(input_rate / training_rate)
    assert (found.verdict == "input") == (found.headroom < 1 - NOISE)
    assert (found.verdict == "enough") == (found.headroom >= ENOUGH)


@given(RATES, RATES, st.floats(1.0, 100.0))
def test_a_faster_input_is_never_judged_worse(input_rate: float, training_rate: float, by: float) -> None:
    order = ("input", "close", "enough")
    slow, fast = judge(input_rate, training_rate), judge(input_rate * by, training_rate)
    assert order.index(slow.verdict) <= order.index(fast.verdict)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="input rate"):
        judge(rate, 100)
    with pytest.raises(UsageError, match="training rate"):
        judge(100, rate)


def test_the_share_of_waiting_is_of_all_the_time() -> None:
    assert waited_share(0.5, 2.0) == 0.25
    assert waited_share(3.0, 2.0) == 1.0
    with pytest.raises(UsageError, match="took no time"):
        waited_share(0.0, 0.0)
