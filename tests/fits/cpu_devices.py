"""Fits the constants of logical CPU devices to runs of gputopo (`gputopo/reference/data/cpu_devices.csv`).

The runs: batches of 4, 1 and 32 examples, medians of one or two, in alternating order on a machine with other
work, before which they had priority.

Only differences between the modes of one job count: what is common to them is computing, which the runs of
one device show. `python -m tests.fits.programs` calls it.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple, cast

import msgspec

from gputopo.planner.cpu_devices import CpuDevices, cpu_devices, predict
from gputopo.prediction.calibration import least_squares
from gputopo.prediction.step import Placement, model_of
from gputopo.values.run.plan import VariableUpdate
from gputopo.workload.workloads import require

BOUNDS = ((2.0, 100.0), (1.0, 500.0), (10.0, 10000.0))  # GB/s, us, us
START = (10.0, 20.0, 500.0)
COVERED = 0.9  # of the runs are inside low to high


class CpuRun(NamedTuple):
    """A run, or the median of several.

    `noise`: half of their range over the median; of one run, two standard errors of its steps.
    """

    model: str
    batch: int
    devices: int
    placing: Placement
    images_per_sec: float
    noise: float

    @property
    def job(self) -> tuple[str, int, int]:
        """What is common to runs that differ in mode alone."""
        return self.model, self.batch, self.devices

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.devices * self.batch / self.images_per_sec


def cpu_runs() -> tuple[CpuRun, ...]:
    """Return all runs."""
    text = resources.files("gputopo.reference.data").joinpath("cpu_devices.csv").read_text(encoding="utf-8")
    return tuple(
        CpuRun(
            row["model"],
            int(row["batch"]),
            int(row["devices"]),
            Placement(
                cast(VariableUpdate, row["variable_update"]),
                row["ps_device"] or None,
                row["all_reduce"] or None,
            ),
            float(row["images_per_sec"]),
            float(row["noise"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


def by_job(runs: Iterable[CpuRun]) -> Mapping[tuple[str, int, int], list[CpuRun]]:
    """Return the runs of several devices by what they have in common."""
    found = defaultdict(list)
    for run in runs:
        if run.devices > 1:
            found[run.job].append(run)
    return found


def predicted_s(run: CpuRun, alone_s: float, constants: CpuDevices) -> float:
    """Return the seconds of a run's step by those of one device's alone."""
    return predict(model_of(require(run.model)), run.placing, run.devices, alone_s, constants).step_s


def alone_seconds(runs: Sequence[CpuRun]) -> Mapping[tuple[str, int], float]:
    """Return the seconds of a step of one device, by model and batch."""
    return {(run.model, run.batch): run.step_s for run in runs if run.devices == 1}


def fitted(runs: Sequence[CpuRun]) -> CpuDevices:
    """Return the constants by which the modes of each job differ as they were measured to."""
    alone, jobs, start = alone_seconds(runs), by_job(runs), cpu_devices()

    def with_values(values: Sequence[float]) -> CpuDevices:
        rate, op, collective = (math.exp(value) for value in values)
        return msgspec.structs.replace(start, memory_gb_per_s=rate, us_op=op, us_collective=collective)

    def errors(values: Sequence[float]) -> list[float]:
        constants, found = with_values(values), []
        for same in jobs.values():
            computing = [run.step_s - predicted_s(run, 0.0, constants) for run in same]
            found += [(one - fmean(computing)) / fmean(run.step_s for run in same) for one in computing]
        return found

    bounds = [(math.log(low), math.log(high)) for low, high in BOUNDS]
    best = with_values(least_squares(errors, list(map(math.log, START)), bounds))
    constants = msgspec.structs.replace(
        best,
        memory_gb_per_s=_short(best.memory_gb_per_s),
        us_op=_short(best.us_op),
        us_collective=_short(best.us_collective),
        at_once=1.0,
    )
    shares = []
    for job, same in jobs.items():
        beside, whole = (fmean(predicted_s(run, s, constants) for run in same) for s in (0.0, alone[job[:2]]))
        shares.append((fmean(run.step_s for run in same) - beside) / (whole - beside))
    constants = msgspec.structs.replace(constants, at_once=_short(median(shares)))
    ratios = sorted(
        predicted_s(run, alone[job[:2]], constants) / run.step_s for job, same in jobs.items() for run in same
    )
    outside = round((1 - COVERED) / 2 * len(ratios))
    return msgspec.structs.replace(
        constants,
        low=round(min(1.0, ratios[outside]), 2),
        high=round(max(1.0, ratios[-1 - outside]), 2),
    )


def pairs_in_order(runs: Sequence[CpuRun], constants: CpuDevices) -> tuple[int, int]:
    """Return how many pairs of modes differ beyond noise, and how many of them were predicted in this order.

    Beyond noise: the runs' ranges do not meet, and the prediction tells them apart.
    """
    alone, right, told = alone_seconds(runs), 0, 0
    for job, same in by_job(runs).items():
        for one, other in combinations(same, 2):
            measured = math.log(one.step_s / other.step_s)
            predicted = math.log(
                predicted_s(one, alone[job[:2]], constants) / predicted_s(other, alone[job[:2]], constants)
            )
            if abs(measured) > one.noise + other.noise and abs(predicted) > 1e-9:
                told += 1
                right += (measured > 0) == (predicted > 0)
    return told, right


def report(runs: Sequence[CpuRun]) -> str:
    """Return the constants and errors in words."""
    constants, alone = fitted(runs), alone_seconds(runs)
    off = [
        abs(predicted_s(run, alone[run.job[:2]], constants) / run.step_s - 1)
        for run in runs
        if run.devices > 1
    ]
    told, right = pairs_in_order(runs, constants)
    others = [left_out(runs, model) for model in sorted({run.model for run in runs})]
    return "\n".join(
        (
            f"{constants.name}: {len(off)} runs of several devices",
            f"  memory_gb_per_s {constants.memory_gb_per_s:g}, us_op {constants.us_op:g}, "
            f"us_collective {constants.us_collective:g}, "
            f"at_once {constants.at_once:g}, "
            f"low {constants.low:g}, high {constants.high:g}",
            f"  error of images/sec: median {median(off):.1%}, largest {max(off):.1%}",
            f"  pairs of modes that differ beyond noise: {told}, in the predicted order: {right}; each model "
            f"left out: {sum(found for _, found in others)} of {sum(count for count, _ in others)}",
        )
    )


def left_out(runs: Sequence[CpuRun], model: str) -> tuple[int, int]:
    """Return `pairs_in_order` of a model by constants that were fitted without it."""
    constants = fitted([run for run in runs if run.model != model])
    return pairs_in_order([run for run in runs if run.model == model], constants)


def _short(value: float) -> float:
    return float(f"{value:.3g}")
