"""Runs copies before a measurement until the GPUs' clocks have ramped up."""

import time
from collections.abc import Callable

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
) -> str | None:
    """Copy within all GPUs and to all GPUs until the rates are stable. Returns a note if there is one.

    These copies are not measured. The jobs report their failures.
    """
    said = []
    kinds: tuple[CopyKind, ...] = ("d2d_local", "h2d")
    for kind in kinds:
        values, readings = _windows(engine, meter, _job(kind, setting), now)
        thrown_away = max(still_rising(readings), count_ramp_up(values))
        if thrown_away:
            said.append(
                f"{thrown_away} windows of {kind} ({min(values):.1f} to {values[-1]:.1f} GB/s in all)"
            )
    if not said:
        return None
    return "clock ramp-up before the measurement, discarded: " + ", ".join(said)


def _windows(
    engine: WindowRunner, meter: Meter, job: CopyJob, now: Callable[[], float]
) -> tuple[list[float], list[WindowReadings]]:
    """Return the sum of the rates in each window, and the window's readings."""
    values: list[float] = []
    readings: list[WindowReadings] = []
    begun = now()
    counts = sizes(job, Speeds(), _EFFORT)
    copies = tuple(zip(job.copies, counts, strict=True))
    gpus = tuple(gpu for copy in job.copies for gpu in copy.gpus)
    while copies and len(values) < _MAX_WINDOWS:
        window_readings = meter.window(gpus, counts=False)
        trial = CopyJob(kind=job.kind, copies=tuple(copy for copy, _ in copies), group=job.group)
        window = engine.measure(trial, [size for _, size in copies], window_readings.take)
        working = [time.failure is None for time in window.copies]
        if all(working):
            values.append(sum(time.gb_per_s for time in window.copies))
            readings.append(window_readings.readings(window.span))
            meter.learn(readings[-1])
        copies = tuple(copy for copy, works in zip(copies, working, strict=True) if works)
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
