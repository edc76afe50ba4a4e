"""The hardware of a program on several hosts: each host judged by its own samples, all in one verdict."""

from typing import Any

import msgspec

from gputopo.runs.hardware.hosts import HostRecords
from gputopo.values.run.events import Device, GpuSample, HostLoad, Sample
from gputopo.values.run.verdict import AS_PLANNED, FAULTY, NOT_JUDGED, OUTSIDE, SOUND
from tests.runs.hardware.samples import IDLE_HOST, WORKING, devices

SPEC = {"servers": [{"host": "n1"}, {"host": "n2"}]}


def of_hosts() -> tuple[Device, ...]:
    """GPUs 0 and 1 of n1 and of n2."""
    return tuple(
        msgspec.structs.replace(device, rank=rank, host=f"n{rank + 1}", tower=2 * rank + device.tower)
        for rank in (0, 1)
        for device in devices()
    )


def recorded(
    of_n2: dict[str, Any], *, host: HostLoad = IDLE_HOST, more: tuple[GpuSample, ...] = ()
) -> HostRecords:
    """Record what GPU 1 of n2 shows otherwise, the load of n2, and other GPUs of it."""
    record = HostRecords(of_hosts(), SPEC)
    for number in range(60):
        for rank in (0, 1):
            other = of_n2 if rank else {}
            gpus = (
                GpuSample(gpu=0, **WORKING),
                GpuSample(gpu=1, **WORKING | other),
                *(more if rank else ()),
            )
            load = (host if rank else IDLE_HOST) if number % 4 == 3 else None
            record.add(Sample(time_s=100.0 + number / 2, rank=rank, gpus=gpus, host=load))
    return record


def test_a_fault_is_of_the_gpu_of_its_host_and_of_no_other() -> None:
    found = recorded({"graphics_mhz": 1200}).judge()
    assert found.word == FAULTY
    (fault,) = found.faults
    assert (fault.rank, fault.host, fault.gpu, fault.id) == (1, "n2", 1, "clock-below-peers")
    assert fault.says.startswith("n2 GPU 1: core clock ")
    assert found.says.startswith("n1: nothing wrong found, ")


def test_a_busy_host_is_named() -> None:
    busy = msgspec.structs.replace(IDLE_HOST, other_cpu_share=0.95, run_queue=20.0)
    (fault,) = recorded({}, host=busy).judge().faults
    assert fault.says.startswith("host n2: other programs took ")


def test_hosts_are_sound_together_only_where_each_was_judged() -> None:
    assert recorded({}).judge().word == SOUND
    record = HostRecords(of_hosts(), SPEC)
    for number in range(60):
        gpus = tuple(GpuSample(gpu=gpu, **WORKING) for gpu in (0, 1))
        record.add(Sample(time_s=100.0 + number / 2, gpus=gpus))
    found = record.judge()
    assert (found.word, found.loaded) == (NOT_JUDGED, 0)
    assert "n2: not judged" in found.says


def test_where_the_program_ran_is_said_by_host_the_worst_first() -> None:
    found = recorded({}).placed()
    assert (found.word, found.by_host) == (AS_PLANNED, {"n1": (0, 1), "n2": (0, 1)})
    stray = recorded({}, more=(GpuSample(gpu=3, processes=1, other_processes=0),))
    found = stray.placed()
    assert (found.word, found.says) == (OUTSIDE, "n2: the program runs on GPU 3; planned: GPUs 0-1")
    assert stray.news() is None, "n2 reports that itself"


def test_a_run_on_one_host_is_judged_as_ever() -> None:
    record = HostRecords(devices(), {})
    for number in range(60):
        gpus = tuple(GpuSample(gpu=gpu, **WORKING) for gpu in (0, 1))
        record.add(Sample(time_s=100.0 + number / 2, gpus=gpus, host=IDLE_HOST if number % 4 else None))
    found = record.judge()
    assert found.word == SOUND
    assert found.says.startswith("nothing wrong found")
    assert record.placed().gpus == (0, 1)
