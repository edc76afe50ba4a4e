"""What is known before a plan is made: the costs of the model, and what earlier runs of this machine say."""

from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import note
from gputopo.launch.jobs.before import Before, measured_before
from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.values.run.plan import Plan

__all__ = ["Before", "measured_before", "warn", "with_costs"]


def with_costs(request: "Request") -> "Request":
    """Return the request with the costs of a model that no table has, which is built if none are stored.

    Why it cannot be built here is printed to stderr. Raises UsageError for a model that cannot be built.
    """
    if request.model is None or ":" not in request.model or not request.predicts:
        return request
    from gputopo.launch.jobs.model_costs import known_workload, workload_of
    from gputopo.launch.models.source_check import require_there

    workload = known_workload(request.model)
    if workload is None:
        require_there(request.model)
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
