"""A training several times (`--repeats`): until the last one, a signal, or a file that cannot be written."""

import signal
from collections.abc import Callable
from pathlib import Path

from gputopo.launch.jobs.run import Display
from gputopo.launch.jobs.training import Ran, require_files_of, train_into
from gputopo.launch.supervise import signals
from gputopo.launch.target import Target
from gputopo.report import to_stderr
from gputopo.runs import combine_repeats
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, InputError
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats
from gputopo.values.run.spec import RunSpec


def train_repeatedly(
    target: Target,
    spec: RunSpec,
    options: OutputOptions,
    display: Display,
    show: Callable[[Repeats], None],
) -> tuple[list[Result], int]:
    """Train `options.repeats` times, each with its own worker and folder; return the results and exit code.

    The repeats end with a run that was stopped, with a signal between two runs, or if files cannot be
    written. Complete runs are saved and shown in any case; then the error or Ctrl-C is raised. A signal after
    the last run changes nothing.
    """
    require_files_of(spec)
    ran: list[Ran] = []
    error: GputopoError | KeyboardInterrupt | signals.EndedError | None = None
    try:
        with signals.raised():
            for number in range(1, options.repeats + 1):
                to_stderr(f"repeat {number} of {options.repeats}\n")
                output = None if options.output is None else Path(options.output) / str(number)
                train_into(output, target, spec, options, display, ran)
                to_stderr(f"Run folder: {ran[-1].folder}\n")
                if ran[-1].stopped:
                    break
    except (GputopoError, KeyboardInterrupt, signals.EndedError) as stopped:
        error = None if len(ran) == options.repeats else stopped
    results = [run.result for run in ran]
    code = 0
    if isinstance(error, GputopoError):
        code = int(error.exit_code)
    elif error is not None:
        code = 128 + (error.number if isinstance(error, signals.EndedError) else signal.SIGINT)
    if results:
        ending = ("complete", 0)
        if error is not None:
            ending = ("failed" if isinstance(error, GputopoError) else "interrupted", code)
        repeats = combine_repeats(results, options.repeats, ending)
        with signals.deferred():
            if options.output is not None and not _saved(repeats, Path(options.output)):
                ending = ("failed", int(ExitCode.HARDWARE)) if error is None else ending
                repeats = combine_repeats(results, options.repeats, ending)
        show(repeats)
        code = code or repeats.exit_code
    if isinstance(error, signals.EndedError):
        to_stderr(f"gputopo: stopped by {error}\n")
    elif error is not None:
        raise error
    return results, code


def _saved(repeats: Repeats, output: Path) -> bool:
    """Write repeats.json. If it cannot be written, print why and return False."""
    try:
        schema.write(output / "repeats.json", repeats)
    except InputError as error:
        hint = "free some space, or use another folder with --output; each repeat's folder has its own result"
        to_stderr(f"gputopo: {error.what}\n  {hint}\n")
        return False
    return True
