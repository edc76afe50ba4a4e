"""Which repeats are used, on repeats of a card that ramps up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.session.settling import count_agreeing, count_ramp_up

NOISE = st.floats(0.99, 1.01)


@pytest.mark.parametrize(
    ("values", "ramp_up", "agreeing"),
    [
        ([85.0, 87.0, 194.0, 195.0, 194.5], 2, 3),
        ([85.0, 85.0, 85.0, 85.0, 195.0], 0, 4),  # one high value may be an error of the clock
        ([85.0, 85.0, 85.0, 85.0, 195.0, 194.0], 4, 2),
        ([10.0, 10.1, 8.0, 10.0, 10.1], 0, 4),  # a slow repeat in the middle is a result
        ([10.0, 14.0, 7.0, 12.0, 5.0] * 3, 0, 3),
        ([], 0, 0),
    ],
)
def test_only_low_repeats_before_all_high_ones_were_taken_during_ramp_up(
    values: list[float], ramp_up: int, agreeing: int
) -> None:
    assert (count_ramp_up(values), count_agreeing(values)) == (ramp_up, agreeing)


@given(
    low=st.lists(NOISE, max_size=5),
    high=st.lists(NOISE, min_size=5, max_size=9),
    share=st.floats(0.02, 0.85),
)
def test_whatever_the_step_all_low_repeats_go_and_all_high_ones_stay(
    low: list[float], high: list[float], share: float
) -> None:
    values = [share * 195 * one for one in low] + [195 * one for one in high]
    assert (count_ramp_up(values), count_agreeing(values)) == (len(low), len(high))


@given(st.lists(st.floats(0.01, 1000), max_size=20))
def test_a_repeat_during_ramp_up_is_below_the_highest(values: list[float]) -> None:
    if first := count_ramp_up(values):
        assert max(values[:first]) < max(values[first:])
