"""Samples of a watch, made by hand: one GPU under load beside others."""

from collections.abc import Iterable, Sequence
from typing import Any

from gputopo.findings import find_after_watch
from gputopo.values.finding import Finding
from gputopo.values.history import History
from gputopo.values.machine import Machine
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from gputopo.values.run.verdict import HostSummary
from tests.findings.boxes import every_gpu, sound

WORKING: dict[str, Any] = {
    "graphics_mhz": 1530,
    "memory_mhz": 877,
    "power_w": 250.0,
    "temperature_c": 60,
    "throttle_mask": 0,
    "gpu_utilization_percent": 97,
    "pcie_gen": 3,
    "pcie_width": 16,
}
IDLE: dict[str, Any] = WORKING | {
    "graphics_mhz": 135,
    "memory_mhz": 405,
    "throttle_mask": 1,
    "gpu_utilization_percent": 0,
    "pcie_gen": 1,
}


def find_watched(machine: Machine, history: History) -> tuple[Finding, ...]:
    """Return the findings of the samples of a watch, in which no port counted errors."""
    return find_after_watch(machine, history, machine, minutes=1.0)


def samples(**changes: Any) -> GpuSample:
    return GpuSample(gpu=1, **(WORKING | changes))


def watched(of_one: Iterable[GpuSample], xids: Sequence[Xid] = (), step_s: float = 1.0) -> History:
    """Watch two GPUs: GPU 0 as it should be, GPU 1 as given. The Xid events come with the last sample."""
    history = History()
    reported = list(of_one)
    for number, sample in enumerate(reported):
        history.add(
            MachineSample(
                time_s=1000.0 + number * step_s,
                gpus=(GpuSample(gpu=0, **WORKING), sample),
                xids=tuple(xids) if number == len(reported) - 1 else (),
            )
        )
    return history


def found(
    of_one: Iterable[GpuSample], machine: Machine | None = None, xids: Sequence[Xid] = ()
) -> tuple[Finding, ...]:
    return find_watched(machine or sound(2), watched(of_one, xids))


def all_watched() -> list[Finding]:
    """Return a finding of every kind that only a watch finds."""
    flapping = [samples(pcie_gen=1 + 2 * (number % 2)) for number in range(20)]
    on_busy_host = History()
    on_busy_host.host = HostSummary(samples=10, busy="the host swapped")
    sagging = [samples(graphics_mhz=1530 if number < 30 else 1100) for number in range(80)]
    return [
        *found(flapping),
        *found(sagging),
        *found([samples(pcie_gen=1)] * 20, every_gpu(pcie={"gen_max": None})(sound(2))),
        *found([samples()] * 3, xids=[Xid(code=79, gpu=1)]),
        *find_watched(sound(2), on_busy_host),
    ]
