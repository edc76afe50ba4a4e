"""Training from the command line: the output of a run or of repeats, and the exit code."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputopo import launch
from gputopo.cli.printing import show_report
from gputopo.cli.run.showing import RunDisplay
from gputopo.report import document_text, plan_summary, to_stderr
from gputopo.values.errors import ExitCode
from gputopo.values.run.options import OutputOptions

if TYPE_CHECKING:
    from gputopo.launch import RendezvousServer, Target
    from gputopo.values.run.result import Result
    from gputopo.values.run.several_runs import Repeats
    from gputopo.values.run.spec import RunSpec


def train(
    target: "Target",
    spec: "RunSpec",
    options: OutputOptions,
    *,
    rendezvous: "RendezvousServer | None" = None,
) -> int:
    """Train to the end, once or repeatedly, print the result as requested, and return the exit code.

    `rendezvous`: connects to the other hosts of the run and tells them its end.
    """
    predicted = plan_summary(target.plan) if target.rehearsal_of is None else ()
    display = RunDisplay(options, predicted)
    if options.repeats > 1:
        results, code = launch.train_repeatedly(
            target, spec, options, display.one_run, lambda repeats: _print_repeats(repeats, options.shape)
        )
    else:
        ran = launch.train_once(target, spec, options, display.one_run, rendezvous=rendezvous)
        results, code = [ran.result], ran.result.exit_code
        try:
            _print(ran.result, options)
        finally:
            to_stderr(f"Run folder: {ran.folder}\n")
    display.require_written()
    return _exit_code(code, results, options)


def _exit_code(code: int, results: "Sequence[Result]", options: OutputOptions) -> int:
    if code == 0 and options.fail_on is not None and any(r.loss_not_finite is not None for r in results):
        return ExitCode.FINDINGS
    if code == 0 and options.fail_on == "warning" and any(result.is_slow for result in results):
        return ExitCode.FINDINGS
    return code


def _print(result: "Result", options: OutputOptions) -> None:
    """Print the result. Log lines were printed during the run; a failure is printed to stderr."""
    from gputopo.report import failure_lines, run_document

    if options.shape == "tf-cnn-log":
        to_stderr("".join(f"{line}\n" for line in failure_lines(result)))
        return
    show_report(result, lambda: run_document(result, verbose=options.verbose), options.shape)


def _print_repeats(repeats: "Repeats", printed: str) -> None:
    """Print all repeats. Log lines were printed during the runs; the summary is printed to stderr."""
    from gputopo.report import repeats_document

    if printed == "tf-cnn-log":
        to_stderr(document_text(repeats_document(repeats), 80))
        return
    show_report(repeats, lambda: repeats_document(repeats), printed)
