"""Training from the command line: make the run's folder, supervise, show and save the result."""

import os
import signal
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import note, show_report, to_stderr
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.run.prepare import require_files_of, require_runnable
from gputopo.cli.run.showing import RunDisplay
from gputopo.launch.jobs.run import RunJob, RunOutcome, supervise, worker_command
from gputopo.launch.spec import env
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.watchdog import of_seconds
from gputopo.launch.supervise.worker_life import LIMITS, WorkerLimits
from gputopo.report.document import document_text
from gputopo.report.plan import summary_lines
from gputopo.values.errors import ExitCode, GputopoError, InputError
from gputopo.values.run.batches import AUTO

if TYPE_CHECKING:
    from gputopo.launch.hosts.messages import RunEnd
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target
    from gputopo.values.machine import Machine
    from gputopo.values.run.result import Result
    from gputopo.values.run.several_runs import Repeats
    from gputopo.values.run.verdict import Known

_FUTURE_SPEC = Path("RUN_FOLDER/spec.json")
_FUTURE_EVENTS_FD = 3
_Ending = GputopoError | KeyboardInterrupt | signals.EndedError


def train(
    target: "Target",
    spec: "RunSpec",
    options: OutputOptions,
    *,
    rendezvous: "RendezvousServer | None" = None,
) -> int:
    """Train to the end, once or repeatedly, print the result as requested, and return the exit code.

    `rendezvous`: with the other hosts of the run, which learn its end.
    """
    require_runnable(target, spec, options)
    predicted = summary_lines(target.plan) if target.rehearsal_of is None else ()
    require_files_of(spec)
    display = RunDisplay(
        options.shape, options.display_every, predicted, options.prometheus, options.on_anomaly
    )
    if options.repeats > 1:
        return _train_repeatedly(target, spec, options, display)
    results: list[Result] = []
    folders: list[Path] = []
    try:
        _train_once(target, spec, _folder(options), display, results, folders, options, rendezvous)
    except KeyboardInterrupt:
        if not results:
            raise
    try:
        _print(results[0], options)  # a Ctrl-C after the end of training changes nothing
    finally:
        to_stderr(f"Run folder: {folders[0]}\n")
    display.require_written()
    return _exit_code(results[0].exit_code, results, options)


def _folder(options: OutputOptions) -> Path | None:
    return None if options.output is None else Path(options.output)


def _train_repeatedly(target: "Target", spec: "RunSpec", options: OutputOptions, display: RunDisplay) -> int:
    """Run one after the other, each with its own worker and folder, and return the exit code.

    They end with a run that was stopped, with a signal between two of them, or where files cannot be written;
    completed ones are shown and saved nevertheless. A signal after the last one changes nothing.
    """
    from gputopo.runs.repeats import combine, ended_by

    results: list[Result] = []
    error: _Ending | None = None
    try:
        _repeats(target, spec, options, display, results)
    except (GputopoError, KeyboardInterrupt, signals.EndedError) as stopped:
        error = None if len(results) == options.repeats else stopped
    if results:
        repeats = combine(results, options.repeats)
        if error is not None:
            repeats = ended_by(repeats, *_ending_of(error))
        with signals.deferred():
            if options.output is not None and not _saved(repeats, Path(options.output)):
                repeats = ended_by(repeats, "failed", ExitCode.HARDWARE)
        _print_repeats(repeats, options.shape)
    if isinstance(error, signals.EndedError):
        to_stderr(f"gputopo: stopped by {error}\n")
        return _ending_of(error)[1]
    if error is not None:
        raise error
    display.require_written()
    return _exit_code(repeats.exit_code, results, options)


def _ending_of(error: _Ending) -> tuple[str, int]:
    """Return status and exit code of repeats that an error or a signal ended."""
    if isinstance(error, GputopoError):
        return "failed", error.exit_code
    number = error.number if isinstance(error, signals.EndedError) else signal.SIGINT
    return "interrupted", 128 + number


def _repeats(
    target: "Target", spec: "RunSpec", options: OutputOptions, display: RunDisplay, results: "list[Result]"
) -> None:
    """Run the repeats and add their results, up to one that was stopped.

    Raises what a run raises, and EndedError or KeyboardInterrupt for a signal between two of them.
    """
    with signals.raised():
        for number in range(1, options.repeats + 1):
            to_stderr(f"repeat {number} of {options.repeats}\n")
            folder = None if options.output is None else Path(options.output) / str(number)
            folders: list[Path] = []
            stopped = _train_once(target, spec, folder, display, results, folders, options)
            to_stderr(f"Run folder: {folders[0]}\n")
            if stopped:
                break


def _saved(repeats: "Repeats", output: Path) -> bool:
    """Write repeats.json; where it cannot be written, print why and go on to show the repeats."""
    from gputopo.values import schema

    try:
        schema.write(output / "repeats.json", repeats)
    except InputError as error:
        hint = (
            "free some space, or name another folder with --output; each repeat's folder has its own result"
        )
        to_stderr(f"gputopo: {error.what}\n  {hint}\n")
        return False
    return True


def _train_once(
    target: "Target",
    spec: "RunSpec",
    output: Path | None,
    display: RunDisplay,
    results: "list[Result]",
    folders: list[Path],
    options: OutputOptions,
    rendezvous: "RendezvousServer | None" = None,
) -> bool:
    """Train, save the result in the run's folder, add both to the lists; return whether it was stopped.

    A signal that comes after training waits until that is done.
    """
    folder = runs.create(
        output,
        home=runs.runs_home(os.environ),
        now=datetime.now(),
        spec=spec,
        plan=target.plan,
        machine=target.machine or target.box,
    )
    spec = _traced_into(folder, spec)
    from gputopo.launch.jobs.before import known_of, past_of
    from gputopo.runs.compared import with_prediction

    known = known_of(target, spec, past_of(target))
    outcome = _supervised(target, spec, folder, display, options, known, rendezvous)
    if rendezvous is not None:
        rendezvous.end(_end_of(outcome, spec))

    with signals.deferred():
        result = with_prediction(_judged(outcome.result), target.plan)
        result = _with_alone(result, target)
        results.append(runs.save_result(folder, result, time_s=time.time()))
        if not target.others:
            remember(results[-1], folder.path, target.box)
        folders.append(folder.path)
    return outcome.stopped


def remember(result: "Result", folder: Path, box: "Machine | None") -> None:
    """Add the run of a folder to the history, unless it is of another box or has faults that were asked for.

    A line reports what is lost because the history is damaged, or why the run cannot be added: its folder
    has it.
    """
    if box is None or result.spec.get("drills"):
        return
    from gputopo.runs.history import add, history_file

    try:
        if lost := add(history_file(), folder):
            note(lost)
    except GputopoError as error:
        note(f"the result is not in the history: {error.what}")


def _judged(result: "Result") -> "Result":
    """Add the verdict on this run's input from an earlier run."""
    from gputopo.runs.compared import input_verdict
    from gputopo.runs.history import history_file, past

    earlier = past(history_file(), model=result.spec.get("model"), of_hosts=result.of_several_hosts)
    found = input_verdict(result, ((one.folder, one.result) for one in earlier))
    return result if found is None else msgspec.structs.replace(result, input_verdict=found)


def _with_alone(result: "Result", target: "Target") -> "Result":
    """Add the speeds of the GPUs alone: by the latest screen of this job here, else by its runs here."""
    from gputopo.launch.supervise.run_folder import latest_screens
    from gputopo.runs.devices import alone_of_screen, with_alone
    from gputopo.runs.history import history_file, past
    from gputopo.runs.known import alone_of_run
    from gputopo.topology.same_machine import fingerprint

    machine = target.machine if result.backend == "gpu" else None
    here = None if machine is None else fingerprint(machine)
    if here is None:
        return result
    for path, screen in latest_screens(runs.runs_home(os.environ)):
        if screen.fingerprint == here and (found := alone_of_screen(result, screen)):
            return with_alone(result, found, str(path))
    alone: dict[int, float] = {}
    folders: dict[int, str] = {}
    earlier = past(history_file(), machine, model=result.spec.get("model"))
    for one in earlier if len(result.devices) > 1 else ():
        found = alone_of_run(result, one.result)
        alone = found | alone  # the latest run counts
        folders = dict.fromkeys(found, one.folder) | folders
    used = (folders[row.device.gpu] for row in result.devices if row.device.gpu in folders)
    return with_alone(result, alone, ", ".join(dict.fromkeys(used)))


def _exit_code(code: int, results: "Sequence[Result]", options: OutputOptions) -> int:
    if code == 0 and options.fail_on is not None and any(r.loss_not_finite is not None for r in results):
        return ExitCode.FINDINGS
    if code == 0 and options.fail_on == "warning" and any(result.is_slow for result in results):
        return ExitCode.FINDINGS
    return code


def _traced_into(folder: runs.RunFolder, spec: "RunSpec") -> "RunSpec":
    """Return the spec with the folder of its trace, which is in that of the run."""
    if not spec.lifecycle.trace_steps or spec.lifecycle.trace is not None:
        return spec
    from gputopo.values import schema

    placed = msgspec.structs.replace(spec.lifecycle, trace=str(folder.path.absolute() / "trace"))
    spec = msgspec.structs.replace(spec, lifecycle=placed)
    schema.write(folder.spec, spec)
    return spec


def show_only(target: "Target", spec: "RunSpec", options: OutputOptions) -> int:
    """Print what `train` would start, and start nothing."""
    from gputopo.cli.run.showing import show_dry_run

    require_runnable(target, spec, options)
    environment = target.environment(os.environ, spec)
    place = _FUTURE_SPEC if options.output is None else runs.RunFolder(Path(options.output)).spec
    command = worker_command(place, _FUTURE_EVENTS_FD)
    show_dry_run(target, spec, env.changes(os.environ, environment), command, options.shape)
    return ExitCode.OK


def _supervised(
    target: "Target",
    spec: "RunSpec",
    folder: runs.RunFolder,
    display: RunDisplay,
    options: OutputOptions,
    known: "Known | None",
    rendezvous: "RendezvousServer | None" = None,
) -> RunOutcome:
    stall = options.stall_timeout
    limits = LIMITS if stall is None or stall == AUTO else WorkerLimits(patience=of_seconds(stall))
    environment = target.environment(os.environ, spec)
    from gputopo.launch.spec.prepare import without_nccl
    from gputopo.probes.run_watch import RunWatch
    from gputopo.values.run.verdict import Known

    own = (device for device in spec.devices if device.rank == 0 and spec.backend == "gpu")
    gpus = [device.gpu for device in own if device.gpu is not None]
    with RunWatch(gpus) as sampler, display.one_run() as on_event:
        job = RunJob(
            spec=spec,
            folder=folder,
            on_event=on_event,
            environment=environment,
            command=worker_command,
            sampler=sampler,
            limits=limits,
            finds_batch=spec.rank is None,  # of a single worker: that of several needs the others
            restarts=options.restart,
            known=known or Known(),
            others=None if rendezvous is None else rendezvous.events,
            fallback=without_nccl(target, spec),
        )
        return supervise(job)


def _end_of(outcome: RunOutcome, spec: "RunSpec") -> "RunEnd":
    """Return what the other hosts are told of the end: a failure with its host, rank 0 as well."""
    from gputopo.launch.hosts.messages import RunEnd

    failed = outcome.result.failure
    if failed is None:
        return RunEnd(exit_code=outcome.exit_code)
    cause = failed.cause if failed.rank else f"host {spec.servers[0].host} (rank 0): {failed.cause}"
    return RunEnd(exit_code=outcome.exit_code, cause=cause, hint=failed.remedy)


def _print(result: "Result", options: OutputOptions) -> None:
    """Print the result. Log lines were printed during the run; a failure goes to stderr."""
    from gputopo.report.runs.report import failure_lines, run_document

    if options.shape == "tf-cnn-log":
        to_stderr("".join(f"{line}\n" for line in failure_lines(result)))
        return
    show_report(result, lambda: run_document(result, verbose=options.verbose), options.shape)


def _print_repeats(repeats: "Repeats", printed: str) -> None:
    """Print all repeats. Log lines were printed during the runs; the summary goes to stderr."""
    from gputopo.report.runs.report import repeats_document

    if printed == "tf-cnn-log":
        to_stderr(document_text(repeats_document(repeats)))
        return
    show_report(repeats, lambda: repeats_document(repeats), printed)
