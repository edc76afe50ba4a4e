from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gputopo.probes import DriverStop, NotReadError, RunWatch
from gputopo.values.run.events import GpuSample, MachineSample, Noticed, Sample
from tests.kit.nvml import FakeNvml, crash, installed
from tests.kit.scenarios import SCENARIOS

FOUR = SCENARIOS["four"]
AGAIN_S = 20.0  # seconds until a driver is asked again
CRASHED = DriverStop("crashed", "nvmlDeviceGetPowerUsage", (1,), "ended the process with SIGSEGV")


class Watch:
    """A watch of GPUs whose driver gives these samples, and then crashes."""

    def __init__(self, *samples: GpuSample) -> None:
        self._samples = [*samples]
        self.stop: DriverStop | None = None

    def observe(self) -> MachineSample:
        """Return the next sample."""
        if not self._samples:
            self.stop = CRASHED
        return MachineSample(time_s=0.0, gpus=(self._samples.pop(0),) if self._samples else ())

    def close(self) -> None:
        """Nothing is open."""


class Driver:
    """Opens watches one after another; after the last one it is not loaded."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = iter(watches)
        self.opened = 0
        self.now_s = 0.0

    def open(self, gpus: Sequence[int], others: Sequence[int]) -> Any:
        self.opened += 1
        if (watch := next(self._watches, None)) is None:
            raise NotReadError("DRIVER_NOT_LOADED")
        return watch

    def seen(self, looks: int) -> Iterator[Sample | Noticed]:
        """Yield what a watch of GPU 0 sees, which looks when it may ask the driver again."""
        with RunWatch([0], open_gpus=self.open, clock=lambda: self.now_s) as watch:
            for _ in range(looks):
                yield from watch.look()
                self.now_s += AGAIN_S


def test_gpus_are_in_each_sample_and_the_host_in_every_fourth() -> None:
    with installed(FakeNvml(FOUR)), RunWatch([0, 2]) as watch:
        seen = [event for _ in range(8) for event in watch.look()]
    samples = [event for event in seen if isinstance(event, Sample)]
    assert len(samples) == len(seen) == 8
    assert [[gpu.gpu for gpu in sample.gpus] for sample in samples] == [[0, 2]] * 8
    assert [sample.host is not None for sample in samples] == [False, False, False, True] * 2


def test_of_gpus_beside_the_run_only_the_processes_are_asked_and_seldom() -> None:
    with installed(FakeNvml(FOUR)), RunWatch([0, 2], [1]) as watch:
        samples = [event for _ in range(9) for event in watch.look() if isinstance(event, Sample)]
    beside = [gpu for sample in samples for gpu in sample.gpus if gpu.gpu == 1]
    assert [len(sample.gpus) for sample in samples].count(3) == len(beside) == 2
    assert set(beside) == {GpuSample(gpu=1, processes=0, other_processes=0)}


def test_without_gpus_there_is_one_sample_of_the_host_a_second() -> None:
    with RunWatch([]) as watch:
        seen = [watch.look() for _ in range(8)]
    assert [len(events) for events in seen] == [0, 0, 0, 1] * 2


@pytest.mark.parametrize(("gpus", "every_s"), [([0], 0.25), ([0, 2], 0.5)])
def test_one_gpu_is_sampled_more_often_than_several(gpus: list[int], every_s: float) -> None:
    with RunWatch(gpus, open_gpus=Driver().open) as watch:
        assert watch.every_s == every_s


def test_without_a_driver_that_is_noticed_once_and_the_host_is_sampled() -> None:
    with installed(FakeNvml(FOUR, init_code=9)), RunWatch([0]) as watch:
        seen = [event for _ in range(8) for event in watch.look()]
    notice, *samples = seen
    assert isinstance(notice, Noticed)
    assert notice.says == "The GPUs are not sampled: DRIVER_NOT_LOADED"
    assert [isinstance(one, Sample) and one.host is not None for one in samples] == [True, True]


def test_a_driver_that_fails_during_a_run_is_noticed_once_and_the_host_is_sampled_on() -> None:
    fake = FakeNvml(FOUR)
    fake.spoil("nvmlDeviceGetPowerUsage", crash, gpu=1, after_calls=2)
    with installed(fake), RunWatch([0, 1]) as watch:
        seen = [event for _ in range(12) for event in watch.look()]
    (notice,) = (event.says for event in seen if isinstance(event, Noticed))
    assert notice.startswith("The GPUs are no longer sampled: nvmlDeviceGetPowerUsage of GPU 1 ")
    assert "SIGSEGV" in notice
    samples = [event for event in seen if isinstance(event, Sample)]
    assert [len(sample.gpus) for sample in samples] == [2, 2, 1, 0, 0, 0]
    assert samples[-1].host is not None


def test_gpus_are_sampled_again_after_a_pause_with_the_length_of_the_gap() -> None:
    one = GpuSample(gpu=0, graphics_mhz=1305)
    seen = list(Driver(Watch(one), Watch(one), Watch()).seen(6))
    notices = [event.says for event in seen if isinstance(event, Noticed)]
    assert notices[0].endswith("ended the process with SIGSEGV; tried again in 20 s")
    assert notices[1] == "The GPUs are sampled again after a gap of 40 s"
    assert notices[2].startswith("The GPUs are no longer sampled: ")
    samples = [event for event in seen if isinstance(event, Sample) and event.gpus]
    assert [sample.gap_s for sample in samples] == [None, 40.0]


def test_a_driver_that_does_not_come_back_is_asked_a_few_times_only() -> None:
    driver = Driver(Watch(), Watch())
    notices = [event.says for event in driver.seen(20) if isinstance(event, Noticed)]
    assert driver.opened == 1 + 3
    assert notices[-1] == "The GPUs are no longer sampled: DRIVER_NOT_LOADED"


def test_counters_go_on_after_a_gap() -> None:
    before = GpuSample(gpu=0, pcie_replays=7, throttled_s={"power": 2.5})
    after = GpuSample(gpu=0, pcie_replays=1, nvlink_errors=4, throttled_s={"thermal": 1.0})
    none = GpuSample(gpu=0)
    driver = Driver(Watch(before, none), Watch(none, after), Watch(GpuSample(gpu=0, pcie_replays=1)))
    seen = [event.gpus[0] for event in driver.seen(12) if isinstance(event, Sample) and event.gpus]
    assert [sample.pcie_replays for sample in seen] == [7, None, None, 8, 9]
    assert (seen[3].nvlink_errors, seen[3].throttled_s) == (4, {"power": 2.5, "thermal": 1.0})
