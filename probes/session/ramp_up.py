"""Runs copies before a measurement until the GPUs' clocks have ramped up."""

import time
from collections.abc import Callable

from msgspec.structs import replace

from gputopo.probes.copy_jobs import Copy, CopyJob, CopyKind, Setting, WindowRunner, group_name
from gputopo.probes.session.budget import Effort, Speeds, sizes
from gputopo.probes.session.conditions import Meter, WindowReadings, still_rising
from gputopo.probes.session.settling import count_agreeing, count_ramp_up
from gputopo.values.ends import HOST, End

# The shortest and the longest duration. A card takes some tenths of a second from P8 to its full clocks, and
# its first windows agree because all of them are slow.
MIN_S = 0.25
MAX_S = 1.5
_AGREEING = 4  # windows in a row whose rates agree
_MAX_WINDOWS = 400
_EFFORT = Effort(0.0, 1)


def ramp_up(
    engine: WindowRunner,
    meter: Meter,
    setting: Setting,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[str, ...]:
    """Copy within all GPUs and to all GPUs until the rates are stable. Return a note if any was discarded.

    These copies are not measured. The jobs report their failures.
    """
    discarded = []
    kinds: tuple[CopyKind, ...] = ("d2d_local", "h2d")
    for kind in kinds:
        values, readings = _windows(engine, meter, _job(kind, setting), now)
        if count := max(still_rising(readings), count_ramp_up(values)):
            rates = f"{min(values):.1f} to {values[-1]:.1f} GB/s in all"
            discarded.append(f"{count} windows of {kind} ({rates})")
    note = "clock ramp-up before the measurement, discarded: " + ", ".join(discarded)
    return (note,) if discarded else ()


def _windows(
    engine: WindowRunner, meter: Meter, job: CopyJob, now: Callable[[], float]
) -> tuple[list[float], list[WindowReadings]]:
    """Return the sum of the rates in each window, and the window's readings."""
    values: list[float] = []
    readings: list[WindowReadings] = []
    begun = now()
    size_of = dict(zip(job.copies, sizes(job, Speeds(), _EFFORT), strict=True))
    copies = job.copies
    while copies and len(values) < _MAX_WINDOWS:
        window_readings = meter.window(job.gpus, counts=False)
        trial = replace(job, copies=copies)
        window = engine.measure(trial, [size_of[copy] for copy in copies], window_readings.take)
        working = tuple(
            copy for copy, time in zip(copies, window.copies, strict=True) if time.failure is None
        )
        if working == copies:
            values.append(sum(time.gb_per_s for time in window.copies))
            readings.append(window_readings.readings(window.span))
            meter.learn(readings[-1])
        copies = working
        passed = now() - begun
        stays = count_agreeing(values[-_AGREEING:]) == _AGREEING
        if passed > MAX_S or (passed > MIN_S and stays):
            break
    return values, readings


def _job(kind: CopyKind, setting: Setting) -> CopyJob:
    copies = []
    for gpu in setting.gpus:
        place = End.of_gpus(gpu)
        if kind == "d2d_local":
            copies.append(Copy(kind=kind, source=place, destination=place))
        else:
            node = setting.nodes.get(gpu)
            copies.append(Copy(kind=kind, source=HOST, destination=place, pinned=True, numa_node=node))
    return CopyJob(kind=kind, copies=tuple(copies), group=group_name(kind, setting.gpus))
