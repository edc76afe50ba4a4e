"""What a run shows: its display, and its dry run."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import emit, show_report, unwritten
from gputopo.report import drop_unwritten
from gputopo.values import schema
from gputopo.values.errors import ExitCode, HardwareError, InputError
from gputopo.values.run.events import Event, RunStarted
from gputopo.values.run.options import OutputOptions

if TYPE_CHECKING:
    from gputopo.launch import DryRun


class RunDisplay:
    """Progress of runs on stderr and, if they are the output, log lines on stdout.

    Progress that cannot be written is dropped. Log lines that cannot be written are an error:
    `require_written`.
    """

    def __init__(self, options: OutputOptions, predicted: Sequence[str]) -> None:
        """`predicted`: lines at the start."""
        self._options = options
        self._predicted = predicted
        self._unwritten: HardwareError | None = None

    @contextlib.contextmanager
    def one_run(self) -> "Iterator[Callable[[Event], None]]":
        """Return the function to call with each event of a run."""
        from gputopo.report import Progress, TfCnnLog

        every = self._options.display_every
        log = TfCnnLog(every) if self._options.shape == "tf-cnn-log" else None
        with Progress(display_every=every) as progress:

            def on_event(event: "Event") -> None:
                shown = event
                if self._predicted and isinstance(event, RunStarted):
                    shown = msgspec.structs.replace(event, says=(*event.says, *self._predicted))
                progress.event(shown)
                if log is not None:
                    self._print(log.lines(event))

            yield on_event

    def require_written(self) -> None:
        """Raise HardwareError if log lines could not be written."""
        if self._unwritten is not None:
            raise self._unwritten

    def _print(self, lines: Sequence[str]) -> None:
        if self._unwritten is not None:
            return
        try:
            for line in lines:
                print(line, flush=True)
        except BrokenPipeError:
            raise  # the reader has closed the pipe
        except OSError as error:
            if drop_unwritten(sys.stdout, error):
                self._unwritten = unwritten(error)


@contextlib.contextmanager
def cell_display() -> "Iterator[Callable[[Event], None]]":
    """Show the steps and the remaining time of one run of several on a terminal; elsewhere show nothing."""
    from gputopo.report import Progress

    if not sys.stderr.isatty():
        yield lambda event: None
        return
    with Progress(messages=False) as progress:
        yield progress.event


def show_dry_run(dry: "DryRun", shape: str) -> int:
    """Print a dry run as a table or, if `shape` is json, as a document. Raises InputError."""
    if shape == "json":
        try:
            text = schema.encode_pretty(dry)
        except UnicodeEncodeError as error:  # the arguments of a program may be any bytes
            raise InputError(
                "the command is not UTF-8, as JSON must be", "remove --json to see it"
            ) from error
        emit(text)
        return ExitCode.OK
    plan, spec = dry.plan, dry.spec
    says = [*(spec.says if spec is not None else ()), *(() if plan.choice.gpus else plan.choice.reasons)]
    emit("".join(f"{line}\n" for line in says) + "\n")
    if plan.choice.gpus:
        from gputopo.report import plan_document

        show_report(plan, lambda: plan_document(plan), "table")
        emit("\n")
    if dry.host.says:
        emit("Host\n" + "".join(f"  {line}\n" for line in dry.host.says) + "\n")
    sets = "".join(f"  {name}={shlex.quote(value)}\n" for name, value in dry.environment.items())
    emit(f"Environment\n{sets}\nCommand\n  {shlex.join(dry.command)}\n")
    return ExitCode.OK
