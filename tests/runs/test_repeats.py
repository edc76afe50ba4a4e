"""Whether another job fits into the time."""

import statistics
from collections.abc import Callable
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import document_text, repeats_document
from gputopo.runs.repeats import combine, spread
from gputopo.runs.summary import summarise
from gputopo.values import schema
from gputopo.values.run.budget import TimeBudget
from gputopo.values.run.events import RankFailed
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats
from tests import there
from tests.invented_runs import InventedRun, Noise, cpu_devices, stream


def clock_of(now: list[float]) -> Callable[[], float]:
    return lambda: now[0]


@given(st.lists(st.floats(0.1, 50.0), min_size=1), st.floats(0.0, 300.0))
def test_jobs_like_the_longest_so_far_never_end_late(seconds: list[float], limit: float) -> None:
    now = [7.0]
    budget = TimeBudget(limit, clock_of(now))
    longest = list(accumulate(seconds, max))
    for each, before in zip(seconds, [0.0, *longest], strict=False):
        if not budget.fits():
            break
        assert now[0] - 7.0 + before <= limit + 1e-6

        def job(each: float = each) -> None:
            now[0] += each

        budget.timed(job)
    else:
        assert abs(budget.used - sum(seconds)) < 1e-6


def test_a_known_length_and_a_count_stand_for_the_longest() -> None:
    now = [0.0]
    budget = TimeBudget(10.0, clock_of(now))
    assert budget.fits(each=10.0)
    assert not budget.fits(each=10.1)
    assert not budget.fits(3, each=4.0)
    assert TimeBudget(None, clock_of(now)).fits(1000, each=1e9)


LOST = RankFailed(time_s=1.0, kind="killed", cause="killed by SIGKILL", remedy="look", exit_code=137)


def run_at(speed: float) -> Result:
    result = summarise(stream(cpu_devices(2), InventedRun(2, noise=Noise(own=0.01)).steps(20)))
    throughput = msgspec.structs.replace(there(result.throughput), mean=speed)
    return msgspec.structs.replace(result, throughput=throughput)


def failed() -> Result:
    return msgspec.structs.replace(run_at(1000.0), status="failed", exit_code=137, failure=LOST)


def test_mean_and_spread_are_over_the_complete_repeats_only() -> None:
    both = combine([run_at(100.0), failed(), run_at(120.0)], 3)
    found = there(both.images_per_sec)
    assert (found.mean, found.lowest, found.highest, found.of) == (110.0, 100.0, 120.0, 2)
    assert found.deviation == pytest.approx(statistics.stdev([100.0, 120.0]))
    assert (both.status, both.exit_code, both.asked, both.complete) == ("failed", 137, 3, 2)


def test_without_a_complete_repeat_there_is_no_speed_and_never_a_zero() -> None:
    none = combine([failed()], 2)
    assert none.images_per_sec is None
    text = document_text(repeats_document(none))
    assert "repeat 1  failed: killed by SIGKILL" in text
    assert "None of 2 repeats gave a speed." in text
    assert "\n0" not in text


def test_the_report_has_a_line_for_each_repeat_and_one_for_all() -> None:
    text = document_text(repeats_document(combine([run_at(100.0), run_at(120.0)], 2)))
    assert "repeat 1  100.0 images/sec ±" in text
    assert "repeat 2  120.0 images/sec ±" in text
    assert "110.0 images/sec ± 14.1 over 2 of 2 repeats, from 100.0 to 120.0" in text


def test_a_single_repeat_has_no_deviation() -> None:
    found = there(spread([5.0]))
    assert found.deviation is None


@given(means=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_the_mean_lies_between_the_extremes(means: list[float]) -> None:
    found = there(spread(means))
    assert found.lowest * (1 - 1e-9) <= found.mean <= found.highest * (1 + 1e-9)
    assert found.of == len(means)


def test_repeats_come_back_from_json_as_they_went() -> None:
    both = combine([run_at(100.0), failed()], 2)
    assert schema.decode(schema.encode(both), Repeats, origin="here") == both
