"""Where the processes of a program were seen, beside the plan."""

from typing import Any

import pytest

from gputopo.runs.hardware.placement import NOT_SEEN_S, PlacementRecord
from gputopo.values.run.events import GpuSample, Sample
from gputopo.values.run.verdict import AS_PLANNED, NOT_CHECKED, NOT_SEEN, OUTSIDE


def own(gpu: int, count: int = 1) -> GpuSample:
    return GpuSample(gpu=gpu, processes=count, other_processes=0)


def placed(*gpus: GpuSample, seconds: float = 10.0) -> tuple[str, str | None]:
    """Record these GPUs of a machine of four, of which 0 and 1 are planned, twice; return word and news."""
    record = PlacementRecord([0, 1])
    for time_s in (100.0, 100.0 + seconds):
        record.add(Sample(time_s=time_s, gpus=gpus))
    return record.placed().word, record.news()


@pytest.mark.parametrize("seen", [(0,), (1,), (0, 1)])
def test_a_program_on_planned_gpus_is_as_planned(seen: tuple[int, ...]) -> None:
    gpus = [own(gpu, gpu in seen) for gpu in range(4)]
    assert placed(*gpus, seconds=2 * NOT_SEEN_S) == (AS_PLANNED, None)


def test_a_program_on_another_gpu_is_reported_at_once_with_both() -> None:
    assert placed(own(0), own(1), own(2), own(3, 0)) == (
        OUTSIDE,
        "the program runs on GPU 2; planned: GPUs 0-1",
    )


def test_a_program_that_is_seen_nowhere_is_reported_after_a_while() -> None:
    nowhere = [own(gpu, 0) for gpu in range(4)]
    assert placed(*nowhere, seconds=NOT_SEEN_S / 2) == (NOT_SEEN, None)
    word, news = placed(*nowhere, seconds=NOT_SEEN_S)
    assert (word, news) == (NOT_SEEN, "the program was seen on no GPU in 60 s; planned: GPUs 0-1")


@pytest.mark.parametrize(
    "gpu",
    [
        {"processes": 2, "other_processes": None},  # numbers of another namespace
        {},  # the driver does not answer
        {"processes": 0, "other_processes": 0, "gpu_utilization_percent": 90},  # it lists none of them
    ],
)
def test_where_nvml_lists_no_process_it_is_not_checked(gpu: dict[str, Any]) -> None:
    gpus = [GpuSample(gpu=index, **gpu) for index in (0, 1)]
    assert placed(*gpus, seconds=2 * NOT_SEEN_S) == (NOT_CHECKED, None)


def test_memory_that_grows_shows_a_program_that_nvml_does_not_list() -> None:
    record = PlacementRecord([0])
    for time_s, mib in ((0.0, 10), (100.0, 4000)):
        gpu = GpuSample(gpu=0, processes=0, other_processes=0, memory_used_mib=mib)
        record.add(Sample(time_s=time_s, gpus=(gpu,)))
    assert record.placed().word == NOT_CHECKED


def test_the_same_news_comes_once() -> None:
    record = PlacementRecord([0])
    record.add(Sample(time_s=0.0, gpus=(own(1),)))
    assert record.news() is not None
    record.add(Sample(time_s=1.0, gpus=(own(1),)))
    assert record.news() is None
