"""A program of the user on the planned GPUs: started, recorded, and reported in a few lines on stderr.

Its stdin, stdout, stderr and exit code are not changed. What cannot be recorded is reported and skipped.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from gputopo.launch.spec.prepare import program_spec
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.deliveries import delivering
from gputopo.launch.supervise.watchdog import PROGRAM_PATIENCE, hang_limits
from gputopo.launch.supervise.worker_process import OwnChildren
from gputopo.launch.target import Target
from gputopo.launch.throughput import STACKS_FILE, STEPS_FILE
from gputopo.launch.user_program.error_output import ErrorOutput
from gputopo.launch.user_program.program import (
    ProgramEnd,
    ProgramStop,
    check_program,
    failure_lines,
    run_to_end,
)
from gputopo.launch.user_program.recording import ProgramRecord, StallWatch, recorded
from gputopo.launch.user_program.steps import StepPipe
from gputopo.report import note, plan_summary, to_stderr
from gputopo.values.errors import ExitCode, GputopoError
from gputopo.values.machine import Machine
from gputopo.values.run.batches import AUTO
from gputopo.values.run.events import Anomaly, AnomalyOver, Event, Noticed, RankFailed
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.plan import Plan
from gputopo.values.run.program import ProgramSpec
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import OUTSIDE


def run_program(program: tuple[str, ...], target: Target, options: OutputOptions) -> int:
    """Run a program to its end with a record of it, and return its exit code.

    1 instead of 0 if there is a problem that --fail-on selects. Raises GputopoError before the start.
    """
    environment = target.environment(os.environ, None)
    check_program(program, environment)
    where = runs_on(program[0], target)
    spec = program_spec(target, program, [where])
    folder = make_folder(spec, target.plan, target.machine, options)
    to_stderr(f"gputopo: {where}.\n")
    for line in plan_summary(target.plan):
        note(line)
    return run_recorded(program, environment, spec, other_gpus(target.machine, spec), folder, options)


def other_gpus(machine: Machine | None, spec: ProgramSpec) -> list[int]:
    """Return the GPUs of this host outside the plan, on which the program should not run."""
    if machine is None or not spec.gpus:
        return []
    return [gpu.index for gpu in machine.gpus if gpu.index not in spec.gpus]


def runs_on(name: str, target: Target) -> str:
    """Return on which GPUs of a host a program runs, or why it runs without a GPU."""
    if target.backend != "gpu" and target.rehearsal_of is None:
        return f"{target.why_cpu}: {name} runs without a GPU"
    return f"{name} runs on GPU {', '.join(map(str, target.plan.choice.gpus))}"


def make_folder(
    spec: ProgramSpec, plan: Plan, machine: Machine | None, options: OutputOptions
) -> runs.RunFolder | None:
    """Create the run's folder; None if the default place cannot be written.

    Raises GputopoError for a folder that the user gave.
    """
    try:
        return runs.create_run_folder(options.output, spec=spec, plan=plan, machine=machine)
    except GputopoError as error:
        if options.output is not None:
            raise
        note(f"{error.what}: this run is not recorded")
        return None


# Signals to the process group that must not end gputopo's own processes, such as the watch.
_FOR_THE_PROGRAM = (signal.SIGUSR1, signal.SIGUSR2)


def run_recorded(
    program: tuple[str, ...],
    environment: Mapping[str, str],
    spec: ProgramSpec,
    others: Sequence[int],
    folder: runs.RunFolder | None,
    options: OutputOptions,
) -> int:
    """Run and record the program, save and report the result, and return the exit code.

    `others`: GPUs outside the plan, on which the program should not run.
    """
    ours, stop, notices = OwnChildren(), ProgramStop(), _Notices()
    with contextlib.ExitStack() as ends:
        deliver = ends.enter_context(delivering(options, ours))

        def on_event(event: Event) -> None:
            notices.show(event)
            deliver(event)

        record = ends.enter_context(contextlib.closing(ProgramRecord(_log(folder), on_event, note)))
        with contextlib.ExitStack() as stack:
            from gputopo.probes import RunWatch

            pipe = None
            with contextlib.suppress(OSError):
                pipe = stack.enter_context(contextlib.closing(StepPipe()))
            with signals.blocked(_FOR_THE_PROGRAM):
                watch = stack.enter_context(RunWatch(spec.gpus, others))
            named = {} if pipe is None else {STEPS_FILE: str(pipe.name)}
            record.begin(spec)
            errors = ErrorOutput()
            stall = None
            if options.stall_timeout is not None:
                stacks = stack.enter_context(_stacks(folder))
                named |= {} if stacks is None else {STACKS_FILE: str(stacks)}
                given = options.stall_timeout
                patience = PROGRAM_PATIENCE if given == AUTO else hang_limits(given)
                who = PurePath(program[0]).name
                stall = StallWatch(patience, who, stop, ours, errors, stacks=stacks, now_s=time.monotonic())
            with recorded(record, watch, pipe, spec, stall=stall) as state:
                ending = run_to_end(
                    program,
                    {**environment, **named},
                    report=note,
                    ours=ours,
                    stop=stop,
                    errors=errors,
                )
        if state.stuck:
            note("the recording of this run could not be finished: no result is written")
            return ending.exit_code
        notices.are_over = True  # the report has them
        with signals.deferred():
            return _finished(record, program[0], ending, folder, options)


def _finished(
    record: ProgramRecord,
    name: str,
    ending: ProgramEnd,
    folder: runs.RunFolder | None,
    options: OutputOptions,
) -> int:
    from gputopo.report import program_lines

    record.finish(name, ending)
    result = record.summary.result()
    failure = None if result.status == "interrupted" else result.failure
    for line in () if failure is None else failure_lines(failure):
        note(line)
    for line in program_lines(result):
        note(line)
    if folder is not None:
        try:
            runs.write_result(folder, result)
        except GputopoError as error:
            note(error.what)
        note(f"run folder: {folder.path}")
    return _exit_code(result.exit_code, result, options)


def _exit_code(code: int, result: Result, options: OutputOptions) -> int:
    """Return the program's exit code, or 1 if it is 0 and --fail-on selects a problem of the run."""
    if code != 0 or options.fail_on is None:
        return code
    severities = {fault.severity for fault in result.hardware.faults} if result.hardware else set()
    outside = result.placed is not None and result.placed.word == OUTSIDE
    warned = result.is_slow or outside or "warning" in severities
    failed = "error" in severities or (options.fail_on == "warning" and warned)
    return ExitCode.FINDINGS if failed else code


def _log(folder: runs.RunFolder | None) -> runs.EventLog | None:
    if folder is None:
        return None
    try:
        return runs.EventLog(folder.events)
    except OSError as error:
        note(f"cannot write {folder.events}: {error.strerror}; continuing without recording")
        return None


@contextlib.contextmanager
def _stacks(folder: runs.RunFolder | None) -> Iterator[Path | None]:
    """Create the file for the program's stacks, and remove it if it stays empty."""
    file = None if folder is None else folder.stacks.absolute()  # the program may change its folder
    try:
        if file is not None:
            file.touch()
    except OSError:
        file = None
    yield file
    with contextlib.suppress(OSError):
        if file is not None and not file.stat().st_size:
            file.unlink()


class _Notices:
    """Shows on stderr what a user wants to read while the program runs, until the notices `are_over`."""

    are_over = False

    def show(self, event: Event) -> None:
        """Show an event that a user wants to read immediately."""
        if not self.are_over and isinstance(event, Noticed | Anomaly | AnomalyOver):
            note(event.says)
        if isinstance(event, RankFailed) and event.kind == "hung":  # while it still runs
            note(event.cause)
            note(event.remedy)
