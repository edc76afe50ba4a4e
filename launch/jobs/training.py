"""A training from its target to its stored result: its folder, its supervision, and later verdicts."""

import contextlib
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gputopo.launch.hosts.messages import RunEnd
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.run import RunJob, RunOutcome, supervise
from gputopo.launch.spec.prepare import without_nccl
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.watchdog import of_seconds
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

Watch = Callable[[], contextlib.AbstractContextManager[Callable[[Event], None]]]
"""Shows a run while it lasts: the value of its `with` block gets each event."""


class Ran(NamedTuple):
    """A run that has ended. `stopped`: by a signal."""

    result: Result
    folder: Path
    stopped: bool


def train(
    target: Target,
    spec: RunSpec,
    output: Path | None,
    options: OutputOptions,
    watch: Watch,
    ran: list[Ran],
    *,
    rendezvous: "RendezvousServer | None" = None,
) -> None:
    """Train in the folder `output` (None: a new folder), save the result there, and add the run to `ran`.

    A signal after training is deferred until this is done, and is raised then. `rendezvous`: with the other
    hosts of the run, which are told its end. Raises GputopoError if a file cannot be written.
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
    outcome = _supervised(target, spec, folder, options, watch, rendezvous)
    if rendezvous is not None:
        rendezvous.end(_end_of(outcome, spec))
    with signals.deferred():
        result = with_prediction(_judged(outcome.result), target.plan)
        screens = runs.latest_screens(runs.runs_home(os.environ))
        result = with_alone(result, target.machine, screens, BoxHistory())
        result = runs.save_result(folder, result, time_s=time.time())
        if not target.others:
            remember(result, folder.path, target.box)
        ran.append(Ran(result, folder.path, outcome.stopped))


def _supervised(
    target: Target,
    spec: RunSpec,
    folder: runs.RunFolder,
    options: OutputOptions,
    watch: Watch,
    rendezvous: "RendezvousServer | None",
) -> RunOutcome:
    from gputopo.probes import RunWatch

    stall = options.stall_timeout
    known = known_of(target, spec, past_of(target))
    own = (device for device in spec.devices if device.rank == 0 and spec.backend == "gpu")
    with RunWatch([one.gpu for one in own if one.gpu is not None]) as sampler, watch() as on_event:
        job = RunJob(
            spec=spec,
            folder=folder,
            on_event=on_event,
            environment=target.environment(os.environ, spec),
            sampler=sampler,
            limits=LIMITS if stall is None or stall == AUTO else WorkerLimits(patience=of_seconds(stall)),
            finds_batch=spec.rank is None,  # only for a single worker, because a try needs all workers
            restarts=options.restart,
            known=known or Known(),
            others=None if rendezvous is None else rendezvous.events,
            fallback=without_nccl(target, spec),
        )
        return supervise(job)


def _traced_into(folder: runs.RunFolder, spec: RunSpec) -> RunSpec:
    """Return the spec with the folder of its trace, which is in the run's folder."""
    if not spec.lifecycle.trace_steps or spec.lifecycle.trace is not None:
        return spec
    placed = msgspec.structs.replace(spec.lifecycle, trace=str(folder.path.absolute() / "trace"))
    spec = msgspec.structs.replace(spec, lifecycle=placed)
    schema.write(folder.spec, spec)
    return spec


def _judged(result: Result) -> Result:
    """Add a verdict on the input pipeline of this run, from an earlier run."""
    earlier = BoxHistory().past(model=result.spec.get("model"), of_hosts=result.of_several_hosts)
    found = judge_input(result, ((one.folder, one.result) for one in earlier))
    return result if found is None else msgspec.structs.replace(result, input_verdict=found)


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
