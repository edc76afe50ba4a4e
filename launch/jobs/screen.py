"""The short runs of a screen: each device alone in alternating order, then all at once, then pairs."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high

from gputopo.launch.jobs.batch_search import WorkerCommand
from gputopo.launch.jobs.run import worker_command
from gputopo.launch.jobs.trials import Trial, run_trial, timed, until_stopped
from gputopo.launch.supervise import run_folder
from gputopo.launch.supervise.sampling import Sampler
from gputopo.values.machine import Machine
from gputopo.values.run.candidate import mode_words
from gputopo.values.run.events import Event, GpuSample, Sample, WarmupDone
from gputopo.values.run.result import DeviceResult, Result
from gputopo.values.run.screen import InRun, Kind, Reading, ScreenRun

FILE = run_folder.SCREEN_FILE
ROUNDS = 3  # of each device alone: of two, Student's t leaves differences below 10 % open
QUICK_S = 120.0  # of all runs of --quick
QUICK_COUNTED_S = 2.0  # of one run of --quick

OpenSampler = Callable[[Sequence[int]], contextlib.AbstractContextManager[Sampler]]


@dataclass(frozen=True)
class Cell:
    """One kind of run of a screen. `numbers`: of its devices, in the order of the towers."""

    kind: Kind
    numbers: tuple[int, ...]
    trial: Trial


def measure(
    cells: Sequence[Cell],
    folder: Path,
    *,
    open_sampler: OpenSampler,
    machine: Machine | None = None,
    budget_s: float | None = None,
    on_run: Callable[[ScreenRun], None] = lambda run: None,
    command: WorkerCommand = worker_command,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[ScreenRun, ...], int, bool]:
    """Run the cells; return the runs, the code of a signal that ended them (0: none), and whether all ran.

    Those of one device run in ROUNDS rounds of alternating order, others once. `budget_s`: seconds; then the
    first round is made in any case, others where their runs and those of several devices will fit in. A cell
    that fails is not run again.
    """
    runs: list[ScreenRun] = []
    began, longest, complete = clock(), 0.0, False

    def fits(count: int) -> bool:
        return budget_s is None or clock() + count * longest <= began + budget_s

    def make(cell: Cell, number: int) -> ScreenRun:
        nonlocal longest
        before = clock()
        run = _run(cell, number, folder, machine, open_sampler, command)
        runs.append(run)
        on_run(run)
        longest = max(longest, clock() - before)
        return run

    def make_all() -> bool:
        alone = [cell for cell in cells if cell.kind == "alone"]
        several = [cell for cell in cells if cell.kind != "alone"]
        all_rounds = True
        for number in range(1, ROUNDS + 1):
            if number > 1 and not fits(len(alone) + len(several)):
                all_rounds = False
                break
            ordered = alone[:: 1 if number % 2 else -1]
            failed = [cell for cell in ordered if make(cell, number).failure is not None]
            alone = [cell for cell in alone if cell not in failed]
        for cell in several:
            if not fits(1):
                return False
            make(cell, 1)
        return all_rounds

    with until_stopped() as ending:
        complete = make_all()
    return tuple(runs), ending.code, complete and not ending.code


def _run(
    cell: Cell,
    number: int,
    folder: Path,
    machine: Machine | None,
    open_sampler: OpenSampler,
    command: WorkerCommand,
) -> ScreenRun:
    """Return what one run measured, or why it failed. Raises StoppedError where a signal ended it."""
    name = "-".join((cell.kind, *map(str, cell.numbers), str(number)))
    path = folder / run_folder.SCREEN / name
    samples: list[GpuSample] = []

    def on_event(event: Event) -> None:
        if isinstance(event, WarmupDone):
            samples.clear()
        elif isinstance(event, Sample):
            samples.extend(event.gpus)

    gpus = [device.gpu for device in cell.trial.spec.devices if device.gpu is not None]
    with open_sampler(gpus if cell.trial.spec.backend == "gpu" else ()) as sampler:
        result = run_trial(cell.trial, path, machine, command, sampler=sampler, on_event=on_event)
    found = timed(result)
    speed, failure = (None, found) if isinstance(found, str) else (found, None)
    return ScreenRun(
        kind=cell.kind,
        round=number,
        mode=mode_words(cell.trial.candidate),
        folder=f"{run_folder.SCREEN}/{name}",
        devices=tuple(_devices(cell, result, samples)),
        images_per_sec=None if speed is None else speed.images_per_sec,
        noise=None if speed is None else speed.noise,
        failure=failure,
    )


def _devices(cell: Cell, result: Result, samples: Sequence[GpuSample]) -> Iterator[InRun]:
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
            reading=_reading(row, [one for one in samples if one.gpu == row.device.gpu]),
            verdict=row.verdict if len(cell.numbers) > 1 else None,
        )


def _reading(row: DeviceResult, samples: Sequence[GpuSample]) -> Reading:
    def middle(field: str) -> float | None:
        known = [value for one in samples if (value := getattr(one, field)) is not None]
        return median_high(known) if known else None

    return Reading(
        graphics_mhz=row.graphics_mhz,
        graphics_percent=row.graphics_percent,
        memory_mhz=row.memory_mhz,
        memory_percent=row.memory_percent,
        **{field: middle(field) for field in ("temperature_c", "power_w", "pcie_gen", "pcie_width")},
    )
