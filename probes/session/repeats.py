"""Measures one job: a window apart, then repeats until enough of them agree, and the sample made of those."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gputopo.copies.budget import Effort, Speeds, repeats_of, sizes
from gputopo.copies.copies import Job, Way
from gputopo.copies.jobs import gpus_of, path_of, without
from gputopo.copies.settling import settle
from gputopo.probes.session.conditions import Meter, WindowReadings, conditions, still_rising
from gputopo.probes.session.engine import Engine, WayTime, Window
from gputopo.values.bandwidth import Failure, Sample

# Windows beyond those wanted, for repeats that do not count or do not agree.
EXTRA_REPEATS = 4
# For so long a card is waited for that sleeps in the middle of a session (`waking.MOST_S` is for the start).
WAKING_S = 1.5
ROSE = "the card was still waking up: its P-state, clocks or link were lower than in the repeats that count"
LOW_FIRST = "the card was still waking up: the first repeats lay well below all later ones"


class Outcome(NamedTuple):
    """What a job came to. `failed`: the ways that went wrong, in the order of `failures`."""

    samples: tuple[Sample, ...] = ()
    failures: tuple[Failure, ...] = ()
    failed: tuple[Way, ...] = ()


class _Taken(NamedTuple):
    windows: list[Window]
    readings: list[WindowReadings]


def measure_job(job: Job, engine: Engine, meter: Meter, speeds: Speeds, effort: Effort) -> Outcome:
    """Measure a job. A group whose way fails goes on without that way.

    `speeds` learns the speed of a way that ran alone.
    """
    failures: list[Failure] = []
    failed: list[Way] = []
    while True:
        own = speeds if job.group is None else speeds.copy()
        taken = _repeats(job, engine, meter, own, effort)
        wrong = _failed_ways(job, taken.windows[-1])
        if not wrong:
            return Outcome(samples_of(job, taken.windows, taken.readings), tuple(failures), tuple(failed))
        failures += [_failure(job, way, failure) for way, failure in wrong]
        failed += [way for way, _ in wrong]
        left = without(job, frozenset(), [way for way, _ in wrong])
        if left is None or left == job:
            return Outcome((), tuple(failures), tuple(failed))
        job = left


def samples_of(job: Job, windows: Sequence[Window], readings: Sequence[WindowReadings]) -> tuple[Sample, ...]:
    """Make the samples of a job from its windows in the order they were taken. Pure.

    A group gives one sample a way, any other job one in all.
    """
    if job.group is not None:
        places = [[place] for place in range(len(job.ways))]
    else:
        places = [list(range(len(job.ways)))]
    return tuple(_sample(job, part, windows, readings) for part in places)


def values_of(job: Job, place: Sequence[int], windows: Sequence[Window]) -> list[float]:
    """Give the number of each window for some of its ways: GB/s, or 1/us of a latency: higher is faster."""
    return [_value(job, [window.ways[i] for i in place]) for window in windows]


def _repeats(job: Job, engine: Engine, meter: Meter, speeds: Speeds, effort: Effort) -> _Taken:
    gpus = tuple(dict.fromkeys(gpu for way in job.ways for gpu in gpus_of(way)))
    apart = _apart(job, engine, meter, speeds, gpus)
    if _failed_ways(job, apart):
        return _Taken([apart], [])
    _learn(job, apart, speeds)
    counts = sizes(job, speeds, effort)
    wanted = repeats_of(job, speeds, effort)
    taken = _Taken([], [])
    while len(taken.windows) < wanted + EXTRA_REPEATS:
        readings = meter.window(gpus)
        taken.windows.append(engine.measure(job, counts, readings.take))
        taken.readings.append(readings.readings)
        meter.learn(readings.readings)
        if _failed_ways(job, taken.windows[-1]) or not _more(job, taken, wanted):
            break
    if not _failed_ways(job, taken.windows[-1]):
        _learn(job, taken.windows[-1], speeds)
    return taken


def _apart(job: Job, engine: Engine, meter: Meter, speeds: Speeds, gpus: Sequence[int]) -> Window:
    """Run the window that does not count; where a GPU may have gone to sleep, as many as wake it up."""
    counts = sizes(job, speeds, Effort(0.0, 1))
    if not meter.rested(gpus):
        return engine.measure(job, counts, None)
    begun = meter.now()
    while True:
        readings = meter.window(gpus)
        window = engine.measure(job, counts, readings.take)
        if _failed_ways(job, window) or not meter.asleep(readings.readings):
            return window
        if meter.now() - begun > WAKING_S:
            meter.accept(readings.readings)
            return window


def _more(job: Job, taken: _Taken, wanted: int) -> bool:
    """Tell whether enough windows were taken of which all numbers agree."""
    if len(taken.windows) < wanted:
        return True
    awake = taken.windows[still_rising(taken.readings) :]
    parts = [[place] for place in range(len(job.ways))] if job.group else [list(range(len(job.ways)))]
    most = len(taken.windows) + 1  # where to stop is for the caller to say
    return any(settle(values_of(job, part, awake), wanted, most).more for part in parts)


def _learn(job: Job, window: Window, speeds: Speeds) -> None:
    if job.kind == "latency" or (len(job.ways) > 1 and job.group is None):
        return
    for way, time in zip(job.ways, window.ways, strict=True):
        counted = 2 if way.kind == "d2d_local" else 1
        speeds.see(way, time.gb_per_s / counted)


def _failed_ways(job: Job, window: Window) -> list[tuple[Way, Failure]]:
    pairs = zip(job.ways, window.ways, strict=True)
    return [(way, time.failure) for way, time in pairs if time.failure is not None]


def _failure(job: Job, way: Way, failure: Failure) -> Failure:
    """Name the failure by the job it happened in: a way of `bidirectional` is called that."""
    return Failure(
        kind=job.kind,
        source=way.source,
        destination=way.destination,
        reason=failure.reason,
        says=failure.says,
        method=way.method,
        path=path_of(job),
        pinned=way.pinned,
        group=job.group,
    )


def _value(job: Job, times: Sequence[WayTime]) -> float:
    if job.kind == "latency":
        microseconds = times[0].microseconds or 0.0
        return 1 / microseconds if microseconds > 0 else 0.0
    return sum(time.gb_per_s for time in times)  # both directions, each while the other one ran


def _sample(
    job: Job, part: Sequence[int], windows: Sequence[Window], readings: Sequence[WindowReadings]
) -> Sample:
    ways = [job.ways[place] for place in part]
    rising = still_rising(readings)
    values = values_of(job, part, windows)
    settled = settle(values[rising:], 1, len(windows) + 1)
    first = rising + len(settled.discarded)
    counted = values[first:]
    middle = statistics.median(counted)
    gpus = dict.fromkeys(gpu for way in ways for gpu in gpus_of(way))
    sample = Sample(
        kind=job.kind,
        source=ways[0].source,
        destination=ways[0].destination,
        bytes=sum(windows[-1].ways[place].bytes for place in part),
        pinned=ways[0].pinned,
        method=ways[0].method,
        path=path_of(job),
        group=job.group,
        numa_node=ways[0].numa_node,
        spread_percent=100 * (max(counted) - min(counted)) / middle if middle else None,
        discarded_because=(ROSE if rising else LOW_FIRST) if first else None,
        conditions=conditions(gpus, readings[first:]) if any(window.by_gpu for window in readings) else (),
    )
    if job.kind == "latency":
        times = tuple(window.ways[part[0]].microseconds or 0.0 for window in windows[first:])
        return msgspec.structs.replace(
            sample,
            bytes=job.bytes,
            median_us=statistics.median(times),
            repeats_us=times,
            spread_percent=_spread(times),
        )
    return msgspec.structs.replace(
        sample,
        median_gb_per_s=middle,
        repeats_gb_per_s=tuple(counted),
        discarded_gb_per_s=tuple(values[:first]),
    )


def _spread(values: Sequence[float]) -> float | None:
    middle = statistics.median(values)
    return 100 * (max(values) - min(values)) / middle if middle else None
