"""One box over time: its runs, links and GPUs, and since when something is worse.

A series holds measurements under the same conditions. Versions of the driver and of TensorFlow may differ;
they are events next to the series. The series is worse since the measurement at which the mean falls by the
largest number of standard errors.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median

import msgspec

from gputopo.measurements.cells import key
from gputopo.measurements.from_ours import of_result
from gputopo.measurements.run_folders import machine_name
from gputopo.runs import Past, Saved
from gputopo.topology import fingerprint
from gputopo.values.bandwidth import Kind
from gputopo.values.box import MIN_SIDE, Box, Event, Point, Series, Worsening
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.rates import host_link_rates, single_paths
from gputopo.values.run.measurement import Measurement
from gputopo.values.run.noise import MAD_TO_SIGMA

# A change is a shift of the mean by this many standard errors, by at least this share, with at least this
# many measurements on each side, outliers excluded. The noise is the scatter of the series, computed as if
# two more measurements had been off by `USUAL_NOISE`, because few measurements do not show it. Simulated with
# 6 to 40 even measurements and 1 to 3 % noise, also with an outlier: one series in 1,000 has a change by
# chance.
DEVIATIONS, USUAL_NOISE = 4.4, 0.03
MIN_CHANGE = 0.03
_MAX_POINTS = 400  # the latest points of a series
_OUTLIER = 3.0  # in deviations: a larger difference counts as this much
# Conditions in the name of a series of runs. Within a series, the other conditions are equal as well.
_NAMING = ("model", "batch_per_gpu", "precision", "variable_update", "ps_device", "all_reduce")


def box_of(
    machine: str | None, runs: Iterable[Measurement], bandwidths: Iterable[Saved] = (), elsewhere: int = 0
) -> Box:
    """Return the history of a machine from its measurements, in any order."""
    ordered = sorted(runs, key=lambda run: run.time_s or 0.0)
    saved = sorted(bandwidths, key=lambda bandwidth: bandwidth.saved_at)
    series = (*_of_runs(ordered), *_of_links(saved))
    events = tuple(_events(ordered, saved))
    changes, low = [], []
    for measured in series:
        if (change := change_of(measured)) is not None:
            before = max(point.time_s for point in measured.points if point.time_s < change.since_s)
            with_events = tuple(event.says for event in events if before < event.time_s <= change.since_s)
            changes.append(msgspec.structs.replace(change, with_events=with_events))
        elif (last := low_last(measured)) is not None:
            low.append(last)
    return Box(
        machine=machine,
        runs=tuple(ordered),
        series=series,
        changes=tuple(sorted(changes, key=lambda change: -change.percent)),
        to_repeat=tuple(sorted(low, key=lambda last: -last.percent)),
        events=events,
        elsewhere=elsewhere,
    )


def history_of_box(machine: Machine, runs: Iterable[Past], bandwidths: Iterable[Saved]) -> Box:
    """Return the history of a machine. `runs`: latest first, also of other machines, which are counted."""
    stored, key, name = list(runs), fingerprint(machine), machine_name(machine)
    gpus = {gpu.index: gpu.name for gpu in machine.gpus if gpu.name}
    measured = [
        of_result(
            run.result,
            source=run.folder,
            machine=name,
            cpu=machine.host.cpu_model,
            gpus=gpus,
            time_s=run.finished_at,
        )
        for run in reversed(stored)
        if run.fingerprint == key
    ]
    return box_of(name, measured, bandwidths, len(stored) - len(measured))


def change_of(series: Series) -> Worsening | None:
    """Return since when a series is worse, or None if it is not worse or noise explains the difference.

    One good measurement after the fall is skipped if it would hide the fall.
    """
    points = series.points[-_MAX_POINTS:]
    last = median(point.value for point in points[-MIN_SIDE:]) if points else 0.0
    changes = (_change(series, part) for part in (points, points[:-1]))
    falls = (change for change in changes if change and last < (change.before + change.after) / 2)
    return next(falls, None)


def _change(series: Series, points: Sequence[Point]) -> Worsening | None:
    """Return the change at the split with the largest shift in standard errors."""
    values = [point.value for point in points]

    def errors(split: int) -> float:
        shift, error = _shift(values[:split], values[split:])
        return shift / error if error else 0.0

    split = max(range(MIN_SIDE, len(values) - MIN_SIDE + 1), key=errors, default=None)
    if split is None:
        return None
    change = _worsening(series, points, split)
    shift = 100 * median(before - after for before in values[:split] for after in values[split:])
    is_worse = shift >= change.before * max(change.noise_percent, 100 * MIN_CHANGE) and change.after > 0
    return change if is_worse else None


def low_last(series: Series) -> Worsening | None:
    """Return the last measurement if only it is below the noise of the others; this is not a change yet."""
    points = series.points[-_MAX_POINTS:]
    if len(points) <= MIN_SIDE:
        return None
    change = _worsening(series, points, len(points) - 1)
    return change if change.percent >= max(change.noise_percent, 100 * MIN_CHANGE) else None


def _worsening(series: Series, points: Sequence[Point], split: int) -> Worsening:
    values = [point.value for point in points]
    before, after = median(values[:split]), median(values[split:])
    _, error = _shift(values[:split], values[split:])
    return Worsening(
        what=series.what,
        unit=series.unit,
        since_s=points[split].time_s,
        before=before,
        after=after,
        percent=100 * (1 - after / before) if before > 0 else 0.0,
        noise_percent=100 * DEVIATIONS * error / before if before > 0 else 0.0,
        measurements_before=split,
        measurements_after=len(points) - split,
    )


def _shift(*parts: Sequence[float]) -> tuple[float, float]:
    """Return by how much the mean fell from the first part to the second, and its standard error.

    Outliers have little weight. A part with too few values without outliers shows no shift.
    """
    middles = [median(part) for part in parts]
    away = [[value - middle for value in part] for part, middle in zip(parts, middles, strict=True)]
    count = sum(map(len, parts))
    usual = 2 * (USUAL_NOISE * middles[0]) ** 2
    typical = MAD_TO_SIGMA * median(abs(value) for part in away for value in part)
    limit = _OUTLIER * math.sqrt((usual + (count - 2) * typical**2) / count)
    within = [[min(max(value, -limit), limit) for value in part] for part in away]
    variance = (usual + sum(value**2 for part in within for value in part)) / count
    before, after = (middle + fmean(part) for middle, part in zip(middles, within, strict=True))
    fewest = min(sum(abs(value) <= limit for value in part) for part in away)
    return (before - after) * (fewest >= MIN_SIDE), math.sqrt(variance * sum(1 / len(part) for part in parts))


def _events(runs: Iterable[Measurement], saved: Iterable[Saved]) -> Iterable[Event]:
    versions = [(run.time_s or 0.0, "TensorFlow", run.version) for run in runs if run.framework == "gputopo"]
    versions += [(run.time_s or 0.0, "driver", run.driver) for run in runs]
    versions += [(then.saved_at, "driver", then.machine.driver.version) for then in saved]
    known: dict[str, str] = {}
    for time, name, version in sorted(seen for seen in versions if seen[2] is not None):
        if version is not None and known.setdefault(name, version) != version:
            yield Event(time_s=time, says=f"{name} {known[name]} to {version}")
            known[name] = version


def _of_runs(runs: Sequence[Measurement]) -> Iterable[Series]:
    groups = grouped(
        (key(run, ("version",)), run)
        for run in runs
        if run.is_measured and run.time_s is not None and not run.conditions
    )
    for alike in groups.values():
        first = alike[0]
        gpus = f" {','.join(map(str, first.gpus))}" if first.gpus else ""
        what = f"{first.job_words(_NAMING)}, {first.gpus_words}{gpus}"
        yield _run_series(what, [(run.time_s, run.images_per_sec) for run in alike])
        for place, device in enumerate(first.devices if first.n_gpus > 1 else ()):
            kind = "GPU" if first.backend == "gpu" else "tower"
            paces = [(run.time_s, run.devices[place].images_per_sec) for run in alike]
            yield _run_series(f"{kind} {device.number} in {what}", paces)


def _run_series(what: str, speeds: Iterable[tuple[float | None, float | None]]) -> Series:
    points = (Point(time, speed) for time, speed in speeds if time is not None and speed is not None)
    return Series(what=what, unit="images/sec", points=tuple(points))


def _of_links(saved: Sequence[Saved]) -> Iterable[Series]:
    links: dict[str, list[Point]] = defaultdict(list)
    kinds: tuple[Kind, ...] = ("h2d", "d2h")
    for then in saved:
        samples, time = then.bandwidth.copies, then.bandwidth.measured_at or then.saved_at
        for kind in kinds:
            for gpu, speed in host_link_rates(samples, kind, then.machine).items():
                name = f"host to GPU {gpu}" if kind == "h2d" else f"GPU {gpu} to host"
                links[name].append(Point(time, speed))
        for (source, to, path), copy in single_paths(samples).items():
            links[f"GPU {source} to GPU {to}, {path}"].append(Point(time, copy.rate))
    for name, points in links.items():
        yield Series(what=name, unit="GB/s", points=tuple(points))
