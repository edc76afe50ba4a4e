"""The built-in core from the command line: make the run's folder, supervise, show, keep the result."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import tell
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.run.showing import Showing
from gputopo.launch.jobs.run import Outcome, supervise, worker_command
from gputopo.launch.spec import env
from gputopo.launch.spec.readers import is_utf8
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.values.errors import ExitCode, GputopoError, InputError, UsageError
from gputopo.values.option import shown

if TYPE_CHECKING:
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target
    from gputopo.launch.supervise.sampling import Sampler
    from gputopo.runs.repeats import Repeats
    from gputopo.values.result import Result

_SPEC_OF_A_RUN_TO_COME = Path("RUN_FOLDER/spec.json")
_EVENTS_FD_TO_COME = 3
_Ending = GputopoError | KeyboardInterrupt | signals.EndedError


def train(target: "Target", spec: "RunSpec", wanted: OutputOptions) -> int:
    """Train to the end, once or repeatedly, print the result as wanted, and return the exit code."""
    _check(target, spec, wanted)
    showing = Showing(wanted.shape, wanted.display_every)
    if wanted.repeats > 1:
        return _train_repeatedly(target, spec, wanted, showing)
    results: list[Result] = []
    try:
        _train_once(target, spec, _folder(wanted), showing, results)
    except KeyboardInterrupt:
        if not results:
            raise
    _print(results[0], wanted.shape)  # a Ctrl-C behind the end of training has nothing left to end
    showing.require_written()
    return _exit_code(results[0].exit_code, results, wanted)


def _folder(wanted: OutputOptions) -> Path | None:
    return None if wanted.output is None else Path(wanted.output)


def _require_repeatable(spec: "RunSpec") -> None:
    """Raise UsageError for what the first repeat would leave in the way of the second."""
    kept = spec.lifecycle
    saves = spec.task == "train"  # an evaluation only reads
    for option, folder in (
        ("--checkpoints", kept.checkpoints if saves else None),
        ("--export", kept.export),
        ("--tensorboard", kept.tensorboard),
    ):
        if folder is not None:
            raise UsageError(
                f"--repeats does not go with {option}: all repeats would write to {folder}",
                f"leave {option} out, or run once without --repeats",
            )


def _train_repeatedly(target: "Target", spec: "RunSpec", wanted: OutputOptions, showing: Showing) -> int:
    """One run after the other, each with its own worker and folder; one that was stopped is the last.

    What cannot begin or be written any more, and a signal between two of them, ends them too; those before
    are shown and kept all the same. A signal behind the last one has nothing left to end.
    """
    from gputopo.runs.repeats import combine, ended_by

    results: list[Result] = []
    error: _Ending | None = None
    try:
        _repeats(target, spec, wanted, showing, results)
    except (GputopoError, KeyboardInterrupt, signals.EndedError) as stopped:
        error = None if len(results) == wanted.repeats else stopped
    if results:
        repeats = combine(results, wanted.repeats)
        if error is not None:
            repeats = ended_by(repeats, *_told(error))
        with signals.deferred():
            if wanted.output is not None and not _saved(repeats, Path(wanted.output)):
                repeats = ended_by(repeats, "failed", ExitCode.HARDWARE)
        _print_repeats(repeats, wanted.shape)
    if isinstance(error, signals.EndedError):
        tell(f"gputopo: stopped by {error}\n")
        return _told(error)[1]
    if error is not None:
        raise error
    showing.require_written()
    return _exit_code(repeats.exit_code, results, wanted)


def _told(error: _Ending) -> tuple[str, int]:
    """Give the status and the exit code of repeats that something beside them ended."""
    if isinstance(error, GputopoError):
        return "failed", error.exit_code
    number = error.number if isinstance(error, signals.EndedError) else signal.SIGINT
    return "interrupted", 128 + number


def _repeats(
    target: "Target", spec: "RunSpec", wanted: OutputOptions, showing: Showing, results: "list[Result]"
) -> None:
    """Take the repeats and add their results, up to one that was stopped.

    Raises what a run raises, and EndedError or KeyboardInterrupt for a signal between two of them.
    """
    with signals.raised():
        for number in range(1, wanted.repeats + 1):
            tell(f"repeat {number} of {wanted.repeats}\n")
            folder = None if wanted.output is None else Path(wanted.output) / str(number)
            if _train_once(target, spec, folder, showing, results):
                break


def _saved(repeats: "Repeats", output: Path) -> bool:
    """Write repeats.json; where it cannot be written say so, for the repeats themselves are worth showing."""
    from gputopo.values import schema

    try:
        schema.write(output / "repeats.json", repeats)
    except InputError as error:
        hint = (
            "free some space, or name another folder with --output; each repeat's folder has its own result"
        )
        tell(f"gputopo: {error.what}\n  {hint}\n")
        return False
    return True


def _train_once(
    target: "Target", spec: "RunSpec", output: Path | None, showing: Showing, results: "list[Result]"
) -> bool:
    """Train, keep the result in the run's folder and add it to `results`; tell whether somebody stopped it.

    A signal that comes after training waits until that is done.
    """
    folder = runs.create(
        output,
        home=runs.runs_home(os.environ),
        now=datetime.now(),
        spec=spec,
        plan=target.plan,
        machine=target.machine,
    )
    spec = _traced_into(folder, spec)
    outcome = _supervised(target, spec, folder, showing)
    from gputopo.runs.summary import summarise

    with signals.deferred():
        result = _judged(summarise(outcome.events), folder)
        results.append(runs.save_result(folder, result, time_s=time.time()))
        tell(f"Run folder: {folder.path}\n")
    return outcome.stopped


def _judged(result: "Result", folder: runs.RunFolder) -> "Result":
    """Add what an earlier run says of this one's input."""
    from gputopo.launch.supervise.run_folder import latest_results
    from gputopo.runs.input_verdict import verdict

    earlier = latest_results(runs.runs_home(os.environ), but=folder.path)
    # The verdict names the other run's folder, and a result is written in UTF-8.
    found = verdict(result, ((where.encode(errors="replace").decode(), other) for where, other in earlier))
    return result if found is None else msgspec.structs.replace(result, input_verdict=found)


def _exit_code(code: int, results: "Sequence[Result]", wanted: OutputOptions) -> int:
    if code == 0 and wanted.fail_on == "warning" and any(result.anomalies for result in results):
        return ExitCode.FINDINGS
    return code


def _check(target: "Target", spec: "RunSpec", wanted: OutputOptions) -> None:
    """Check before the worker starts what is cheap to see here. Raises GputopoError."""
    from gputopo.launch.spec.memory_check import require_room
    from gputopo.launch.spec.numerics import require_numerics
    from gputopo.launch.supervise.oom import memory_bytes

    if wanted.repeats > 1:
        _require_repeatable(spec)
    if spec.lifecycle.trace_steps and wanted.output is None:
        _require_home_of_traces(runs.runs_home(os.environ).absolute())
    require_numerics(spec, env.worker_env(os.environ, spec, target.plan.environment))
    require_room(spec, target.machine, host_bytes=memory_bytes())
    if spec.data.folder is not None:
        from gputopo.launch.data.folder import find

        find(Path(spec.data.folder), spec.data.name)


def _require_home_of_traces(home: Path) -> None:
    """Raise InputError where the spec, which is UTF-8, could not name the folder that a trace goes into."""
    if not is_utf8(str(home)):
        raise InputError(
            f"--trace writes into the folder of runs, and {shown(str(home))} is no UTF-8, in which a run is "
            "written down",
            "name another folder with --output, or set GPUTOPO_HOME",
        )


def _traced_into(folder: runs.RunFolder, spec: "RunSpec") -> "RunSpec":
    """A trace that was asked for goes into the run's folder, which is known only now."""
    if not spec.lifecycle.trace_steps or spec.lifecycle.trace is not None:
        return spec
    from gputopo.values import schema

    placed = msgspec.structs.replace(spec.lifecycle, trace=str(folder.path.absolute() / "trace"))
    spec = msgspec.structs.replace(spec, lifecycle=placed)
    schema.write(folder.spec, spec)
    return spec


def show_only(target: "Target", spec: "RunSpec", wanted: OutputOptions) -> int:
    """Print what `train` would do, and do nothing."""
    from gputopo.cli.run.dry import show_dry_run

    _check(target, spec, wanted)
    environment = env.worker_env(os.environ, spec, target.plan.environment)
    place = _SPEC_OF_A_RUN_TO_COME if wanted.output is None else runs.RunFolder(Path(wanted.output)).spec
    command = worker_command(place, _EVENTS_FD_TO_COME)
    show_dry_run(target.plan, spec, env.changes(os.environ, environment), command, wanted.shape)
    return ExitCode.OK


def _supervised(target: "Target", spec: "RunSpec", folder: runs.RunFolder, showing: Showing) -> Outcome:
    environment = env.worker_env(os.environ, spec, target.plan.environment)
    with _monitor(spec) as sampler, showing.one_run() as on_event:
        return supervise(
            spec, folder, on_event, environment=environment, command=worker_command, sampler=sampler
        )


@contextlib.contextmanager
def _monitor(spec: "RunSpec") -> "Iterator[Sampler | None]":
    """NVML's samples on the GPU backend. Where NVML refuses, the run goes on without, and it is said."""
    if spec.backend == "cpu":
        yield None
        return
    from gputopo.probes.nvml.door import NotReadError
    from gputopo.probes.sampler import Monitor

    try:
        monitor = Monitor([device.gpu for device in spec.devices if device.gpu is not None])
    except NotReadError as error:
        tell(f"The GPUs' clocks cannot be sampled: {error}\n")
        yield None
        return
    with monitor:
        yield monitor


def _print(result: "Result", printed: str) -> None:
    """Print the result. The log lines were printed as they came; a failure is told beside them."""
    from gputopo.cli.printing import emit, show

    if printed == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(result))
        return
    from gputopo.report.runs.report import failure_lines, run_report

    if printed == "tf-cnn-log":
        tell("".join(f"{line}\n" for line in failure_lines(result)))
        return
    show(lambda width: run_report(result, width))


def _print_repeats(repeats: "Repeats", printed: str) -> None:
    """Print all repeats. The log lines of each were printed as they came; the rest is told beside them."""
    from gputopo.cli.printing import emit, show

    if printed == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(repeats))
        return
    from gputopo.report.layout import text_of
    from gputopo.report.runs.report import repeats_report

    if printed == "tf-cnn-log":
        tell(text_of(repeats_report(repeats)))
        return
    show(lambda width: repeats_report(repeats))
