"""Runs the cells of a sweep one after another; the manifest is written before and after each."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gputopo.launch.jobs.budget import TimeBudget
from gputopo.launch.jobs.screen import OpenSampler
from gputopo.launch.jobs.trials import (
    Display,
    Trial,
    mode_ran,
    no_display,
    run_trial,
    timed,
    until_stopped,
)
from gputopo.launch.supervise import signals
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.run.events import OTHER_CPU_SHARE
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import BY_TIME, EXAMPLES, MANIFEST, Sweep, SweepCell

FILE, DATA = MANIFEST, EXAMPLES
COOLING_LIMIT_S = 600.0  # limit of the wait for a temperature, because the room may be too warm for it
COOLING_LOOK_S = 2.0  # between two readings


@dataclass(frozen=True)
class Pause:
    """The wait and the checks before each cell."""

    seconds: float = 0.0
    below_c: float | None = None  # for all GPUs
    temperature_c: Callable[[], float | None] = lambda: None  # of the hottest GPU; None: not readable
    other_cpu_share: Callable[[], float | None] = lambda: None  # share of all cores, used by other processes
    sleep: Callable[[float], None] = time.sleep


class Course:
    """A running sweep: the manifest with the results so far, in its file."""

    def __init__(self, sweep: Sweep, folder: Path, budget: TimeBudget) -> None:
        self.sweep = sweep
        self.folder = folder
        self.budget = budget
        self._before = sweep.seconds

    def cell(self, number: int) -> SweepCell:
        """Return the current state of a cell."""
        return next(cell for cell in self.sweep.cells if cell.number == number)

    def change(self, number: int, **fields: Any) -> SweepCell:
        """Change a cell and write the manifest; return the cell. Raises InputError."""
        found = msgspec.structs.replace(self.cell(number), **fields)
        cells = tuple(found if cell.number == number else cell for cell in self.sweep.cells)
        self.write(cells=cells)
        return found

    def write(self, **fields: Any) -> None:
        """Change the manifest and write it completely or not at all. Raises InputError."""
        self.sweep = msgspec.structs.replace(
            self.sweep, **fields, seconds=round(self._before + self.budget.used, 3)
        )
        schema.write(self.folder / FILE, self.sweep)


def run_cells(
    sweep: Sweep,
    order: Sequence[int],
    trials: Mapping[int, Trial],
    folder: Path,
    *,
    open_sampler: OpenSampler,
    machine: Machine | None = None,
    pause: Pause = Pause(),
    on_cell: Callable[[SweepCell, Result, Sweep], None] = lambda cell, result, sweep: None,
    on_wait: Callable[[str], None] = lambda says: None,
    display: Display = no_display,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Sweep, int]:
    """Run the pending cells of a sweep; return it and a signal's exit code (0: none).

    `order`: the numbers of the cells; `trials`: the runs of cells that can run. A cell that was running when
    the sweep was killed runs again, in an empty folder. A cell that would exceed the remaining time budget is
    not started, and the cells after it are not started either. `on_cell`: gets each cell that ended, with its
    result. `display`: shows a cell while it runs. Raises GputopoError if files cannot be written.
    """
    course = Course(sweep, folder, TimeBudget(sweep.budget_left_s, clock))

    def run(number: int, *, first: bool) -> None:
        cell = course.cell(number)
        hottest = _cooled(pause, on_wait, first=first)
        other = pause.other_cpu_share()
        course.change(
            number, state="running", began_at=time.time(), other_cpu_share=other, temperature_c=hottest
        )
        shutil.rmtree(folder / cell.folder, ignore_errors=True)
        before, trial = course.budget.used, trials[number]
        gpus = [device.gpu for device in trial.spec.devices if device.gpu is not None]
        with open_sampler(gpus if trial.spec.backend == "gpu" else ()) as sampler, display() as on_event:
            place = folder / cell.folder
            result = run_trial(trial, place, machine, sampler=sampler, on_event=on_event)
        with signals.deferred():
            seconds = round(course.budget.used - before, 3)
            mode = {} if cell.mode is None else {"mode": mode_ran(trial, result)}
            changed = course.change(number, **_outcome(result, other), **mode, seconds=seconds)
            on_cell(changed, result, course.sweep)

    ended: str | None = None
    with until_stopped() as ending:
        wanted = [number for number in order if course.cell(number).state in ("pending", "running")]
        for number in wanted:
            if not course.budget.fits(each=course.sweep.expected_s(course.cell(number))):
                ended = BY_TIME
                break
            run(number, first=number == wanted[0])
    with signals.deferred():
        for cell in course.sweep.cells:
            if cell.state == "running":
                shutil.rmtree(folder / cell.folder, ignore_errors=True)
                course.change(cell.number, state="pending", began_at=None)
        pending = any(cell.state == "pending" for cell in course.sweep.cells)
        course.write(complete=not pending, ended_by="a signal" if ending.code else ended)
    return course.sweep, ending.code


def _cooled(pause: Pause, on_wait: Callable[[str], None], *, first: bool) -> float | None:
    """Wait before a cell as requested; return the temperature of the hottest GPU, None if unknown."""
    if pause.seconds and not first:
        pause.sleep(pause.seconds)
    hottest, waited = pause.temperature_c(), 0.0
    while pause.below_c is not None and hottest is not None and hottest >= pause.below_c:
        if not waited:
            on_wait(f"waiting until all GPUs are below {pause.below_c:g} \N{DEGREE SIGN}C, now {hottest:.0f}")
        if waited >= COOLING_LIMIT_S:
            on_wait(f"still {hottest:.0f} \N{DEGREE SIGN}C after {waited:.0f} s: the cell runs now")
            break
        pause.sleep(COOLING_LOOK_S)
        waited += COOLING_LOOK_S
        hottest = pause.temperature_c()
    return hottest


def _outcome(result: Result, before: float | None) -> dict[str, Any]:
    """Return the fields of a cell from a result. `before`: share of the cores used by others before it."""
    found = timed(result)
    load = result.host_load
    shares = [one for one in (before, None if load is None else load.other_cpu_share) if one is not None]
    other = max(shares, default=None)
    common = {
        "other_cpu_share": other,
        "beside_other_work": other is not None and other > OTHER_CPU_SHARE,
    }
    if isinstance(found, str):
        return {"state": "failed", "reason": found, **common}
    return {
        "state": "done",
        "images_per_sec": found.images_per_sec,
        "steps": result.steps,
        "noise": found.noise if result.steps > 1 else None,
        **common,
    }
