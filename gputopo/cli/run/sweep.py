"""`gputopo sweep`: a matrix of trainings, each cell in its own process and folder."""

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
    from gputopo.launch import planned_machine, run_sweep
    from gputopo.report import sweep_cell_line

    def on_cell(cell: "SweepCell", now: "Sweep") -> None:
        to_stderr(f"{sweep_cell_line(cell, now.cells, now.left_s)}\n")

    result, folder, code = run_sweep(
        options, lambda: planned_machine(()), on_cell=on_cell, display=cell_display
    )
    _print(result, options.shape, dry=options.dry_run)
    if options.dry_run:
        return ExitCode.OK
    named = shlex.quote(str(folder))
    note(f"tables and observations: gputopo report {named}")
    if not result.complete:
        note(f"to continue: gputopo sweep --resume {named}")
    return code or _exit_code(result, folder, options.fail_on)


def _print(result: "Sweep", shape: str, *, dry: bool = False) -> None:
    from gputopo.report import sweep_document

    show_report(result, lambda: sweep_document(result, dry=dry), shape)


def _exit_code(result: "Sweep", folder: Path, fail_on: str | None) -> int:
    failed = [cell for cell in result.cells if cell.state == "failed"]
    if failed and fail_on is not None:
        return ExitCode.FINDINGS
    if failed and not any(cell.state == "done" for cell in result.cells):
        raise HardwareError(
            f"no cell could be run: {failed[0].reason}", f"see the logs of the runs in {folder}"
        )
    return ExitCode.OK
