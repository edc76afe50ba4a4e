"""What a run shows: its display, its dry run, the metrics file."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gputopo.cli.printing import unwritten
from gputopo.launch import Target
from gputopo.launch.checks import require_runnable
from gputopo.launch.jobs import run
from gputopo.launch.spec.env import changes
from gputopo.launch.spec.host_place import HostPlace
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise.alarm import Alarm
from gputopo.launch.supervise.metrics_file import MetricsFile
from gputopo.launch.supervise.sample_scalars import SampleScalars
from gputopo.launch.user_program.program import check_program
from gputopo.report import drop_unwritten, note
from gputopo.values import schema
from gputopo.values.errors import ExitCode, HardwareError, InputError
from gputopo.values.run.events import Event, RunStarted
from gputopo.values.run.options import OutputOptions, Shape
from gputopo.values.run.plan import Plan
from gputopo.values.run.spec import RunSpec


class RunDisplay:
    """Progress of runs on stderr and, if they are the output, log lines on stdout.

    Progress that cannot be written is dropped. Log lines that cannot be written are an error:
    `require_written`.
    """

    def __init__(
        self,
        shape: Shape,
        display_every: int | None,
        predicted: Sequence[str] = (),
        prometheus: str | None = None,
        on_anomaly: str | None = None,
    ) -> None:
        """`display_every`: steps between two lines; None: by time. `predicted`: lines at the start.

        `prometheus`: the file for the metrics of each run. `on_anomaly`: the command that is run for an
        anomaly.
        """
        self._prometheus = prometheus
        self._on_anomaly = on_anomaly
        self._prints_log = shape == "tf-cnn-log"
        self._every = display_every
        self._predicted = predicted
        self._unwritten: HardwareError | None = None

    @contextlib.contextmanager
    def one_run(self) -> "Iterator[Callable[[Event], None]]":
        """Return the function to call with each event of a run."""
        from gputopo.report import Progress, TfCnnLog

        log = TfCnnLog(self._every) if self._prints_log else None
        metrics = None if self._prometheus is None else MetricsFile(Path(self._prometheus), note)
        with contextlib.ExitStack() as stack:
            # It ends before the display, which shows its messages.
            progress = stack.enter_context(Progress(display_every=self._every))
            alarm = None if self._on_anomaly is None else Alarm(self._on_anomaly, note)
            if alarm is not None:
                stack.callback(alarm.close)
            scalars = stack.enter_context(contextlib.closing(SampleScalars(note)))

            def on_event(event: "Event") -> None:
                progress.event(self._with_prediction(event))
                if metrics is not None:
                    metrics.event(event)
                if alarm is not None:
                    alarm.event(event)
                scalars.event(event)
                if log is not None:
                    self._print(log.lines(event))

            yield on_event

    def require_written(self) -> None:
        """Raise HardwareError if log lines could not be written."""
        if self._unwritten is not None:
            raise self._unwritten

    def _with_prediction(self, event: "Event") -> "Event":
        if not (self._predicted and isinstance(event, RunStarted)):
            return event
        return msgspec.structs.replace(event, says=(*event.says, *self._predicted))

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


class DryRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.dryrun/1"):
    """A run that was not started."""

    plan: Plan
    environment: dict[str, str]  # changes to the environment of the caller
    command: tuple[str, ...]
    spec: RunSpec | None = None  # of the built-in core
    host: HostPlace = HostPlace()  # the CPUs, memory and threads of a run on GPUs


_FUTURE_SPEC = Path("RUN_FOLDER/spec.json")
_FUTURE_EVENTS_FD = 3


def show_only(target: Target, spec: RunSpec, options: OutputOptions) -> int:
    """Print what `train` would start, without starting it."""
    require_runnable(target, spec, options)
    environment = target.environment(os.environ, spec)
    place = _FUTURE_SPEC if options.output is None else runs.RunFolder(Path(options.output)).spec
    command = run.worker_command(place, _FUTURE_EVENTS_FD)
    show_dry_run(target, spec, changes(os.environ, environment), command, options.shape)
    return ExitCode.OK


def show_program_only(program: Sequence[str], target: Target, shape: str) -> int:
    """Print how a program would be started, without starting it. Raises UsageError if there is no program."""
    environment = target.environment(os.environ, None)
    check_program(program, environment)
    show_dry_run(target, None, changes(os.environ, environment), program, shape)
    return ExitCode.OK


def show_dry_run(
    target: Target, spec: RunSpec | None, environment: Mapping[str, str], command: Sequence[str], shape: str
) -> None:
    """Print a dry run as a table or, if `shape` is json, as a DryRun document. Raises InputError."""
    from gputopo.cli.printing import emit, show_report

    plan = target.plan
    place = target.host_place if spec is None or spec.backend == "gpu" else HostPlace()
    if shape == "json":
        dry = DryRun(plan=plan, environment=dict(environment), command=tuple(command), spec=spec, host=place)
        try:
            text = schema.encode_pretty(dry)
        except UnicodeEncodeError as error:  # the arguments of a program may be any bytes
            raise InputError(
                "the command is not UTF-8, as JSON must be", "remove --json to see it"
            ) from error
        emit(text)
        return
    says = [*(spec.says if spec is not None else ()), *(() if plan.choice.gpus else plan.choice.reasons)]
    emit("".join(f"{line}\n" for line in says) + "\n")
    if plan.choice.gpus:
        from gputopo.report import plan_document

        show_report(plan, lambda: plan_document(plan), "table")
        emit("\n")
    sets = "".join(f"  {name}={shlex.quote(value)}\n" for name, value in environment.items())
    if place.says:
        emit("Host\n" + "".join(f"  {line}\n" for line in place.says) + "\n")
    emit(f"Environment\n{sets}\nCommand\n  {shlex.join(command)}\n")
