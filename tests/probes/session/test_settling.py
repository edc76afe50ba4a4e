"""Which repeats are used, on repeats of a card that ramps up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes import Copy, CopyJob
from gputopo.probes.session import Effort, Meter, Speeds, measure_job
from gputopo.values.bandwidth import CopyRate
from gputopo.values.ends import HOST, End
from tests.probes.session.double import EngineDouble, SamplerDouble

NOISE = st.floats(0.99, 1.01)
JOB = CopyJob(kind="h2d", copies=(Copy(kind="h2d", source=HOST, destination=End("gpu:0"), pinned=True),))


def measured(values: list[float], effort: Effort) -> CopyRate:
    """Measure with these rates in the windows that count, in order; the last one stays."""
    rates = [values[0], *values]  # the first window is not counted
    engine = EngineDouble(gpus=1, rate=lambda copy: rates.pop(0) if len(rates) > 1 else rates[0])
    with Meter([0], open_sampler=lambda gpu: SamplerDouble(gpu, dict), now=engine.clock) as meter:
        ((sample,), _) = measure_job(JOB, engine, meter, Speeds(), effort)
    assert isinstance(sample, CopyRate)
    return sample


def discarded(values: list[float]) -> int:
    """Return how many of these repeats are not used."""
    return len(measured(values, Effort(0.0, len(values), exact=True)).discarded_gb_per_s)


@pytest.mark.parametrize(
    ("values", "ramp_up"),
    [
        ([85.0, 87.0, 194.0, 195.0, 194.5], 2),
        ([85.0, 85.0, 85.0, 85.0, 195.0], 0),  # one high value may be an error of the clock
        ([85.0, 85.0, 85.0, 85.0, 195.0, 194.0], 4),
        ([10.0, 10.1, 8.0, 10.0, 10.1], 0),  # a slow repeat in the middle is a result
        ([10.0, 14.0, 7.0, 12.0, 5.0] * 3, 0),
    ],
)
def test_only_low_repeats_before_all_high_ones_were_taken_during_ramp_up(
    values: list[float], ramp_up: int
) -> None:
    assert discarded(values) == ramp_up


@given(
    low=st.lists(NOISE, max_size=5),
    high=st.lists(NOISE, min_size=5, max_size=9),
    share=st.floats(0.02, 0.85),
)
def test_whatever_the_step_all_low_repeats_go_and_all_high_ones_stay(
    low: list[float], high: list[float], share: float
) -> None:
    assert discarded([share * 195 * one for one in low] + [195 * one for one in high]) == len(low)


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ([10.0, 10.1, 10.0], 3),
        ([10.0, 10.1, 8.0, 10.0], 4),  # until three agree
        ([5.0, 5.0, 10.0, 10.1, 10.0], 5),
        ([10.0, 14.0, 7.0, 19.0, 5.0, 30.0, 2.0, 50.0], 7),  # but no more than four more
    ],
)
def test_windows_are_added_until_as_many_as_are_wanted_agree(values: list[float], windows: int) -> None:
    sample = measured(values, Effort(0.0, 3))
    assert len(sample.repeats_gb_per_s) + len(sample.discarded_gb_per_s) == windows
