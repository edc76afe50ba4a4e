"""The short runs of a screen: each device by itself in alternating order, then all together, then pairs."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputopo.launch.jobs.budget import TimeBudget
from gputopo.launch.jobs.run import Display
from gputopo.launch.jobs.screen_order import alone_order, stages
from gputopo.launch.jobs.trials import (
    Trial,
    mode_ran,
    run_trial,
    timed,
    until_stopped,
)
from gputopo.launch.supervise import run_folder
from gputopo.runs import RunReadings
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import SCREEN_RUNS, InRun, Kind, ScreenRun

FILE = run_folder.SCREEN_FILE
QUICK_S = 120.0  # for all runs of --quick
QUICK_COUNTED_S = 2.0  # for one run of --quick


@dataclass(frozen=True)
class ScreenCell:
    """One kind of run of a screen. `numbers`: its devices, in the order of the towers."""

    kind: Kind
    numbers: tuple[int, ...]
    trial: Trial


def measure_cells(
    cells: Sequence[ScreenCell],
    folder: Path,
    *,
    budget_s: float | None = None,
    without: Callable[[ScreenCell, Sequence[int]], ScreenCell | None] = lambda cell, numbers: None,
    on_run: Callable[[ScreenRun, tuple[ScreenRun, ...]], None] = lambda run, runs: None,
    display: Display | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[ScreenRun, ...], int, bool]:
    """Run the cells; return the runs, a signal's exit code (0: none), and whether all ran.

    The order is that of `screen_order`. `budget_s`: limit in seconds. A cell that fails is not run again. If
    devices failed by themselves, a cell of several devices is run with `without(cell, numbers)`, which has
    the other devices, if that returns a cell. `on_run`: gets each run, and all runs so far.
    `display`: shows a run while it lasts.
    """
    budget = TimeBudget(budget_s, clock)
    runs: list[ScreenRun] = []
    complete = True

    def make(wanted: Sequence[ScreenCell], number: int, *, whole: bool = False) -> None:
        """Run cells as far as they end in time; `whole`: all or none."""
        nonlocal complete
        for cell in wanted:
            if not budget.fits(len(wanted) if whole and cell is wanted[0] else 1):
                complete = False
                return
            runs.append(budget.timed(partial(_run, cell, number, folder, display)))
            on_run(runs[-1], tuple(runs))

    with until_stopped() as ending:
        for stage in stages(budget_s is not None):
            failed = _failed_alone(runs)
            wanted = [cell for cell in cells if cell.kind in stage.kinds and not failed & set(cell.numbers)]
            if stage.kinds == ("alone",):
                by_number = {cell.numbers[0]: cell for cell in wanted}
                verdicts = ((device.number, device.verdict) for run in runs for device in run.devices)
                words = {number: verdict.word for number, verdict in verdicts if verdict is not None}
                wanted = [by_number[number] for number in alone_order(list(by_number), stage.number, words)]
            make(wanted, stage.number, whole=stage.whole)
        failed = _failed_alone(runs)
        for cell in cells:  # the cells of all devices again, without the devices that failed
            left = [number for number in cell.numbers if number not in failed]
            if cell.kind in ("independent", "together") and 1 < len(left) < len(cell.numbers):
                smaller = without(cell, left)
                make([] if smaller is None else [smaller], 1)
    return tuple(runs), ending.code, complete and not ending.code


def _failed_alone(runs: Sequence[ScreenRun]) -> set[int]:
    """Return the devices that failed by themselves."""
    return {run.devices[0].number for run in runs if run.kind == "alone" and run.failure}


def _run(cell: ScreenCell, number: int, folder: Path, display: Display | None) -> ScreenRun:
    """Return what one run measured, or why it failed. Raises StoppedError if a signal ended it."""
    name = "-".join((cell.kind, *map(str, cell.numbers), str(number)))
    readings = RunReadings(cell.trial.spec.devices)
    result = run_trial(cell.trial, folder / SCREEN_RUNS / name, display=display, note=readings.add)
    speed_or_cause = timed(result)
    speed, failure = (None, speed_or_cause) if isinstance(speed_or_cause, str) else (speed_or_cause, None)
    return ScreenRun(
        kind=cell.kind,
        round=number,
        mode=mode_ran(cell.trial, result),
        folder=f"{SCREEN_RUNS}/{name}",
        devices=tuple(_devices(cell, result, readings)),
        images_per_sec=None if speed is None else speed.images_per_sec,
        noise=None if speed is None else speed.noise,
        failure=failure,
        busy=None if result.host_load is None else result.host_load.busy,
    )


def _devices(cell: ScreenCell, result: Result, readings: RunReadings) -> Iterator[InRun]:
    rows = {row.device.tower: row for row in result.devices}
    alone = result.throughput.median if len(cell.numbers) == 1 and result.throughput is not None else None
    for tower, number in enumerate(cell.numbers):
        row = rows.get(tower)
        if row is None:
            yield InRun(number=number)
            continue
        yield InRun(
            number=number,
            images_per_sec=alone or row.images_per_sec,
            reading=readings.of_device(row),
            verdict=row.verdict if len(cell.numbers) > 1 else None,
        )
