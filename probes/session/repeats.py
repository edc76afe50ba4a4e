"""Measures one job: a window apart, then repeats until enough of them agree, and the sample made of those."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gputopo.copies.budget import Effort, Speeds, repeats_of, sizes
from gputopo.copies.copies import Copy, Job
from gputopo.copies.jobs import gpus_of, path_of, without
from gputopo.copies.settling import settle
from gputopo.probes.session.conditions import Meter, WindowReadings, conditions, still_rising
from gputopo.probes.session.engine import CopyTime, Engine, Window
from gputopo.values.bandwidth import Failure, Sample

# Windows beyond those wanted, for repeats that do not count or do not agree.
EXTRA_REPEATS = 4
# Limit of clock ramp-up in the middle of a session (`ramp_up.MAX_S` is for the start).
MAX_RAMP_UP_S = 1.5
ROSE = "clock ramp-up: P-state, clocks or link were lower than in the repeats that count"
LOW_FIRST = "clock ramp-up: the first repeats were far below all later ones"


class Outcome(NamedTuple):
    """What a job came to. `failed`: the copies that went wrong, in the order of `failures`."""

    samples: tuple[Sample, ...] = ()
    failures: tuple[Failure, ...] = ()
    failed: tuple[Copy, ...] = ()


class _Taken(NamedTuple):
    windows: list[Window]
    readings: list[WindowReadings]


def measure_job(job: Job, engine: Engine, meter: Meter, speeds: Speeds, effort: Effort) -> Outcome:
    """Measure a job. A group whose copy fails goes on without that copy.

    `speeds` learns the speed of a copy that ran alone.
    """
    failures: list[Failure] = []
    failed: list[Copy] = []
    while True:
        own = speeds if job.group is None else speeds.copy()
        taken = _repeats(job, engine, meter, own, effort)
        wrong = _failed_copies(job, taken.windows[-1])
        if not wrong:
            return Outcome(samples_of(job, taken.windows, taken.readings), tuple(failures), tuple(failed))
        failures += [failure_of(job, copy, failure) for copy, failure in wrong]
        failed += [copy for copy, _ in wrong]
        left = without(job, frozenset(), [copy for copy, _ in wrong])
        if left is None or left == job:
            return Outcome((), tuple(failures), tuple(failed))
        job = left


def samples_of(job: Job, windows: Sequence[Window], readings: Sequence[WindowReadings]) -> tuple[Sample, ...]:
    """Make the samples of a job from its windows in the order they were taken. Pure.

    A group has one sample a copy, any other job one in all.
    """
    if job.group is not None:
        places = [[place] for place in range(len(job.copies))]
    else:
        places = [list(range(len(job.copies)))]
    return tuple(_sample(job, part, windows, readings) for part in places)


def values_of(job: Job, place: Sequence[int], windows: Sequence[Window]) -> list[float]:
    """Return the number of each window for some of its copies.

    GB/s, or 1/us of a latency: higher is faster.
    """
    return [_value(job, [window.copies[i] for i in place]) for window in windows]


def _repeats(job: Job, engine: Engine, meter: Meter, speeds: Speeds, effort: Effort) -> _Taken:
    gpus = tuple(dict.fromkeys(gpu for copy in job.copies for gpu in gpus_of(copy)))
    apart = _apart(job, engine, meter, speeds, gpus)
    if _failed_copies(job, apart):
        return _Taken([apart], [])
    _learn(job, apart, speeds)
    counts = sizes(job, speeds, effort)
    wanted = repeats_of(job, speeds, effort)
    taken = _Taken([], [])
    while len(taken.windows) < wanted + (0 if effort.exact else EXTRA_REPEATS):
        asked = meter.window(gpus)
        taken.windows.append(engine.measure(job, counts, asked.take))
        taken.readings.append(asked.readings(taken.windows[-1].span))
        meter.learn(taken.readings[-1])
        if _failed_copies(job, taken.windows[-1]) or not _more(job, taken, wanted):
            break
    if not _failed_copies(job, taken.windows[-1]):
        _learn(job, taken.windows[-1], speeds)
    return taken


def _apart(job: Job, engine: Engine, meter: Meter, speeds: Speeds, gpus: Sequence[int]) -> Window:
    """Run the window that does not count; after a pause, as many as the clocks need to ramp up."""
    counts = sizes(job, speeds, Effort(0.0, 1))
    if not meter.was_idle(gpus):
        return engine.measure(job, counts, None)
    begun = meter.now()
    while True:
        asked = meter.window(gpus, counts=False)
        window = engine.measure(job, counts, asked.take)
        readings = asked.readings(window.span)
        if _failed_copies(job, window) or not meter.in_ramp_up(readings):
            return window
        if meter.now() - begun > MAX_RAMP_UP_S:
            meter.accept(readings)
            return window


def _more(job: Job, taken: _Taken, wanted: int) -> bool:
    """Return whether enough windows were taken of which all numbers agree."""
    if len(taken.windows) < wanted:
        return True
    counted = taken.windows[still_rising(taken.readings) :]
    parts = [[place] for place in range(len(job.copies))] if job.group else [list(range(len(job.copies)))]
    limit = len(taken.windows) + 1  # the caller decides where to stop
    return any(settle(values_of(job, part, counted), wanted, limit).more for part in parts)


def _learn(job: Job, window: Window, speeds: Speeds) -> None:
    if job.kind == "latency" or (len(job.copies) > 1 and job.group is None):
        return
    for copy, time in zip(job.copies, window.copies, strict=True):
        counted = 2 if copy.kind == "d2d_local" else 1
        speeds.see(copy, time.gb_per_s / counted)


def _failed_copies(job: Job, window: Window) -> list[tuple[Copy, Failure]]:
    pairs = zip(job.copies, window.copies, strict=True)
    return [(copy, time.failure) for copy, time in pairs if time.failure is not None]


def failure_of(job: Job, copy: Copy, failure: Failure) -> Failure:
    """Name the failure by the job it happened in: a copy of `bidirectional` is called that."""
    return Failure(
        kind=job.kind,
        source=copy.source,
        destination=copy.destination,
        reason=failure.reason,
        says=failure.says,
        method=copy.method,
        path=path_of(job),
        pinned=copy.pinned,
        group=job.group,
    )


def _value(job: Job, times: Sequence[CopyTime]) -> float:
    if job.kind == "latency":
        microseconds = times[0].microseconds or 0.0
        return 1 / microseconds if microseconds > 0 else 0.0
    return sum(time.gb_per_s for time in times)  # both directions, each while the other one ran


def _sample(
    job: Job, part: Sequence[int], windows: Sequence[Window], readings: Sequence[WindowReadings]
) -> Sample:
    copies = [job.copies[place] for place in part]
    rising = still_rising(readings)
    values = values_of(job, part, windows)
    settled = settle(values[rising:], 1, len(windows) + 1)
    first = rising + len(settled.discarded)
    counted = values[first:]
    middle = statistics.median(counted)
    gpus = dict.fromkeys(gpu for copy in copies for gpu in gpus_of(copy))
    lies = windows[-1].copies[part[0]]
    sample = Sample(
        kind=job.kind,
        source=copies[0].source,
        destination=copies[0].destination,
        bytes=sum(windows[-1].copies[place].bytes for place in part),
        pinned=copies[0].pinned,
        method=copies[0].method,
        path=path_of(job),
        group=job.group,
        with_reverse=_with_reverse(job, copies[0]),
        numa_node=copies[0].numa_node if lies.numa_node is None else lies.numa_node,
        numa_wanted=lies.numa_wanted,
        spread_percent=100 * (max(counted) - min(counted)) / middle if middle else None,
        discarded_because=(ROSE if rising else LOW_FIRST) if first else None,
        conditions=conditions(gpus, readings[first:]) if any(window.by_gpu for window in readings) else (),
    )
    if job.kind == "latency":
        times = tuple(window.copies[part[0]].microseconds or 0.0 for window in windows[first:])
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


def _with_reverse(job: Job, copy: Copy) -> bool:
    """Return whether a copy of the other direction runs at the same time, whose bytes do not count."""
    ways = {(other.source, other.destination) for other in job.copies}
    return job.group is not None and (copy.destination, copy.source) in ways


def _spread(values: Sequence[float]) -> float | None:
    middle = statistics.median(values)
    return 100 * (max(values) - min(values)) / middle if middle else None
