"""Results of earlier runs on this machine, for a plan and for judging a run."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputopo.values.errors import GputopoError

if TYPE_CHECKING:
    from gputopo.launch.target import Target
    from gputopo.planner import Request
    from gputopo.prediction import Figure
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Learned
    from gputopo.values.run.result import Result
    from gputopo.values.run.spec import RunSpec
    from gputopo.values.run.verdict import Known
    from gputopo.workload import Workload


class Before(NamedTuple):
    """Speeds of one GPU in earlier runs, and the constants that runs of several GPUs corrected."""

    history: "tuple[Figure, ...]" = ()
    learned: "Learned | None" = None


def measured_before(machine: "Machine", request: "Request") -> Before:
    """Return what the latest runs show for a request; empty if none can be used or nothing is predicted."""
    if request.no_history or request.model is None or not request.predicts or not machine.gpus:
        return Before()
    from gputopo import runs

    past = [*runs.BoxHistory().past(with_short=True)]
    if not past:
        return Before()
    speeds, learned = runs.measured_before(machine, past, _workload_of)
    return Before(() if request.single_gpu_images_per_sec else speeds, learned)


def past_of(target: "Target") -> "list[Result]":
    """Return the latest runs on a target's machine, latest first; with other hosts if the target has them."""
    from gputopo.runs import BoxHistory

    machine = _box(target)
    if machine is None:
        return []
    found = BoxHistory().past(machine, of_hosts=bool(target.others), with_short=True)
    return [one.result for one in found]


def known_of(target: "Target", spec: "RunSpec", past: "Sequence[Result]") -> "Known | None":
    """Return the values that a run is judged by; None for a rehearsal."""
    from gputopo.runs import known_before

    machine = _box(target)
    if machine is None:
        return None
    if target.others:
        return known_before(spec, [one.machine for one in (target, *target.others)], target.plan, past)
    return known_before(spec, [machine], target.plan, past, _workload_of(spec.model))


def _box(target: "Target") -> "Machine | None":
    """Return the machine that runs the target; None for a rehearsal, which shows nothing about a machine."""
    return None if target.rehearsal_of is not None else target.machine or target.box


def _workload_of(model: str) -> "Workload | None":
    """Return the costs of a model; None if no table has them and none are stored."""
    from gputopo.launch.jobs.model_costs import known_workload

    with contextlib.suppress(GputopoError):
        return known_workload(model)
    return None
