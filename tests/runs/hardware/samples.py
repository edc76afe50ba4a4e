"""Samples of a run on two GPUs of one model, made by hand: half a second apart, all well unless changed."""

from collections.abc import Callable, Sequence
from typing import Any

from gputopo.runs.hardware.record import HardwareRecord
from gputopo.values.run.events import Device, GpuSample, HostLoad, Sample, Xid

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


def devices(count: int = 2) -> tuple[Device, ...]:
    return tuple(
        Device(tower=place, device=f"/GPU:{place}", gpu=place, gpu_name="Tesla V100")
        for place in range(count)
    )


def recorded(
    of_gpu_1: Changes = lambda number: {},
    *,
    count: int = 60,
    of_both: dict[str, Any] | None = None,
    xids: Sequence[Xid] = (),
    host: HostLoad = IDLE_HOST,
    more: Sequence[GpuSample] = (),
) -> HardwareRecord:
    """Record so many samples. `of_gpu_1`: what GPU 1 shows otherwise, by sample; `more`: other GPUs."""
    record = HardwareRecord(devices())
    base = WORKING | (of_both or {})
    for number in range(count):
        gpus = (GpuSample(gpu=0, **base), GpuSample(gpu=1, **base | of_gpu_1(number)), *more)
        last = number == count - 1
        record.add(
            Sample(
                time_s=100.0 + number / 2,
                gpus=gpus,
                host=host if number % 4 == 3 else None,
                xids=tuple(xids) if last else (),
            )
        )
    return record
