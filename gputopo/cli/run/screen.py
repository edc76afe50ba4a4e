"""`gputopo screen`: train on each GPU alone, then on all at once; report slow GPUs and their causes."""

from typing import TYPE_CHECKING, Annotated

from gputopo.cli.printing import show_report
from gputopo.launch import planned_machine
from gputopo.report import to_stderr
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.option import OptionsOf
from gputopo.values.run.options import ScreenOptions

if TYPE_CHECKING:
    from gputopo.values.run.several_runs import ScreenRun


def screen(options: Annotated[ScreenOptions, OptionsOf(ScreenOptions)]) -> int:
    """Find slow GPUs: train on each GPU alone, then on all of them together.

    Without an NVIDIA device, or with --cpu, logical CPU devices are screened, and every output shows this.
    The runs are stored: plan uses them for predictions, and the next screen is compared with this one.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 a problem with the hardware or the
    driver; 130, 143 ended by Ctrl-C, SIGTERM.
    """
    from gputopo.cli.run.showing import cell_display
    from gputopo.launch import screen_devices
    from gputopo.report import screen_document, screen_run_line

    def on_run(run: "ScreenRun", noun: str) -> None:
        to_stderr(f"{screen_run_line(run, noun)}\n")

    result, folder, code = screen_devices(
        options, lambda: planned_machine(()), on_run=on_run, display=cell_display
    )
    to_stderr(f"Run folder: {folder}\n")
    show_report(result, lambda: screen_document(result), options.shape)
    if code:
        return code
    if all(row.alone is None for row in result.devices):
        cause = next((row.failure for row in result.devices if row.failure), "nothing was measured")
        raise HardwareError(f"no device could be run: {cause}", f"see the logs of the runs in {folder}")
    failed = any(run.failure is not None for run in result.runs)
    is_slow = options.fail_on == "warning" and any(row.is_outlier for row in result.devices)
    return ExitCode.FINDINGS if is_slow or (options.fail_on is not None and failed) else ExitCode.OK
