"""One box over time: its runs, links and GPUs from measurement to measurement; since when it is worse. Pure.

A series holds what was measured under the same conditions. It is worse since the measurement where the
medians before and after differ most, if all that came after stayed below by more than its noise.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from gputopo.copies.numbers import host_copies, rate
from gputopo.copies.pair_speeds import single_paths
from gputopo.measurements.cells import RUN_TO_RUN, key, value_words
from gputopo.runs.history import Saved
from gputopo.values.bandwidth import Kind
from gputopo.values.run.measurement import Measurement

# A change is a difference of medians of this many standard errors, and of this share at least; with fewer
# measurements on a side it is none. Ours: of 4 to 50 steady measurements with 2 % noise at most one series of
# 250 has a change by chance, and of a fall by 10 % at 1 % noise 9 of 10 or more are found.
DEVIATIONS = 5.0
MIN_CHANGE = 0.03
MIN_SIDE = 2
_MAD_TO_DEVIATION = 1.4826  # of normal noise
# Conditions that name a series of runs, in this order; the others are equal within it as well.
_NAMING = (
    "model",
    "n_gpus",
    "gpus",
    "variable_update",
    "ps_device",
    "all_reduce",
    "batch_per_gpu",
    "precision",
)


class Point(msgspec.Struct, frozen=True):
    """A value at a time, seconds since the epoch."""

    time_s: float
    value: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured over time, oldest first. `what`: "alexnet on 2 GPUs 0,1 ...", "host to GPU 3"."""

    what: str
    unit: str
    points: tuple[Point, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A series that is worse since `since_s`. `before`, `after`: medians."""

    what: str
    unit: str
    since_s: float
    before: float
    after: float
    percent: float  # by which it fell
    noise_percent: float  # a fall below this would be none
    measurements_before: int
    measurements_after: int


class Box(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.box/1"):
    """The history of one machine. `runs`: oldest first; `changes`: what is worse, most first."""

    machine: str | None
    runs: tuple[Measurement, ...]
    series: tuple[Series, ...]
    changes: tuple[Change, ...]


def box_of(machine: str | None, runs: Iterable[Measurement], bandwidths: Iterable[Saved] = ()) -> Box:
    """Return the history of a machine from its measurements, in any order."""
    ordered = sorted(runs, key=lambda one: one.time_s or 0.0)
    series = (*_of_runs(ordered), *_of_links(sorted(bandwidths, key=lambda one: one.saved_at)))
    changes = [change for one in series if (change := change_of(one)) is not None]
    return Box(
        machine=machine,
        runs=tuple(ordered),
        series=series,
        changes=tuple(sorted(changes, key=lambda one: -one.percent)),
    )


def change_of(series: Series) -> Change | None:
    """Return since when a series is worse, None where it is not, or where noise explains it."""
    values = [point.value for point in series.points]
    best: tuple[float, int] | None = None
    for split in range(MIN_SIDE, len(values) - MIN_SIDE + 1):
        before, after = median(values[:split]), median(values[split:])
        if before > 0 and after > 0 and max(values[split:]) < before:
            fall = math.log(before / after) * math.sqrt(split * (len(values) - split))
            best = max(best or (0.0, 0), (fall, split))
    if best is None or best[1] == 0:
        return None
    split = best[1]
    before, after = median(values[:split]), median(values[split:])
    noise = _noise(values[:split], values[split:])
    fall = 1 - after / before
    if fall < max(noise, MIN_CHANGE):
        return None
    return Change(
        what=series.what,
        unit=series.unit,
        since_s=series.points[split].time_s,
        before=before,
        after=after,
        percent=100 * fall,
        noise_percent=100 * noise,
        measurements_before=split,
        measurements_after=len(values) - split,
    )


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the fall that noise may cause, as a share: of the spread of each part around its median."""
    around = [abs(value / median(part) - 1) for part in (before, after) for value in part if median(part) > 0]
    deviation = max(_MAD_TO_DEVIATION * median(around), RUN_TO_RUN)
    # A median of normal values has pi/2 times the variance of their mean.
    return DEVIATIONS * deviation * math.sqrt(math.pi / 2 * (1 / len(before) + 1 / len(after)))


def _of_runs(runs: Sequence[Measurement]) -> Iterable[Series]:
    groups: dict[tuple[Any, ...], list[Measurement]] = defaultdict(list)
    for one in runs:
        if one.is_measured and one.time_s is not None and not one.conditions:
            groups[key(one)].append(one)
    for some in groups.values():
        what = _what(some[0])
        yield Series(what=what, unit="images/sec", points=_points(some, lambda one: one.images_per_sec))
        for place, device in enumerate(some[0].devices if some[0].n_gpus > 1 else ()):
            kind = "GPU" if some[0].backend == "gpu" else "tower"
            points = _points(some, lambda one, place=place: one.devices[place].images_per_sec)
            yield Series(what=f"{kind} {device.number} in {what}", unit="images/sec", points=points)


def _points(runs: Sequence[Measurement], value_of: Any) -> tuple[Point, ...]:
    found = ((one.time_s, value_of(one)) for one in runs)
    return tuple(Point(time, value) for time, value in found if time is not None and value is not None)


def _what(one: Measurement) -> str:
    words = {name: getattr(one, name) for name in _NAMING if getattr(one, name) not in (None, ())}
    words["n_gpus"] = f"on {one.n_gpus} {'GPU' if one.backend == 'gpu' else 'CPU device'}"
    words["n_gpus"] += "s" if one.n_gpus > 1 else ""
    if one.batch_per_gpu is not None:
        words["batch_per_gpu"] = f"batch {one.batch_per_gpu}"
    return " ".join(value_words(name, value) for name, value in words.items())


def _of_links(saved: Sequence[Saved]) -> Iterable[Series]:
    links: dict[str, list[Point]] = defaultdict(list)
    kinds: tuple[Kind, ...] = ("h2d", "d2h")
    for one in saved:
        time = one.bandwidth.measured_at or one.saved_at
        for kind in kinds:
            for gpu, sample in host_copies(one.bandwidth.samples, kind, one.machine).items():
                name = f"host to GPU {gpu}" if kind == "h2d" else f"GPU {gpu} to host"
                links[name].append(Point(time, rate(sample)))
        for source, to, path, speed in single_paths(one.bandwidth.samples):
            links[f"GPU {source} to GPU {to}, {path}"].append(Point(time, speed))
    for name, points in links.items():
        yield Series(what=name, unit="GB/s", points=tuple(points))
