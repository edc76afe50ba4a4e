"""Results of earlier runs on this machine, for a plan and for judging a run."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputopo.values.errors import GputopoError

if TYPE_CHECKING:
    from gputopo.launch.target import Target
    from gputopo.planner import Request
    from gputopo.prediction.one_gpu_speeds import Figure
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Learned
    from gputopo.values.run.result import Result
    from gputopo.values.run.spec import RunSpec
    from gputopo.values.run.verdict import Known
    from gputopo.workload.workloads import Workload


class Before(NamedTuple):
    """Speeds of one GPU in earlier runs, and the constants that runs of several GPUs corrected."""

    history: "tuple[Figure, ...]" = ()
    learned: "Learned | None" = None


def measured_before(machine: "Machine", request: "Request") -> Before:
    """Return what the latest runs show for a request; empty if none can be used or nothing is predicted."""
    if request.no_history or request.model is None or not request.predicts or not machine.gpus:
        return Before()
    from gputopo.runs import history

    past = [*history.past(history.history_file(), with_short=True)]
    if not past:
        return Before()
    from gputopo.prediction.one_gpu_speeds import past_speeds
    from gputopo.runs.past_runs import figures_by_marks, learned, past_run
    from gputopo.topology.same_machine import fingerprint

    speeds, key = past_speeds(run_before.result for run_before in past), fingerprint(machine)
    of_machine = (run_before.result for run_before in past if run_before.fingerprint == key)
    here = [run for result in of_machine if (run := past_run(result)) is not None]
    changed = learned(machine, here, speeds, _workload_of)
    if request.single_gpu_images_per_sec:
        return Before((), changed)
    return Before((*speeds, *figures_by_marks(machine, here)), changed)


def past_of(target: "Target") -> "list[Result]":
    """Return the latest runs on a target's machine, latest first; with other hosts if the target has them.

    None for a rehearsal, which shows nothing about a machine.
    """
    from gputopo.runs.history import history_file, past

    if target.rehearsal_of is not None:
        return []
    runs = past(history_file(), target.site.machine, of_hosts=bool(target.others), with_short=True)
    return [run.result for run in runs]


def known_of(target: "Target", spec: "RunSpec", past: "Sequence[Result]") -> "Known | None":
    """Return the values that a run is judged by; None for a rehearsal."""
    from gputopo.runs.known import known_before, known_of_hosts

    if target.rehearsal_of is not None:
        return None
    if target.others:
        machines = [host.machine for host in target.hosts]
        return known_of_hosts(spec, spec.devices, spec.batches, machines, target.plan, past)
    costs = _workload_of(spec.model)
    return known_before(spec, spec.devices, spec.batches, target.site.machine, target.plan, past, costs)


def _workload_of(model: str) -> "Workload | None":
    """Return the costs of a model; None if no table has them and none are stored."""
    from gputopo.launch.jobs.model_costs import known_workload

    with contextlib.suppress(GputopoError):
        return known_workload(model)
    return None
