"""A sweep from its options to its end: its folder, its plans and claims, its data, and its runs."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from gputopo.launch.jobs import sweep
from gputopo.launch.jobs.claims import choose_and_claim
from gputopo.launch.jobs.run import Display
from gputopo.launch.jobs.sweep import DATA, FILE, Pause
from gputopo.launch.jobs.sweep_cells import (
    Cells,
    Planned,
    cell_box,
    made_data,
    new_sweep,
    stored_sweep,
    with_cells,
    with_pauses,
)
from gputopo.launch.jobs.training import remember
from gputopo.launch.locks import locked_folder
from gputopo.launch.site import Site
from gputopo.launch.supervise import run_folder as runs
from gputopo.probes import HostReader
from gputopo.report import note, to_stderr
from gputopo.sweeps import Matrix
from gputopo.topology import fingerprint
from gputopo.values import schema
from gputopo.values.errors import HardwareError, InputError
from gputopo.values.machine import Machine
from gputopo.values.run.options import SweepOptions
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import FOLDER, Sweep, SweepCell

LOAD_S = 1.0  # time for measuring the load of the host before a cell


def run_sweep(
    options: SweepOptions,
    read_machine: Callable[[], Machine],
    *,
    on_cell: Callable[[SweepCell, Sweep], None],
    display: Display,
) -> tuple[Sweep, Path, int]:
    """Start or continue a sweep, and run its cells; a dry run only plans them.

    Return the sweep, its folder, and a signal's exit code (0: none). `read_machine`: called after the options
    are checked. `on_cell`: gets each ended cell, and the sweep so far. Raises GputopoError.
    """
    with contextlib.ExitStack() as held:
        blank, matrix, folder = _open_sweep(options, held)
        machine = read_machine()
        sweep, planned = _plan_sweep(blank, matrix, machine, folder, None if options.dry_run else held)
        if options.dry_run:
            return sweep, folder, 0
        to_stderr(f"Sweep folder: {folder}\n")
        sweep, code = _run_cells(sweep, matrix, planned, machine, folder, on_cell=on_cell, display=display)
        return sweep, folder, code


def _open_sweep(options: SweepOptions, held: contextlib.ExitStack) -> tuple[Sweep, Matrix, Path]:
    """Start a sweep, or continue the sweep in its folder, which is locked until `held` closes.

    Return its manifest, matrix and folder. A dry run creates and locks nothing. Raises GputopoError.
    """
    started = options.resume
    if started is None and options.output is not None and (Path(options.output) / FILE).exists():
        started = options.output  # the same command continues its sweep
    if started is None:
        blank, matrix = new_sweep(options)
        folder = _new_folder(blank, options.output, held, dry_run=options.dry_run)
    else:
        folder = Path(started)
        if folder.is_dir() and not options.dry_run:
            held.enter_context(locked_folder(folder, "--output"))
        blank, matrix = stored_sweep(folder, options)
    return with_pauses(blank, options), matrix, folder


def _new_folder(blank: Sweep, output: str | None, held: contextlib.ExitStack, *, dry_run: bool) -> Path:
    """Return the folder of a new sweep; unless it is a dry run, create it and lock it until `held` closes.

    If it is empty then, it is removed. Raises InputError for a folder that has a run.
    """

    if output is not None:
        runs.check_output(output)
        if (Path(output) / FOLDER).exists():
            raise InputError(f"{output} holds a folder {FOLDER}", "use a new folder with --output")
    if dry_run:
        return runs.runs_home(os.environ) / "SWEEP" if output is None else Path(output)
    if output is None:
        name = "".join(
            letter if letter.isalnum() or letter in "-_" else "-" for letter in Path(blank.origin).stem
        )
        folder = runs.folder_for(None, f"sweep-{name}")
    else:
        folder = Path(output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make {folder}: {error.strerror}", "use a writable folder with --output"
            ) from error
    held.callback(_rmdir_if_empty, folder)
    held.enter_context(locked_folder(folder, "--output"))
    return folder


def _rmdir_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _plan_sweep(
    blank: Sweep, matrix: Matrix, machine: Machine, folder: Path, held: contextlib.ExitStack | None
) -> tuple[Sweep, Planned]:
    """Return the sweep with its cells planned, and their runs; claim their GPUs until `held` closes.

    Raises GputopoError, also if the cells of a resumed sweep are no longer the same.
    """

    asked, trains = blank.asked, held is not None

    def choose(others: Mapping[int, str]) -> tuple[tuple[Sweep, Planned], set[int]]:
        site = Site(machine, cpu=bool(asked.get("cpu")), keep=1, trains=trains)
        box = cell_box(site, asked=frozenset(asked), taken={**others, **site.unusable})
        sweep = with_cells(blank, matrix, box, fingerprint(machine))
        cells = Cells(site, folder, claimed=others, imagenet=asked.get("data_dir"))
        planned = cells.planned(sweep.cells, dry=not trains)
        sweep = msgspec.structs.replace(sweep, cells=planned.cells)
        used = {gpu for trial in planned.trials.values() for gpu in trial.candidate.gpus}
        return (sweep, planned), used if box.backend == "gpu" else set()

    return choose_and_claim(machine, choose, held, "gputopo sweep")


def _run_cells(
    state: Sweep,
    matrix: Matrix,
    planned: Planned,
    machine: Machine,
    folder: Path,
    *,
    on_cell: Callable[[SweepCell, Sweep], None],
    display: Display,
) -> tuple[Sweep, int]:
    """Run the cells; return the sweep and a signal's exit code (0: none). `on_cell`: gets each ended cell."""
    pause = _pause(state, machine if state.backend == "gpu" else None)

    def ended(cell: SweepCell, result: Result, now: Sweep) -> None:
        remember(result, folder / cell.folder, machine)
        on_cell(cell, now)

    numbers = [cell.number for cell in matrix.ordered(state.cells, state.seed)]
    schema.write(folder / FILE, state)
    _make_data(state, folder)
    return sweep.run_cells(
        state,
        numbers,
        planned.trials,
        folder,
        pause=pause,
        on_cell=ended,
        on_wait=note,
        display=display,
    )


def _pause(state: Sweep, machine: Machine | None) -> Pause:
    """Return the wait before each cell, which also measures GPU temperatures and the load of the host."""
    from gputopo.probes import RunWatch

    gpus = [] if machine is None else [gpu.index for gpu in machine.gpus if not gpu.lost]

    def hottest() -> float | None:
        if not gpus:
            return None
        with RunWatch(gpus) as watch:
            samples = [sample for sample in watch.look() if hasattr(sample, "gpus")]
        known = [
            gpu.temperature_c for sample in samples for gpu in sample.gpus if gpu.temperature_c is not None
        ]
        return max(known, default=None)

    def other_share() -> float | None:
        reader = HostReader()
        time.sleep(LOAD_S)
        return reader.read().other_cpu_share

    return Pause(state.cool_down_s, state.cool_down_c, hottest, other_share)


def _make_data(state: Sweep, folder: Path) -> None:
    """Generate the image folders that cells need, each in another process, which loads TensorFlow.

    Raises HardwareError if a folder cannot be generated.
    """

    for name in made_data(state):
        place = folder / DATA / name
        if place.exists():
            continue
        note(f"generating a small data set: {place}")
        command = [sys.executable, "-P", "-m", "gputopo", "make-data", str(place), "--data-name", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # The folder appears only when complete. The process of a killed sweep may have created it meanwhile.
        if done.returncode and not place.exists():
            why = done.stderr.strip().removeprefix("gputopo: ").splitlines()
            raise HardwareError(
                f"the data of the sweep cannot be generated: {why[0] if why else done.returncode}",
                f"generate it: gputopo make-data {place} --data-name {name}; then continue with --resume "
                f"{folder}",
            )
