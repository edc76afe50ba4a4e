"""Numbers of a soak by GPU: what it copied, its rates over time, its temperatures. Pure."""

import statistics
from collections.abc import Callable, Sequence

from gputopo.values.bandwidth import Kind, Soak, gpu_of
from gputopo.values.machine import Sample

# Ours: fewer have no first and last quarter to compare.
MIN_INTERVALS = 4
_QUARTERS: tuple[Callable[[int], slice], ...] = (
    lambda count: slice(None, count // 4),
    lambda count: slice(-(count // 4), None),
)


def copied_bytes(soak: Soak) -> dict[int, int]:
    """Return the bytes that each GPU received and sent."""
    total: dict[int, int] = {}
    for interval in soak.intervals:
        for gpu, count in interval.copied_bytes.items():
            total[gpu] = total.get(gpu, 0) + count
    return total


def ends(soak: Soak, gpu: int, kind: Kind, *, receives: bool = False) -> tuple[float, float] | None:
    """Return the rate of a GPU's copies of a kind in the first and the last quarter of its intervals.

    Of a GPU with several others the median pair of those that it sends to, or `receives` from, so that one
    slow GPU is not that of all; None where no copy ran in MIN_INTERVALS intervals.
    """
    series: dict[tuple[str, str], list[float]] = {}
    for interval in soak.intervals:
        for one in interval.rates:
            if one.kind == kind and gpu == gpu_of(one.destination if receives else one.source):
                series.setdefault((one.source, one.destination), []).append(one.gb_per_s)
    found = [rates for rates in series.values() if len(rates) >= MIN_INTERVALS]
    if not found:
        return None
    first, last = (
        statistics.median_high(statistics.median(rates[part(len(rates))]) for rates in found)
        for part in _QUARTERS
    )
    return first, last


def temperatures(samples: Sequence[Sample], gpu: int) -> list[int]:
    """Return the temperatures of a GPU over the samples."""
    facts = (one for sample in samples for one in sample.gpus if one["index"] == gpu)
    return [one["temperature_c.gpu"] for one in facts if one.get("temperature_c.gpu") is not None]
