"""Several runs of one job: their mean and spread, and how they ended."""

import statistics

import msgspec
import pytest

from gputopo.report import document_text, repeats_document
from gputopo.runs import combine_repeats, summarise
from gputopo.values import schema
from gputopo.values.run.events import RankFailed
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats
from tests import there
from tests.invented_runs import InventedRun, Noise, cpu_devices, stream

LOST = RankFailed(time_s=1.0, kind="killed", cause="killed by SIGKILL", remedy="look", exit_code=137)


RUN = summarise(stream(cpu_devices(2), InventedRun(2, noise=Noise(own=0.01)).steps(20)))


def run_at(speed: float) -> Result:
    throughput = msgspec.structs.replace(there(RUN.throughput), mean=speed)
    return msgspec.structs.replace(RUN, throughput=throughput)


def failed() -> Result:
    return msgspec.structs.replace(run_at(1000.0), status="failed", exit_code=137, failure=LOST)


def test_mean_and_spread_are_over_the_complete_repeats_only() -> None:
    both = combine_repeats([run_at(100.0), failed(), run_at(120.0)], 3)
    found = there(both.images_per_sec)
    assert (found.mean, found.lowest, found.highest, found.of) == (110.0, 100.0, 120.0, 2)
    assert found.deviation == pytest.approx(statistics.stdev([100.0, 120.0]))
    assert (both.status, both.exit_code, both.asked, both.complete) == ("failed", 137, 3, 2)


def test_without_a_complete_repeat_there_is_no_speed_and_never_a_zero() -> None:
    none = combine_repeats([failed()], 2)
    assert none.images_per_sec is None
    text = document_text(repeats_document(none))
    assert "repeat 1  failed: killed by SIGKILL" in text
    assert "None of 2 repeats gave a speed." in text
    assert "\n0" not in text


def test_what_ends_repeats_from_outside_counts_only_if_no_repeat_failed() -> None:
    stopped = combine_repeats([run_at(100.0)], 2, ("interrupted", 130))
    assert (stopped.status, stopped.exit_code) == ("interrupted", 130)
    assert combine_repeats([failed()], 2, ("interrupted", 130)).exit_code == 137


def test_repeats_come_back_from_json_as_they_went() -> None:
    both = combine_repeats([run_at(100.0), failed()], 2)
    assert schema.decode(schema.encode(both), Repeats, origin="here") == both
