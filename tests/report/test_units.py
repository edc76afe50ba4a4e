import pytest

from gputopo.report import autotune_run_line, seconds, size
from gputopo.values.run.plan import Candidate, TimedRun


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "unknown"),
        (0.0, "0.00 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3725, "1 h 02 min"),
    ],
)
def test_durations_round_over_into_the_next_unit(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (247_369_380, "235.9 MiB"),
        (5 << 30, "5.0 GiB"),
    ],
)
def test_bytes_are_written_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.1234, "0.12"), (9.996, "10.0"), (95.84, "95.8"), (999.96, "1,000"), (21825.4, "21,825")],
)
def test_a_speed_keeps_three_figures(value: float, shown: str) -> None:
    line = autotune_run_line(1, Candidate(gpus=(0,)), TimedRun(value, 0.01))
    assert line == f"autotune round 1: parameter_server: {shown} images/sec"
