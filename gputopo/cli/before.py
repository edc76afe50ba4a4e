"""What is known before a plan is made: the costs of the model, and what earlier runs of this machine say."""

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gputopo.cli.printing import note
from gputopo.values.errors import GputopoError, InputError

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.prediction.one_gpu.published import Figure
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Learned, Plan
    from gputopo.workload.workloads import Workload


class Before(NamedTuple):
    """Speeds of one GPU in earlier runs, and what runs of several GPUs changed in the constants."""

    history: "tuple[Figure, ...]" = ()
    learned: "Learned | None" = None


def measured_before(machine: "Machine", request: "Request") -> Before:
    """Return what the latest runs say of a request; nothing where none count or nothing is predicted."""
    if request.no_history or request.model is None or not request.predicts or not machine.gpus:
        return Before()
    from gputopo.launch.supervise.run_folder import past_results, runs_home
    from gputopo.prediction.one_gpu.speeds import past_speeds
    from gputopo.runs.predicted.past import figures_by_marks, learned, past_run

    past = list(past_results(runs_home(os.environ)))
    if not past:
        return Before()
    speeds = past_speeds(one.result for one in past)
    here = [run for one in past if (run := past_run(one.result)) is not None and one.is_of(machine)]
    changed = learned(machine, here, speeds, _workload_of)
    if request.single_gpu_images_per_sec:
        return Before((), changed)
    return Before((*speeds, *figures_by_marks(machine, here)), changed)


def _workload_of(model: str) -> "Workload | None":
    """Return the costs of a model, None where no table has them and none are stored."""
    from gputopo.launch.jobs.model_costs import known_workload

    with contextlib.suppress(GputopoError):
        return known_workload(model)
    return None


def with_costs(request: "Request") -> "Request":
    """Return the request with the costs of a model that no table has, which is built if none are stored.

    Why it cannot be built here is printed to stderr. Raises UsageError for a model that cannot be built.
    """
    if request.model is None or ":" not in request.model or not request.predicts:
        return request
    from gputopo.launch.jobs.model_costs import known_workload, workload_of

    workload = known_workload(request.model)
    if workload is None:
        note(f"building {request.model} once to count what it costs")
        try:
            workload = workload_of(request.model)
        except InputError as error:
            note(error.what)
    return msgspec.structs.replace(request, workload=workload)


def warn(chosen: "Plan") -> None:
    """Print to stderr which GPUs were passed over, or taken nevertheless, and why."""
    for line in chosen.warnings:
        note(line)
