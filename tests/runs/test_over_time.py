"""A run over time: paces and facts by device, in bounded memory, with what happened."""

import pytest

from gputopo.runs import read_over_time
from gputopo.values.run.bounded import CAPACITY
from gputopo.values.run.events import Anomaly, Device, Event, GpuSample, RunStarted, Sample, Step, TowerMarks
from gputopo.values.run.over_time import OverTime
from tests import there

DEVICES = tuple(Device(tower=tower, device=f"/GPU:{tower}", gpu=tower + 2) for tower in range(2))
STARTED = RunStarted(time_s=100.0, host="h", spec={"batch_size": 32}, devices=DEVICES, backend="gpu")


def step(number: int, *busy_s: float) -> Step:
    """A step that ended `number` seconds after the start, with these times of the towers."""
    marks = tuple(
        TowerMarks(tower=tower, start_s=0.0, weights_s=0.0, compute_s=seconds)
        for tower, seconds in enumerate(busy_s)
    )
    return Step(time_s=100.0 + number, step=number, seconds=1.0, images=64, loss=1.0, marks=marks)


def read(*events: Event) -> OverTime:
    """What the events of a run show."""
    found = there(read_over_time([STARTED, *events]))
    return found


def test_the_pace_of_a_device_is_its_batch_over_its_busy_time() -> None:
    run = read(step(1, 0.5, 0.25), step(2, 0.5, 0.2))
    assert [(one.label, one.seconds, one.values) for one in run.paces] == [
        ("GPU 2", (1.0, 2.0), (64.0, 64.0)),
        ("GPU 3", (1.0, 2.0), (128.0, pytest.approx(160.0))),
    ]


def test_a_fact_that_no_gpu_reported_has_no_curve_and_a_gap_has_no_point() -> None:
    def sample(second: int, clock: int | None) -> Sample:
        return Sample(time_s=100.0 + second, gpus=(GpuSample(gpu=2, graphics_mhz=clock), GpuSample(gpu=3)))

    run = read(step(1, 0.5, 0.5), sample(1, 1500), sample(2, None), sample(3, 1400))
    assert list(run.facts) == ["core clock, MHz"]
    (curve,) = run.facts["core clock, MHz"]
    assert curve == ("GPU 2", (1.0, 3.0), (1500.0, 1400.0))


def test_anomalies_are_faults_at_their_time() -> None:
    slow = Anomaly(time_s=105.0, tower=1, gpu=3, part="compute", percent_under=12.4, percent_under_low=10.0,
                   confidence=0.999, says="")  # fmt: skip
    run = read(step(1, 0.5, 0.5), slow)
    assert run.happenings == ((5.0, "GPU 3 slow 12%", True),)


def test_a_long_run_has_as_many_points_as_a_short_one() -> None:
    run = read(*(step(number, 0.5, 0.4) for number in range(1, 5 * CAPACITY)))
    assert len(run.paces[0].values) <= CAPACITY
    assert run.paces[1].values == pytest.approx([80.0] * len(run.paces[1].values))
