"""Whether the input holds training back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.input_bound import ENOUGH, NOISE, judge, judge_waiting, waited_share
from gputopo.values.errors import UsageError

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
def test_the_headroom_decides_alone(input_rate: float, training_rate: float) -> None:
    found = judge(input_rate, training_rate)
    headroom = input_rate / training_rate
    assert found.headroom == pytest.approx(headroom)
    assert (found.verdict == "input") == (headroom < 1 - NOISE)
    assert (found.verdict == "enough") == (headroom >= ENOUGH)


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


@pytest.mark.parametrize(
    ("share", "alone", "verdict"),
    [
        (0.5, None, "input"),
        (0.5, 101.0, "input"),  # training runs as fast as its input lets it
        (0.05, 1000.0, "input"),
        (0.04, None, "enough"),
        (0.0, 119.0, "close"),
        (0.0, 121.0, "enough"),
    ],
)
def test_training_is_judged_by_its_waiting_and_not_by_its_own_rate(
    share: float, alone: float | None, verdict: str
) -> None:
    found = judge_waiting(share, 100.0, alone)
    assert found.verdict == verdict
    assert f"{100 * share:.1f} % of the steps' time" in found.says
    assert found.headroom == (None if alone is None else alone / 100)


def test_an_input_that_is_fast_only_when_it_is_alone_is_said_to_share_the_cores() -> None:
    assert "alone it gave 300.0 images/sec, beside training 100.0" in judge_waiting(0.4, 100.0, 300.0).says
    assert "share the cores" not in judge_waiting(0.4, 100.0, 110.0).says
