"""Training from the command line: the output of a run or of repeats, and the exit code."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.cli.printing import show_report
from gputopo.cli.run.showing import RunDisplay
from gputopo.launch.checks import require_files_of, require_runnable
from gputopo.launch.jobs import training as jobs
from gputopo.launch.jobs.training import Ran
from gputopo.launch.supervise import signals
from gputopo.report import document_text, plan_summary, to_stderr
from gputopo.runs import combine_repeats
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, InputError
from gputopo.values.run.options import OutputOptions

if TYPE_CHECKING:
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer
    from gputopo.launch.target import Target
    from gputopo.values.run.result import Result
    from gputopo.values.run.several_runs import Repeats
    from gputopo.values.run.spec import RunSpec

_Ending = GputopoError | KeyboardInterrupt | signals.EndedError


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
    require_runnable(target, spec, options)
    predicted = plan_summary(target.plan) if target.rehearsal_of is None else ()
    require_files_of(spec)
    display = RunDisplay(
        options.shape, options.display_every, predicted, options.prometheus, options.on_anomaly
    )
    if options.repeats > 1:
        return _train_repeatedly(target, spec, options, display)
    ran: list[Ran] = []
    folder = None if options.output is None else Path(options.output)
    try:
        jobs.train(target, spec, folder, options, display.one_run, ran, rendezvous=rendezvous)
    except KeyboardInterrupt:
        if not ran:
            raise
    try:
        _print(ran[0].result, options)  # a Ctrl-C after the end of training changes nothing
    finally:
        to_stderr(f"Run folder: {ran[0].folder}\n")
    display.require_written()
    return _exit_code(ran[0].result.exit_code, [ran[0].result], options)


def _train_repeatedly(target: "Target", spec: "RunSpec", options: OutputOptions, display: RunDisplay) -> int:
    """Run the repeats, each with its own worker and folder, and return the exit code.

    The repeats end with a run that was stopped, with a signal between two runs, or if files cannot be
    written. Complete runs are shown and saved in any case. A signal after the last run changes nothing.
    """
    ran: list[Ran] = []
    error: _Ending | None = None
    try:
        _repeats(target, spec, options, display, ran)
    except (GputopoError, KeyboardInterrupt, signals.EndedError) as stopped:
        error = None if len(ran) == options.repeats else stopped
    results = [one.result for one in ran]
    if results:
        ending = ("complete", 0) if error is None else _ending_of(error)
        repeats = combine_repeats(results, options.repeats, ending)
        with signals.deferred():
            if options.output is not None and not _saved(repeats, Path(options.output)):
                ending = ("failed", int(ExitCode.HARDWARE)) if error is None else ending
                repeats = combine_repeats(results, options.repeats, ending)
        _print_repeats(repeats, options.shape)
    if isinstance(error, signals.EndedError):
        to_stderr(f"gputopo: stopped by {error}\n")
        return _ending_of(error)[1]
    if error is not None:
        raise error
    display.require_written()
    return _exit_code(repeats.exit_code, results, options)


def _ending_of(error: _Ending) -> tuple[str, int]:
    """Return the status and the exit code of repeats that an error or a signal ended."""
    if isinstance(error, GputopoError):
        return "failed", error.exit_code
    number = error.number if isinstance(error, signals.EndedError) else signal.SIGINT
    return "interrupted", 128 + number


def _repeats(
    target: "Target", spec: "RunSpec", options: OutputOptions, display: RunDisplay, ran: list[Ran]
) -> None:
    """Run the repeats and append each to `ran`; stop after a run that was stopped.

    Raises the errors of a run, and EndedError or KeyboardInterrupt for a signal between two runs.
    """
    with signals.raised():
        for number in range(1, options.repeats + 1):
            to_stderr(f"repeat {number} of {options.repeats}\n")
            folder = None if options.output is None else Path(options.output) / str(number)
            jobs.train(target, spec, folder, options, display.one_run, ran)
            to_stderr(f"Run folder: {ran[-1].folder}\n")
            if ran[-1].stopped:
                break


def _saved(repeats: "Repeats", output: Path) -> bool:
    """Write repeats.json. If it cannot be written, print why and return False."""
    try:
        schema.write(output / "repeats.json", repeats)
    except InputError as error:
        hint = "free some space, or use another folder with --output; each repeat's folder has its own result"
        to_stderr(f"gputopo: {error.what}\n  {hint}\n")
        return False
    return True


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
