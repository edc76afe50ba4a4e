"""`gputopo screen`: train on each GPU alone, then on all at once; report slow GPUs and their causes."""

from typing import TYPE_CHECKING, Annotated, Literal

from gputopo.cli.printing import show_report
from gputopo.cli.source import planned_machine
from gputopo.report import to_stderr
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.option import OptionsOf
from gputopo.values.run.options import ScreenOptions

if TYPE_CHECKING:
    from gputopo.values.run.several_runs import Screen, ScreenRun

FailOn = Literal["warning", "error"]


def screen(options: Annotated[ScreenOptions, OptionsOf(ScreenOptions)]) -> int:
    """Find slow GPUs: train on each GPU alone, then on all of them together.

    Without an NVIDIA device, or with --cpu, logical CPU devices are screened, and every output shows this.
    The runs are stored: plan uses them for predictions, and the next screen is compared with this one.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 a problem with the hardware or the
    driver; 130, 143 ended by Ctrl-C, SIGTERM.
    """
    from gputopo.cli.run.showing import cell_display
    from gputopo.launch import Site
    from gputopo.launch.jobs import screen_course
    from gputopo.report import screen_document, screen_run_line

    def on_run(run: "ScreenRun", noun: str) -> None:
        to_stderr(f"{screen_run_line(run, noun)}\n")

    job = screen_course.screen_job(options)
    screen_course.require_new(options.output)
    site = Site(planned_machine(()), cpu=options.cpu, keep=1, trains=True)
    found, folder, code = screen_course.screen(job, site, options, on_run=on_run, display=cell_display)
    to_stderr(f"Run folder: {folder}\n")
    show_report(found, lambda: screen_document(found), options.shape)
    if code:
        return code
    if all(row.alone is None for row in found.devices):
        cause = next((row.failure for row in found.devices if row.failure), "nothing was measured")
        raise HardwareError(f"no device could be run: {cause}", f"see the logs of the runs in {folder}")
    return _exit_code(found, options.fail_on)


def _exit_code(found: "Screen", fail_on: FailOn | None) -> int:
    failed = any(run.failure is not None for run in found.runs)
    if fail_on is not None and failed:
        return ExitCode.FINDINGS
    is_slow = fail_on == "warning" and any(row.is_outlier for row in found.devices)
    return ExitCode.FINDINGS if is_slow else ExitCode.OK
