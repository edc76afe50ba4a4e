"""`gputopo sweep`: a matrix of trainings, each cell in its own process and folder."""

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gputopo.cli.printing import show_report
from gputopo.report import note, to_stderr
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.option import OptionsOf
from gputopo.values.run.options import SweepOptions

if TYPE_CHECKING:
    from gputopo.values.run.several_runs import Sweep, SweepCell


def sweep(options: Annotated[SweepOptions, OptionsOf(SweepOptions)]) -> int:
    """Train a grid of configurations, each in its own process and folder, and show their speeds.

    The matrix is a preset, a file (--matrix), or values of options: --model alexnet --num-gpus 1,2,4.

    A sweep that was killed or stopped continues with --resume, or with the same command if it has --output.
    Finished cells are not run again. Failed, refused and skipped cells stay in the result with their reason.

    Exit codes: 0 fine; 1 with --fail-on: a cell failed; 2 bad input; 3 a problem with the hardware or the
    driver, or no cell could be run; 130, 143 ended by Ctrl-C, SIGTERM.
    """
    from gputopo.cli.run.showing import cell_display
    from gputopo.cli.source import planned_machine
    from gputopo.launch.jobs import sweep_course
    from gputopo.report import sweep_cell_line

    def on_cell(cell: "SweepCell", now: "Sweep") -> None:
        to_stderr(f"{sweep_cell_line(cell, now.cells, now.left_s)}\n")

    with contextlib.ExitStack() as held:
        blank, matrix, folder = sweep_course.open_sweep(options, held)
        machine = planned_machine((), pairs=True)
        claims = None if options.dry_run else held
        found, planned = sweep_course.plan_sweep(blank, matrix, machine, folder, claims)
        if options.dry_run:
            _print(found, options.shape, dry=True)
            return ExitCode.OK
        to_stderr(f"Sweep folder: {folder}\n")
        found, code = sweep_course.run_sweep(
            found, matrix, planned, machine, folder, on_cell=on_cell, display=cell_display
        )
    _print(found, options.shape)
    named = shlex.quote(str(folder))
    note(f"tables and observations: gputopo report {named}")
    if not found.complete:
        note(f"to continue: gputopo sweep --resume {named}")
    return code or _exit_code(found, folder, options.fail_on)


def _print(found: "Sweep", shape: str, *, dry: bool = False) -> None:
    from gputopo.report import sweep_document

    show_report(found, lambda: sweep_document(found, dry=dry), shape)


def _exit_code(found: "Sweep", folder: Path, fail_on: str | None) -> int:
    failed = [cell for cell in found.cells if cell.state == "failed"]
    if failed and fail_on is not None:
        return ExitCode.FINDINGS
    if failed and not any(cell.state == "done" for cell in found.cells):
        raise HardwareError(
            f"no cell could be run: {failed[0].reason}", f"see the logs of the runs in {folder}"
        )
    return ExitCode.OK
