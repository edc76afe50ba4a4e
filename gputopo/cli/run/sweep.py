"""`gputopo sweep`: a matrix of trainings, each cell in a process and a folder of its own."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from gputopo.cli.printing import note, show_report, to_stderr
from gputopo.cli.run.options import SweepOptions
from gputopo.launch.jobs.run import worker_command
from gputopo.values.errors import ExitCode, HardwareError, InputError
from gputopo.values.option import OptionsOf

if TYPE_CHECKING:
    from gputopo.cli.run.sweep_cells import Planned
    from gputopo.launch.jobs.sweep import Pause
    from gputopo.report.document import Document
    from gputopo.sweeps.matrix import Matrix
    from gputopo.values.machine import Machine
    from gputopo.values.run.result import Result
    from gputopo.values.run.several_runs import Sweep, SweepCell


LOAD_S = 1.0  # over which the load of the host is measured before a cell


def sweep(options: Annotated[SweepOptions, OptionsOf(SweepOptions)]) -> int:
    """Run a matrix of trainings, each cell in a process and a folder of its own, and show their speeds.

    The matrix is a preset, a file (--matrix), or values of options: --model alexnet --num-gpus 1,2,4.

    A sweep that was killed or stopped continues with --resume, or with the same command if it has --output.
    Cells that ended are not run again. Failed, refused and left out cells stay in the result, with their
    reason.

    Exit codes: 0 fine; 1 a cell failed and --fail-on; 2 bad input; 3 the hardware or the driver cannot do it,
    or no cell could be run; 130, 143 ended by Ctrl-C, SIGTERM.
    """
    from gputopo.cli.run.sweep_cells import begun, paced, resumed
    from gputopo.cli.source import planned_machine
    from gputopo.launch.locks import locked_folder

    dry_run = options.dry_run
    with contextlib.ExitStack() as held:
        started = options.resume or _sweep_in(options.output)
        if started is None:
            blank, made = begun(options)
            folder = _new_folder(blank, options.output, held, dry_run=dry_run)
        else:
            folder = Path(started)
            if folder.is_dir() and not dry_run:
                held.enter_context(locked_folder(folder, "--output"))
            blank, made = resumed(folder, options)
        blank = paced(blank, options)
        machine = planned_machine((), pairs=True)
        found, planned = _planned(blank, made, machine, folder, None if dry_run else held)
        if dry_run:
            _print(found, options.shape, dry=True)
            return ExitCode.OK
        to_stderr(f"Sweep folder: {folder}\n")
        found, code = _run(found, made, planned, machine, folder)
    _print(found, options.shape)
    named = shlex.quote(str(folder))
    note(f"tables and observations: gputopo report {named}")
    if not found.complete:
        note(f"to continue: gputopo sweep --resume {named}")
    return code or _exit_code(found, folder, options.fail_on)


def _sweep_in(output: str | None) -> str | None:
    """Return the folder if it has a sweep, which the same command continues."""
    from gputopo.launch.jobs.sweep import FILE

    return output if output is not None and (Path(output) / FILE).exists() else None


def _new_folder(blank: "Sweep", output: str | None, held: contextlib.ExitStack, *, dry_run: bool) -> Path:
    """Return the folder of a new sweep, made and locked until `held` closes, unless it is a dry run.

    If nothing is in it then, it is removed. Raises InputError for one that holds a run.
    """
    from gputopo.launch.locks import locked_folder
    from gputopo.launch.supervise import run_folder as runs
    from gputopo.values.run.several_runs import FOLDER

    home = runs.runs_home(os.environ)
    if output is not None:
        runs.check_output(Path(output))
        if (Path(output) / FOLDER).exists():
            raise InputError(f"{output} holds a folder {FOLDER}", "name a new folder with --output")
    if dry_run:
        return home / "SWEEP" if output is None else Path(output)
    if output is None:
        name = "".join(one if one.isalnum() or one in "-_" else "-" for one in Path(blank.origin).stem)
        folder = runs.new_folder(home, datetime.now(), f"sweep-{name}")
    else:
        folder = Path(output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make {folder}: {error.strerror}", "name a folder that you may write to with --output"
            ) from error
    held.callback(_remove_empty, folder)
    held.enter_context(locked_folder(folder, "--output"))
    return folder


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _planned(
    blank: "Sweep", matrix: "Matrix", machine: "Machine", folder: Path, held: contextlib.ExitStack | None
) -> "tuple[Sweep, Planned]":
    """Return the sweep with its cells planned, and their runs; claim their GPUs until `held` closes.

    Raises GputopoError: where the cells of a resumed sweep are no longer the same, too.
    """
    from gputopo.cli.run.sweep_cells import Cells, box_of, with_cells
    from gputopo.launch.jobs.claims import (
        MAX_ATTEMPTS,
        ClaimedError,
        claimed,
        claimed_by_others,
        claims_folder,
        never_free,
    )
    from gputopo.topology.same_machine import fingerprint

    cpu, claims = bool(blank.asked.get("cpu")), claims_folder(os.environ)
    for _ in range(MAX_ATTEMPTS):
        others = {} if cpu else claimed_by_others(machine, claims)
        data = blank.asked.get("data_dir")
        cells = Cells(machine, folder, cpu=cpu, claimed=others, imagenet=data, trains=held is not None)
        taken = {**others, **cells.unusable}
        box = box_of(machine, cpu=cpu, asked=frozenset(blank.asked), taken=taken)
        found = with_cells(blank, matrix, box, fingerprint(machine))
        planned = cells.planned(found.cells, dry=held is None)
        found = msgspec.structs.replace(found, cells=planned.cells)
        used = {gpu for trial in planned.trials.values() for gpu in trial.plan.choice.gpus}
        if held is None or box.backend == "cpu":
            return found, planned
        with contextlib.suppress(ClaimedError):
            gpus = [gpu for gpu in machine.gpus if gpu.index in used]
            held.enter_context(claimed(gpus, claims, "gputopo sweep", on_problem=note))
            return found, planned
    raise never_free()


def _run(
    found: "Sweep", matrix: "Matrix", planned: "Planned", machine: "Machine", folder: Path
) -> "tuple[Sweep, int]":
    """Run the cells; return the sweep and the code of a signal."""
    from gputopo.cli.run.showing import cell_display
    from gputopo.cli.run.training import remember
    from gputopo.launch.jobs.sweep import FILE, run_cells
    from gputopo.probes.run_watch import RunWatch
    from gputopo.report.runs.sweep import cell_line
    from gputopo.sweeps.expand import ordered
    from gputopo.values import schema

    pause = _pause(found, machine if found.backend == "gpu" else None)

    def on_cell(cell: "SweepCell", result: "Result", now: "Sweep") -> None:
        remember(result, folder / cell.folder, machine)
        to_stderr(f"{cell_line(cell, now.cells, now.left_s)}\n")

    numbers = [cell.number for cell in ordered(found.cells, matrix.order, found.seed)]
    schema.write(folder / FILE, found)
    _make_data(found, folder)
    return run_cells(
        found,
        numbers,
        planned.trials,
        folder,
        open_sampler=RunWatch,
        machine=machine,
        pause=pause,
        on_cell=on_cell,
        on_wait=note,
        display=cell_display,
        command=worker_command,
    )


def _pause(found: "Sweep", machine: "Machine | None") -> "Pause":
    """Return what comes before each cell: cooling, and a look at the load of the host."""
    from gputopo.launch.jobs.sweep import Pause
    from gputopo.probes.host_load import HostReader
    from gputopo.probes.run_watch import RunWatch

    gpus = [] if machine is None else [gpu.index for gpu in machine.gpus if not gpu.lost]

    def hottest() -> float | None:
        if not gpus:
            return None
        with RunWatch(gpus) as watch:
            samples = [one for one in watch.look() if hasattr(one, "gpus")]
        known = [gpu.temperature_c for one in samples for gpu in one.gpus if gpu.temperature_c is not None]
        return max(known, default=None)

    def other_share() -> float | None:
        reader = HostReader()
        time.sleep(LOAD_S)
        return reader.read().other_cpu_share

    return Pause(found.cool_down_s, found.cool_down_c, hottest, other_share)


def _make_data(found: "Sweep", folder: Path) -> None:
    """Make the folders of drawn images that cells need, each in another process, which loads TensorFlow.

    Raises HardwareError where one cannot be made.
    """
    from gputopo.cli.run.sweep_cells import made_data
    from gputopo.launch.jobs.sweep import DATA

    for name in made_data(found):
        place = folder / DATA / name
        if place.exists():
            continue
        note(f"drawing a small data folder: {place}")
        command = [sys.executable, "-P", "-m", "gputopo", "make-data", str(place), "--data-name", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # It is there whole or not at all: that of a sweep which was killed may have gone on beside this one.
        if done.returncode and not place.exists():
            why = done.stderr.strip().removeprefix("gputopo: ").splitlines()
            raise HardwareError(
                f"the data of the sweep cannot be made: {why[0] if why else done.returncode}",
                f"make it: gputopo make-data {place} --data-name {name}; then go on with --resume {folder}",
            )


def _print(found: "Sweep", shape: str, *, dry: bool = False) -> None:
    from gputopo.report.runs.sweep import sweep_document

    def document() -> "Document":
        shown = sweep_document(found, dry=dry)
        return shown if dry or found.complete else shown._replace(headline=_interrupted(found))

    show_report(found, document, shape)


def _interrupted(found: "Sweep") -> str:
    left = sum(cell.state in ("pending", "running") for cell in found.cells)
    return f"Interrupted: {left} of {len(found.cells)} cells have not run."


def _exit_code(found: "Sweep", folder: Path, fail_on: str | None) -> int:
    failed = [cell for cell in found.cells if cell.state == "failed"]
    if failed and fail_on is not None:
        return ExitCode.FINDINGS
    if failed and not any(cell.state == "done" for cell in found.cells):
        raise HardwareError(
            f"no cell could be run: {failed[0].reason}", f"see the logs of the runs in {folder}"
        )
    return ExitCode.OK
