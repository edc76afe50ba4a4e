"""A training from its target to its stored result: its folder, its supervision, and later verdicts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gputopo.launch.hosts.messages import RunEnd
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.run import Display, RunJob, RunOutcome, supervise
from gputopo.launch.spec.prepare import without_nccl
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.deliveries import delivering
from gputopo.launch.supervise.sampling import watch_of
from gputopo.launch.supervise.watchdog import hang_limits
from gputopo.launch.supervise.worker_life import LIMITS, WorkerLimits
from gputopo.launch.target import Target
from gputopo.report import note
from gputopo.runs import BoxHistory, judge_input, with_alone, with_prediction
from gputopo.values import schema
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Machine
from gputopo.values.run.batches import AUTO
from gputopo.values.run.events import Event
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.result import Result
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.verdict import Known

if TYPE_CHECKING:
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer


class Ran(NamedTuple):
    """A run that has ended. `stopped`: by a signal."""

    result: Result
    folder: Path
    stopped: bool


def train_once(
    target: Target,
    spec: RunSpec,
    options: OutputOptions,
    display: Display,
    *,
    rendezvous: "RendezvousServer | None" = None,
) -> Ran:
    """Train once, and save the result.

    `rendezvous`: with the other hosts of the run, which are told its end. Raises GputopoError if a file
    cannot be read or written.
    """
    require_files_of(spec)
    ran: list[Ran] = []
    output = None if options.output is None else Path(options.output)
    try:
        train_into(output, target, spec, options, display, ran, rendezvous)
    except KeyboardInterrupt:  # a Ctrl-C after the end of training changes nothing
        if not ran:
            raise
    return ran[0]


def require_files_of(spec: RunSpec) -> None:
    """Check the folders of saved files, as the worker does much later. Raises GputopoError."""
    saved = spec.lifecycle
    trains = spec.task == "train" and (saved.checkpoints or saved.export or saved.tensorboard)
    if spec.task == "eval" or trains:
        from gputopo.launch.train import require_files  # loads NumPy

        require_files(spec)


def train_into(
    output: Path | None,
    target: Target,
    spec: RunSpec,
    options: OutputOptions,
    display: Display,
    ran: list[Ran],
    rendezvous: "RendezvousServer | None" = None,
) -> None:
    """Train in the folder `output` (None: a new folder), save the result there, and add the run to `ran`.

    A signal after training is deferred until this is done, and is raised then.
    """
    folder = runs.create_run_folder(output, spec=spec, plan=target.plan, machine=target.site.machine)
    if spec.lifecycle.trace_steps and spec.lifecycle.trace is None:  # the trace is in the run's folder
        trace = str(folder.path.absolute() / "trace")
        spec = msgspec.structs.replace(spec, lifecycle=msgspec.structs.replace(spec.lifecycle, trace=trace))
        schema.write(folder.spec, spec)
    outcome = _supervised(target, spec, folder, options, display, rendezvous)
    if rendezvous is not None:
        rendezvous.end(_end_of(outcome, spec))
    with signals.deferred():
        result = outcome.result
        earlier = BoxHistory().past(model=result.spec.get("model"), of_hosts=result.of_several_hosts)
        verdict = judge_input(result, ((run.folder, run.result) for run in earlier))
        if verdict is not None:
            result = msgspec.structs.replace(result, input_verdict=verdict)
        result = with_prediction(result, target.plan)
        screens = runs.latest_screens(runs.runs_home(os.environ))
        result = runs.save_result(folder, with_alone(result, target.machine, screens, BoxHistory()))
        if not target.others:
            remember(result, folder.path, None if target.rehearsal_of else target.site.machine)
        ran.append(Ran(result, folder.path, outcome.stopped))


def _supervised(
    target: Target,
    spec: RunSpec,
    folder: runs.RunFolder,
    options: OutputOptions,
    display: Display,
    rendezvous: "RendezvousServer | None",
) -> RunOutcome:
    stall = options.stall_timeout
    known = known_of(target, spec, past_of(target))
    # Deliveries end before the display, which shows their messages.
    with watch_of(spec) as sampler, display() as show, delivering(options) as deliver:

        def on_event(event: Event) -> None:
            show(event)
            deliver(event)

        job = RunJob(
            spec=spec,
            folder=folder,
            on_event=on_event,
            environment=target.environment(os.environ, spec),
            sampler=sampler,
            limits=LIMITS if stall is None or stall == AUTO else WorkerLimits(patience=hang_limits(stall)),
            finds_batch=spec.rank is None,  # only for a single worker, because a try needs all workers
            restarts=options.restart,
            known=known or Known(),
            others=None if rendezvous is None else rendezvous.events,
            fallback=without_nccl(target, spec),
        )
        return supervise(job)


def remember(result: Result, folder: Path, box: Machine | None) -> None:
    """Add a run to the history, unless it is of another machine or has requested faults (drills).

    A line reports what is lost because the history is damaged, or why the run cannot be added. The run's
    folder has the result in any case.
    """
    if box is None or result.spec.get("drills"):
        return
    try:
        if lost := BoxHistory().add(folder):
            note(lost)
    except GputopoError as error:
        note(f"the result is not in the history: {error.what}")


def _end_of(outcome: RunOutcome, spec: RunSpec) -> RunEnd:
    """Return what the other hosts are told at the end. A failure has its host, also on rank 0."""
    failed = outcome.result.failure
    if failed is None:
        return RunEnd(exit_code=outcome.exit_code)
    cause = failed.cause if failed.rank else f"host {spec.servers[0].host} (rank 0): {failed.cause}"
    return RunEnd(exit_code=outcome.exit_code, cause=cause, hint=failed.remedy)
