"""The devices of a run: names, groups, and their rows in the final table."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median, median_low
from typing import Any

import msgspec

from gputopo.values.grouping import grouped
from gputopo.values.run.batches import batches_of, stored_batches
from gputopo.values.run.events import (
    Anomaly,
    Device,
    RunStarted,
    Sample,
    Step,
    TowerMarks,
    gpu_key,
)
from gputopo.values.run.result import DeviceResult
from gputopo.values.run.verdict import Verdict


def kind_of(device: Device) -> str:
    """Return what a device is compared with: "CPU", or the GPU's name.

    A CPU device that represents a GPU in a rehearsal is compared as a CPU device.
    """
    return "CPU" if device.is_cpu else f"GPU {device.gpu_name or 'of unknown name'}"


def groups(devices: Sequence[Device], key: Callable[[Device], Hashable]) -> list[list[Device]]:
    """Return the groups of at least two devices with the same key."""
    by_key = grouped((key(device), device) for device in devices)
    return [group for group in by_key.values() if len(group) > 1]


def reference_of(tower: int, fastest_first: Sequence[int]) -> int:
    """Return the peer that a tower is compared with: the middle one of the faster half of its peers.

    If that half is even, the faster of the two middle ones: the fastest of up to four peers, the second of
    five to eight. So one healthy device of four shows that three are slow, but one of eight does not. With
    the median of all peers a slow majority would pass as normal; with the fastest peer, one fast GPU of eight
    would mark the seven others as slow.
    """
    peers = [other for other in fastest_first if other != tower]
    faster_half = peers[: (len(peers) + 1) // 2]
    return faster_half[(len(faster_half) - 1) // 2]


# The key with the GPUs' maximum clocks, which the launcher writes into the spec of the event run_started:
# {"max_clocks_mhz": {"0": {"graphics": 1961, "memory": 4004}}}, by `gpu_key`.
MAX_CLOCKS = "max_clocks_mhz"

# Fields of a GPU's samples whose medians are in its row.
SAMPLED = ("graphics_mhz", "memory_mhz", "temperature_c", "power_w", "pcie_gen", "pcie_width")


def device_results(
    started: RunStarted | None,
    counted: Sequence[Step],
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict] = (),
    anomalies: Sequence[Anomaly] = (),
) -> tuple[DeviceResult, ...]:
    """Return one row per device of the run, in its order; none before the run has started.

    `counted`: the steps after the warm-up. `samples`: taken during these steps. Values that were not measured
    are None.
    """
    if started is None:
        return ()
    marks = grouped((mark.tower, (step, mark)) for step in counted for mark in step.marks)
    says = grouped((anomaly.tower, anomaly.says) for anomaly in anomalies)
    by_tower = {verdict.tower: verdict for verdict in verdicts}
    rows = [
        DeviceResult(
            device=device,
            batch_size=batch,
            anomaly="; ".join(says.get(device.tower, ())) or None,
            verdict=by_tower.get(device.tower),
            **_measured(batch, marks.get(device.tower, [])),
        )
        for device, batch in zip(started.devices, batch_sizes(started, counted), strict=True)
    ]
    if started.backend == "gpu":
        rows = [_with_samples(row, samples, started.spec) for row in rows]
    best = max((row.images_per_sec for row in rows if row.images_per_sec is not None), default=None)
    return tuple(
        msgspec.structs.replace(row, percent_of_best=100 * row.images_per_sec / best)
        if best and row.images_per_sec is not None
        else row
        for row in rows
    )


def _measured(batch: int, marks: Sequence[tuple[Step, TowerMarks]]) -> dict[str, Any]:
    if not marks:
        return {}
    busy_s = median(mark.busy_s for _, mark in marks)
    return {
        "images_per_sec": batch / busy_s if busy_s > 0 else None,
        "weights_ms": 1000 * median(mark.weights_s for _, mark in marks),
        "compute_ms": 1000 * median(mark.compute_s for _, mark in marks),
        "other_ms": 1000 * median(step.seconds - mark.weights_s - mark.compute_s for step, mark in marks),
    }


def batch_sizes(started: RunStarted | None, counted: Sequence[Step] = ()) -> tuple[int, ...]:
    """Return the batch of each device, from the spec or else from the steps; 0 if unknown."""
    if started is None:
        return ()
    devices = len(started.devices)
    stored = stored_batches(started.spec.get("batch_size"), devices)
    return stored or batches_of(counted[0].images // max(1, devices) if counted else 0, devices)


def _with_samples(row: DeviceResult, samples: Sequence[Sample], spec: Mapping[str, Any]) -> DeviceResult:
    """Return a row with the medians of its GPU's samples, and why other values are unknown."""
    of_host = (sample for sample in samples if sample.rank == row.device.rank)
    readings = [gpu for sample in of_host for gpu in sample.gpus if gpu.gpu == row.device.gpu]
    medians: dict[str, Any] = dict.fromkeys(SAMPLED)
    for field in SAMPLED:
        values = [value for reading in readings if (value := getattr(reading, field)) is not None]
        if values:
            medians[field] = median_low(values)  # a value that was really observed
    if not readings:
        why = "no sample while the steps were counted"
    else:
        lost = any(reading.lost for reading in readings)
        why = "NVML reported the GPU as lost" if lost else "not reported by NVML"
    return msgspec.structs.replace(
        row,
        **medians,
        graphics_percent=_percent(medians["graphics_mhz"], _max_clock(spec, row.device, "graphics")),
        memory_percent=_percent(medians["memory_mhz"], _max_clock(spec, row.device, "memory")),
        missing={field: why for field, value in medians.items() if value is None},
    )


def _max_clock(spec: Mapping[str, Any], device: Device, domain: str) -> float | None:
    """Read a maximum from the spec. It is free-form JSON there, so anything unexpected counts as unknown."""
    clocks = spec.get(MAX_CLOCKS)
    of_gpu = clocks.get(gpu_key(device.rank, device.gpu)) if isinstance(clocks, Mapping) else None
    value = of_gpu.get(domain) if isinstance(of_gpu, Mapping) else None
    return value if isinstance(value, int | float) and value > 0 else None


def _percent(clock: int | None, maximum: float | None) -> float | None:
    return None if clock is None or maximum is None else 100 * clock / maximum
