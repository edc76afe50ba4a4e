"""The hardware of a run by its samples alone, and the GPUs that its program is on."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from gputopo.reference import CLOCK_EVENT_BITS
from gputopo.runs import Summary
from gputopo.values.run.events import GpuSample, HostLoad, RunStarted, Sample, Xid
from gputopo.values.run.program import PROGRAM
from gputopo.values.run.verdict import (
    AS_PLANNED,
    FAULTY,
    NOT_CHECKED,
    NOT_JUDGED,
    NOT_SEEN,
    OUTSIDE,
    SOUND,
    Hardware,
)
from tests import there
from tests.invented_runs import gpu_devices

WORKING: dict[str, Any] = {
    "graphics_mhz": 1530,
    "throttle_mask": 0,
    "gpu_utilization_percent": 97,
    "pcie_gen": 3,
    "pcie_width": 16,
    "processes": 1,
    "other_processes": 0,
}
IDLE_HOST = HostLoad(time_s=0.0, seconds=2.0, cores=8, run_cpu_share=0.2, other_cpu_share=0.0, run_queue=2.0)
Changes = Callable[[int], dict[str, Any]]


def summary_of(gpus: int, *samples: Sample) -> Summary:
    """The summary of a program's run on so many GPUs, after these samples."""
    summary = Summary()
    devices = gpu_devices(gpus)
    summary.add(RunStarted(time_s=0.0, host="h", spec={"task": PROGRAM}, devices=devices, backend="gpu"))
    for sample in samples:
        summary.add(sample)
    return summary


def recorded(
    of_gpu_1: Changes = lambda number: {},
    *,
    count: int = 60,
    of_both: dict[str, Any] | None = None,
    xids: Sequence[Xid] = (),
    host: HostLoad = IDLE_HOST,
) -> Hardware:
    """Judge so many samples. `of_gpu_1`: what GPU 1 shows otherwise, by sample."""
    base = WORKING | (of_both or {})
    samples = (
        Sample(
            time_s=100.0 + number / 2,
            gpus=(GpuSample(gpu=0, **base), GpuSample(gpu=1, **base | of_gpu_1(number))),
            host=host if number % 4 == 3 else None,
            xids=tuple(xids) if number == count - 1 else (),
        )
        for number in range(count)
    )
    return there(summary_of(2, *samples).result().hardware)


def always(**changes: Any) -> Changes:
    return lambda number: changes


def since(first: int, **changes: Any) -> Changes:
    return lambda number: changes if number >= first else {}


def test_all_well_is_said_with_what_was_checked() -> None:
    found = recorded()
    assert (found.word, found.faults, found.not_checked) == (SOUND, (), {})
    assert found.says == "nothing wrong found, in 60 samples, 60 of each GPU under load"
    unsampled = recorded(count=0)
    assert (unsampled.word, unsampled.says) == (NOT_JUDGED, "not judged: no GPU was sampled")
    assert {*unsampled.not_checked} == {*found.checked} > {"driver.xid", "gpu.busy", "host.busy", "pcie.*"}


@pytest.mark.parametrize(
    ("changes", "fault", "severity", "said"),
    [
        (
            always(throttle_mask=CLOCK_EVENT_BITS["sw_thermal_slowdown"]),
            "throttle.sw_thermal_slowdown",
            "warning",
            "SW thermal",
        ),
        (
            always(graphics_mhz=1380),
            "clocks.core_slower_than_peers",
            "warning",
            "10% below GPUs of its model",
        ),
        (
            since(30, pcie_gen=1),
            "pcie.generation_degraded",
            "warning",
            "fell from generation 3 to generation 1",
        ),
        (since(30, processes=2, other_processes=1), "gpu.busy", "warning", "another process started"),
        (always(processes=2, other_processes=1), "gpu.busy", "info", "from the start"),
    ],
)
def test_a_fault_of_a_gpu_is_named(changes: Changes, fault: str, severity: str, said: str) -> None:
    (found,) = recorded(changes).faults
    assert (found.id, found.severity, found.gpu, said in found.says) == (fault, severity, 1, True)


def test_a_clock_that_falls_without_a_reason_is_named_also_where_there_is_no_peer() -> None:
    def sags(number: int) -> dict[str, Any]:
        return {"graphics_mhz": 1530 if number < 30 else 1000}

    names = [fault.id for fault in recorded(sags, count=90).faults]
    assert names == ["clocks.core_slower_than_peers", "clocks.sagging"]


def test_an_xid_and_a_lost_gpu_are_errors_and_come_first() -> None:
    found = recorded(lambda number: {"graphics_mhz": 1300, "lost": number == 59}, xids=[Xid(code=48, gpu=1)])
    assert [(fault.id, fault.severity) for fault in found.faults] == [
        ("driver.xid", "error"),
        ("gpu.lost", "error"),
        ("clocks.core_slower_than_peers", "warning"),
    ]
    assert found.word == FAULTY


def test_a_busy_host_is_named() -> None:
    busy = msgspec.structs.replace(IDLE_HOST, other_cpu_share=0.9, run_cpu_share=0.1, run_queue=20.0)
    (found,) = recorded(host=busy).faults
    assert (found.id, found.gpu, found.says) == (
        "host.busy",
        None,
        "host: other programs used 90% of the CPU",
    )


def test_idle_gpus_have_low_clocks_and_links_for_no_fault() -> None:
    found = recorded(always(graphics_mhz=135, pcie_gen=1), of_both={"gpu_utilization_percent": 3})
    assert (found.word, found.faults) == (NOT_JUDGED, ())
    assert found.says == "not judged: no GPU was under load long enough"
    assert set(found.not_checked) == {
        "throttle.*",
        "clocks.core_slower_than_peers",
        "clocks.sagging",
        "pcie.*",
    }


def test_what_lasts_a_moment_is_no_fault() -> None:
    def moment(number: int) -> dict[str, Any]:
        return {"throttle_mask": 0x20, "graphics_mhz": 900, "pcie_width": 8} if number == 30 else {}

    assert recorded(moment).faults == ()


def test_gpus_at_different_loads_are_not_compared() -> None:
    found = recorded(always(graphics_mhz=1200, gpu_utilization_percent=60))
    assert (found.faults, "clocks.core_slower_than_peers" in found.not_checked) == ((), True)


def test_what_a_driver_does_not_report_is_not_checked_rather_than_fine() -> None:
    nothing = dict.fromkeys(("throttle_mask", "pcie_gen", "pcie_width", "other_processes"))
    found = recorded(always(**nothing), of_both=nothing)
    assert set(found.not_checked) == {"throttle.*", "pcie.*", "gpu.busy"}


def own(gpu: int, count: int = 1) -> GpuSample:
    return GpuSample(gpu=gpu, processes=count, other_processes=0)


def placed(*gpus: GpuSample, seconds: float = 10.0) -> tuple[str, str | None]:
    """See these GPUs of a machine of four, of which 0 and 1 are planned, twice; return word and news."""
    samples = (Sample(time_s=time_s, gpus=gpus) for time_s in (100.0, 100.0 + seconds))
    summary = summary_of(2, *samples)
    return there(summary.result().placed).word, there(summary.hardware).placement.news()


@pytest.mark.parametrize("seen", [(1,), (0, 1)])
def test_a_program_on_planned_gpus_is_as_planned(seen: tuple[int, ...]) -> None:
    gpus = [own(gpu, gpu in seen) for gpu in range(4)]
    assert placed(*gpus, seconds=120.0) == (AS_PLANNED, None)


def test_a_program_on_another_gpu_is_reported_at_once_with_both() -> None:
    assert placed(own(0), own(1), own(2), own(3, 0)) == (
        OUTSIDE,
        "the program runs on GPU 2; planned: GPUs 0-1",
    )


def test_a_program_that_is_seen_nowhere_is_reported_after_a_while() -> None:
    nowhere = [own(gpu, 0) for gpu in range(4)]
    assert placed(*nowhere, seconds=30.0) == (NOT_SEEN, None)
    word, news = placed(*nowhere, seconds=60.0)
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
    assert placed(*gpus, seconds=120.0) == (NOT_CHECKED, None)


def test_memory_that_grows_shows_a_program_that_nvml_does_not_list() -> None:
    samples = (
        Sample(
            time_s=time_s,
            gpus=(GpuSample(gpu=0, processes=0, other_processes=0, memory_used_mib=mib),),
        )
        for time_s, mib in ((0.0, 10), (100.0, 4000))
    )
    assert there(summary_of(1, *samples).result().placed).word == NOT_CHECKED
