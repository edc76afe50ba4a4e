from collections.abc import Sequence

import pytest

from gputopo.probes import NotReadError, RunWatch
from gputopo.probes.nvml.gpu_watch import GpuWatchChild
from gputopo.probes.run_watch import AGAIN_S, ATTEMPTS, EVERY_S, EVERY_S_OF_MANY, Counted
from gputopo.values.run.events import GpuSample, Noticed, Sample
from tests.kit.nvml import FakeNvml, crash, installed
from tests.kit.scenarios import SCENARIOS

FOUR = SCENARIOS["four"]


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


@pytest.mark.parametrize(("gpus", "every_s"), [([0], EVERY_S), ([0, 2], EVERY_S_OF_MANY)])
def test_one_gpu_is_sampled_more_often_than_several(gpus: list[int], every_s: float) -> None:
    def refuse(gpus: Sequence[int], others: Sequence[int]) -> GpuWatchChild:
        raise NotReadError("DRIVER_NOT_LOADED")

    with RunWatch(gpus, open_gpus=refuse) as watch:
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
    now = [0.0]
    fake = FakeNvml(FOUR)
    fake.spoil("nvmlDeviceGetPowerUsage", crash, gpu=1, after_calls=1)
    with installed(fake), RunWatch([0, 1], clock=lambda: now[0]) as watch:
        seen = [*watch.look(), *watch.look()]
        now[0] = AGAIN_S - 1
        seen += watch.look()
        now[0] = AGAIN_S
        seen += [*watch.look(), *watch.look()]  # the new child has the same fault
    notices = [event.says for event in seen if isinstance(event, Noticed)]
    assert notices[0].endswith("ended the process with SIGSEGV; tried again in 20 s")
    assert notices[1] == "The GPUs are sampled again after a gap of 20 s"
    assert notices[2].startswith("The GPUs are no longer sampled: ")
    samples = [event for event in seen if isinstance(event, Sample) and event.gpus]
    assert [(len(sample.gpus), sample.gap_s) for sample in samples] == [
        (2, None),
        (1, None),
        (2, AGAIN_S),
        (1, None),
    ]


def test_a_driver_that_does_not_come_back_is_asked_a_few_times_only() -> None:
    now = [0.0]
    fake = FakeNvml(FOUR)
    fake.spoil("nvmlDeviceGetPowerUsage", crash, gpu=0)
    opened = []

    def open_gpus(gpus: Sequence[int], others: Sequence[int]) -> GpuWatchChild:
        opened.append(gpus)
        if len(opened) > 2:
            raise NotReadError("DRIVER_NOT_LOADED")
        return GpuWatchChild(gpus, others)

    seen: list[Sample | Noticed] = []
    with installed(fake), RunWatch([0], clock=lambda: now[0], open_gpus=open_gpus) as watch:
        for _ in range(20):
            seen += watch.look()
            now[0] += AGAIN_S
    assert len(opened) == 1 + ATTEMPTS
    notices = [event.says for event in seen if isinstance(event, Noticed)]
    assert notices[-1] == "The GPUs are no longer sampled: DRIVER_NOT_LOADED"


def test_counters_go_on_after_a_gap() -> None:
    counted = Counted()
    counted.add(GpuSample(gpu=0, pcie_replays=7, throttled_s={"power": 2.5}))
    counted.add(GpuSample(gpu=0))
    counted.begin_again()
    assert counted.add(GpuSample(gpu=0)) == GpuSample(gpu=0)
    after = counted.add(GpuSample(gpu=0, pcie_replays=1, nvlink_errors=4, throttled_s={"thermal": 1.0}))
    assert (after.pcie_replays, after.nvlink_errors) == (8, 4)
    assert after.throttled_s == {"power": 2.5, "thermal": 1.0}
    counted.begin_again()
    assert counted.add(GpuSample(gpu=0, pcie_replays=1)).pcie_replays == 9
