import pytest

from gputopo.report import autotune_run_line, seconds, size
from gputopo.values.run.plan import Candidate, TimedRun


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "unknown"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.96, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
    ],
)
def test_durations_round_over_into_the_next_unit(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (5 << 30, "5.0 GiB"),
    ],
)
def test_bytes_are_written_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.1234, "0.12"), (9.996, "10.0"), (999.96, "1,000")],
)
def test_a_speed_keeps_three_figures(value: float, shown: str) -> None:
    line = autotune_run_line(1, Candidate(gpus=(0,)), TimedRun(value, 0.01))
    assert line == f"autotune round 1: parameter_server: {shown} images/sec"
