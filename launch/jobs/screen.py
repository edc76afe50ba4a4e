"""The short runs of a screen: each device by itself in alternating order, then all together, then pairs."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputopo.launch.jobs.budget import TimeBudget
from gputopo.launch.jobs.screen_order import Stage, alone_order, stages
from gputopo.launch.jobs.trials import (
    Display,
    Trial,
    mode_ran,
    no_display,
    run_trial,
    timed,
    until_stopped,
)
from gputopo.launch.supervise import run_folder
from gputopo.launch.supervise.sampling import RunSampler
from gputopo.runs import RunReadings
from gputopo.values.machine import Machine
from gputopo.values.run.events import Event
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import SCREEN_RUNS, InRun, Kind, ScreenRun

FILE = run_folder.SCREEN_FILE
QUICK_S = 120.0  # for all runs of --quick
QUICK_COUNTED_S = 2.0  # for one run of --quick

Clock = Callable[[], float]
OpenSampler = Callable[[Sequence[int]], contextlib.AbstractContextManager[RunSampler]]


@dataclass(frozen=True)
class ScreenCell:
    """One kind of run of a screen. `numbers`: its devices, in the order of the towers."""

    kind: Kind
    numbers: tuple[int, ...]
    trial: Trial


class _Series:
    """The runs of a screen so far, and how long they took."""

    def __init__(
        self, run: Callable[[ScreenCell, int], ScreenRun], limit_s: float | None, clock: Clock
    ) -> None:
        self._run = run
        self._budget = TimeBudget(limit_s, clock)
        self.runs: list[ScreenRun] = []
        self.left_out = False

    def fits(self, count: int) -> bool:
        """Return whether `count` more runs end in time; if not, note that runs are skipped."""
        fit = self._budget.fits(count)
        self.left_out = self.left_out or not fit
        return fit

    def make(self, cell: ScreenCell, number: int) -> None:
        """Run a cell."""
        self.runs.append(self._budget.timed(partial(self._run, cell, number)))

    def failed(self) -> set[int]:
        """Return the devices that failed by themselves."""
        return {run.devices[0].number for run in self.runs if run.kind == "alone" and run.failure}

    def words(self) -> dict[int, str]:
        """Return the verdicts from the runs of several devices, by device."""
        found = ((one.number, one.verdict) for run in self.runs for one in run.devices)
        return {number: verdict.word for number, verdict in found if verdict is not None}


def measure(
    cells: Sequence[ScreenCell],
    folder: Path,
    *,
    open_sampler: OpenSampler,
    machine: Machine | None = None,
    budget_s: float | None = None,
    without: Callable[[ScreenCell, Sequence[int]], ScreenCell | None] = lambda cell, numbers: None,
    on_run: Callable[[ScreenRun, tuple[ScreenRun, ...]], None] = lambda run, runs: None,
    display: Display = no_display,
    clock: Clock = time.monotonic,
) -> tuple[tuple[ScreenRun, ...], int, bool]:
    """Run the cells; return the runs, a signal's exit code (0: none), and whether all ran.

    The order is that of `screen_order`. `budget_s`: limit in seconds. A cell that fails is not run again. If
    devices failed by themselves, a cell of several devices is run with `without(cell, numbers)`, which has
    the other devices, if that returns a cell. `on_run`: gets each run, and all runs so far.
    `display`: shows a run while it lasts.
    """
    ran: list[ScreenRun] = []

    def run(cell: ScreenCell, number: int) -> ScreenRun:
        made = _run(cell, number, folder, machine, open_sampler, display)
        ran.append(made)
        on_run(made, tuple(ran))
        return made

    series = _Series(run, budget_s, clock)
    with until_stopped() as ending:
        for stage in stages(budget_s is not None):
            _make_stage(stage, cells, series)
        _make_again(cells, series, without)
    return tuple(ran), ending.code, not series.left_out and not ending.code


def _make_stage(stage: Stage, cells: Sequence[ScreenCell], series: _Series) -> None:
    failed = series.failed()
    wanted = [cell for cell in cells if cell.kind in stage.kinds and not failed & set(cell.numbers)]
    if stage.kinds == ("alone",):
        by_number = {cell.numbers[0]: cell for cell in wanted}
        devices = alone_order(list(by_number), stage.number, series.words())
        wanted = [by_number[number] for number in devices]
    if stage.whole and not series.fits(len(wanted)):
        return
    for cell in wanted:
        if not series.fits(1):
            return
        series.make(cell, stage.number)


def _make_again(
    cells: Sequence[ScreenCell],
    series: _Series,
    without: Callable[[ScreenCell, Sequence[int]], ScreenCell | None],
) -> None:
    """Run the cells of all devices again without the devices that failed by themselves."""
    failed = series.failed()
    for cell in cells:
        left = [number for number in cell.numbers if number not in failed]
        if cell.kind not in ("independent", "together") or len(left) in (0, 1, len(cell.numbers)):
            continue
        smaller = without(cell, left)
        if smaller is not None and series.fits(1):
            series.make(smaller, 1)


def _run(
    cell: ScreenCell,
    number: int,
    folder: Path,
    machine: Machine | None,
    open_sampler: OpenSampler,
    display: Display,
) -> ScreenRun:
    """Return what one run measured, or why it failed. Raises StoppedError if a signal ended it."""
    name = "-".join((cell.kind, *map(str, cell.numbers), str(number)))
    path = folder / SCREEN_RUNS / name
    readings = RunReadings(cell.trial.spec.devices)
    gpus = [device.gpu for device in cell.trial.spec.devices if device.gpu is not None]
    with open_sampler(gpus if cell.trial.spec.backend == "gpu" else ()) as sampler, display() as show:

        def on_event(event: Event) -> None:
            readings.add(event)
            show(event)

        result = run_trial(cell.trial, path, machine, sampler=sampler, on_event=on_event)
    found = timed(result)
    speed, failure = (None, found) if isinstance(found, str) else (found, None)
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
