"""Measures one job of a session: its windows, its samples, and the copies that failed."""

import statistics
from collections.abc import Sequence

from gputopo.probes.copy_jobs import (
    Copy,
    CopyJob,
    CopyWindow,
    WindowRunner,
    path_of,
)
from gputopo.probes.session.budget import (
    Effort,
    JobTime,
    Speeds,
    sizes,
)
from gputopo.probes.session.conditions import Meter, WindowReadings, conditions, still_rising
from gputopo.probes.session.jobs import without
from gputopo.probes.session.settling import count_agreeing, count_ramp_up
from gputopo.values.bandwidth import Copied, CopyLatency, CopyRate, Failure

# Additional windows, for repeats that are not counted or do not agree.
EXTRA_REPEATS = 4
# Limit of clock ramp-up during a session (`ramp_up.MAX_S` is for the start).
MAX_RAMP_UP_S = 1.5
ROSE = "clock ramp-up: P-state, clocks or link were lower than in the repeats that are used"
LOW_FIRST = "clock ramp-up: the first repeats were far below all later ones"


def measure_job(
    job: CopyJob, engine: WindowRunner, meter: Meter, speeds: Speeds, effort: Effort
) -> tuple[tuple[Copied, ...], list[Failure]]:
    """Measure a job and return its samples and failures. A group continues without a copy that failed.

    `speeds` records the speed of a copy that ran by itself.
    """
    failures: list[Failure] = []
    while True:
        known_speeds = speeds if job.group is None else speeds.copy()
        windows, readings = _repeats(job, engine, meter, known_speeds, effort)
        wrong = _failed_copies(job, windows[-1])
        if not wrong:
            return tuple(_sample(job, part, windows, readings) for part in _parts(job)), failures
        failures += wrong.values()
        left = without(job, (), list(wrong))
        if left is None or left == job:
            return (), failures
        job = left


def _parts(job: CopyJob) -> list[list[int]]:
    """Return the copies of each sample, by number: one copy in a group, all copies in any other job."""
    places = range(len(job.copies))
    return [[place] for place in places] if job.group is not None else [list(places)]


def _repeats(
    job: CopyJob, engine: WindowRunner, meter: Meter, speeds: Speeds, effort: Effort
) -> tuple[list[CopyWindow], list[WindowReadings]]:
    uncounted = _uncounted_window(job, engine, meter, speeds)
    if _failed_copies(job, uncounted):
        return [uncounted], []
    _learn(job, uncounted, speeds)
    counts = sizes(job, speeds, effort)
    wanted = JobTime.of(job, speeds).repeats(effort)
    windows: list[CopyWindow] = []
    readings: list[WindowReadings] = []
    while len(windows) < wanted + (0 if effort.exact else EXTRA_REPEATS):
        sampler = meter.window(job.gpus)
        windows.append(engine.measure(job, counts, sampler.take))
        readings.append(sampler.readings(windows[-1].span))
        meter.learn(readings[-1])
        if _failed_copies(job, windows[-1]):
            return windows, readings
        counted = windows[still_rising(readings) :]
        agreeing = (count_agreeing(_values(job, part, counted)) for part in _parts(job))
        if len(windows) >= wanted and all(count >= wanted for count in agreeing):
            break
    _learn(job, windows[-1], speeds)
    return windows, readings


def _uncounted_window(job: CopyJob, engine: WindowRunner, meter: Meter, speeds: Speeds) -> CopyWindow:
    """Run the window that is not counted, and after a pause more windows until the clocks have ramped up."""
    counts = sizes(job, speeds, Effort(0.0, 1))
    if not meter.was_idle(job.gpus):
        return engine.measure(job, counts, None)
    begun = meter.now()
    while True:
        sampler = meter.window(job.gpus, counts=False)
        window = engine.measure(job, counts, sampler.take)
        readings = sampler.readings(window.span)
        if _failed_copies(job, window) or not meter.in_ramp_up(readings):
            return window
        if meter.now() - begun > MAX_RAMP_UP_S:
            meter.accept(readings)
            return window


def _learn(job: CopyJob, window: CopyWindow, speeds: Speeds) -> None:
    if job.kind == "latency" or (len(job.copies) > 1 and job.group is None):
        return
    for copy, taken in zip(job.copies, window.copies, strict=True):
        speeds.see(copy, taken.gb_per_s)


def _failed_copies(job: CopyJob, window: CopyWindow) -> dict[Copy, Failure]:
    pairs = zip(job.copies, window.copies, strict=True)
    return {copy: time.failure for copy, time in pairs if time.failure is not None}


def _values(job: CopyJob, part: Sequence[int], windows: Sequence[CopyWindow]) -> list[float]:
    """Return each window's rate for some of its copies: GB/s, or 1/us for a latency."""
    if job.kind == "latency":
        return [1 / us if (us := window.copies[part[0]].microseconds) else 0.0 for window in windows]
    return [sum(window.copies[place].gb_per_s for place in part) for window in windows]


def _sample(
    job: CopyJob, part: Sequence[int], windows: Sequence[CopyWindow], readings: Sequence[WindowReadings]
) -> Copied:
    copies = [job.copies[place] for place in part]
    rising = still_rising(readings)
    values = _values(job, part, windows)
    first = rising + count_ramp_up(values[rising:])
    counted = values[first:]
    middle = statistics.median(counted)
    gpus = dict.fromkeys(gpu for copy in copies for gpu in copy.gpus)
    copy, placed = copies[0], windows[-1].copies[part[0]]
    numa_node = copy.numa_node if placed.numa_node is None else placed.numa_node
    discarded_because = (ROSE if rising else LOW_FIRST) if first else None
    read = conditions(gpus, readings[first:]) if any(readings) else ()
    if job.kind == "latency":
        times = tuple(window.copies[part[0]].microseconds or 0.0 for window in windows[first:])
        latency_us = statistics.median(times)
        return CopyLatency(
            source=copy.source,
            destination=copy.destination,
            bytes=job.bytes,
            pinned=copy.pinned,
            method=copy.method,
            path=path_of(job),
            numa_node=numa_node,
            numa_wanted=placed.numa_wanted,
            median_us=latency_us,
            repeats_us=times,
            spread_percent=_spread(times, latency_us),
            discarded_because=discarded_because,
            conditions=read,
        )
    return CopyRate(
        kind=job.kind,
        source=copy.source,
        destination=copy.destination,
        bytes=sum(windows[-1].copies[place].bytes for place in part),
        pinned=copy.pinned,
        method=copy.method,
        path=path_of(job),
        group=job.group,
        # whether a copy in the other direction runs at the same time; its bytes are not counted
        with_reverse=job.group is not None and copy.ends[::-1] in [other.ends for other in job.copies],
        numa_node=numa_node,
        numa_wanted=placed.numa_wanted,
        median_gb_per_s=middle,
        repeats_gb_per_s=tuple(counted),
        spread_percent=_spread(counted, middle),
        discarded_gb_per_s=tuple(values[:first]),
        discarded_because=discarded_because,
        conditions=read,
    )


def _spread(values: Sequence[float], middle: float) -> float | None:
    return 100 * (max(values) - min(values)) / middle if middle else None
