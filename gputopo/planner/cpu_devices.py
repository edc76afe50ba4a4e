"""The plan for a machine without GPUs: logical CPU devices, with the variables as requested.

CPU devices share memory and cores, so nothing is predicted for them. Placements are listed in the order of
the work on the variables: once with a parameter server, on every device if each has a copy.
"""

from collections.abc import Sequence

from gputopo.planner.request import Request, check_placement, check_predicting, ps_gpu
from gputopo.prediction import Placement
from gputopo.values.errors import UsageError
from gputopo.values.run.all_reduce import Reduction, parse
from gputopo.values.run.plan import CPU_DEVICES, SPREAD, Candidate, Plan

MAX_CPU_DEVICES = 64  # towers are built one by one; a larger number is probably a typing mistake
PLACES = ("cpu", SPREAD)
# Reductions that add at once, in groups, as a ring (which adds once per device), and as TensorFlow's ring.
_REDUCTIONS = (
    "copy",
    "pscpu",
    "psgpu",
    "tf_hierarchical",
    "one_device",
    "hierarchical",
    "ring",
    "collective",
)


def cpu_plan(request: Request, devices: int = CPU_DEVICES) -> Plan:
    """Return the plan of a request for a machine without GPUs: no GPU chosen, variables as requested.

    `ps` auto is the same as cpu; gpu:N is the device of tower N. `variable_update` auto is replicated if
    `all_reduce` is given, else parameter_server. Options about GPUs are not used.

    Raises UsageError for a tower that does not exist, or an option that cannot be combined with the variable
    update.
    """
    check_predicting(request)
    if not 1 <= devices <= MAX_CPU_DEVICES:
        raise UsageError(
            f"--num-gpus cannot be {devices} without GPUs", f"request 1 to {MAX_CPU_DEVICES} CPU devices"
        )
    check_placement(request)
    tower = ps_gpu(request)
    if tower is not None and tower >= devices:
        raise UsageError(
            f"--ps {request.ps} is a device that does not exist: {counted_devices(devices)}",
            f"give gpu:0 to gpu:{devices - 1}, or cpu",
        )
    candidates = tuple(
        Candidate(
            gpus=(),
            **placing._asdict(),
            reasons=(f"no GPU to plan for: {counted_devices(devices)}",),
        )
        for placing in _placings(request, devices)
    )
    return Plan(
        choice=candidates[0],
        candidates=candidates,
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        model=request.model,
        source="cpu",
    )


def counted_devices(count: int) -> str:
    """Return `1 logical CPU device` or `2 logical CPU devices`."""
    return f"{count} logical CPU device{'' if count == 1 else 's'}"


def _placings(request: Request, devices: int) -> Sequence[Placement]:
    update = request.variable_update
    if update == "independent":
        return (Placement("independent"),)
    served = [
        Placement("parameter_server", place) for place in (PLACES if request.ps == "auto" else (request.ps,))
    ]
    if request.all_reduce is not None:
        replicated = [Placement("replicated", None, parse(request.all_reduce).written)]
    else:
        usable = (name for name in _REDUCTIONS if Reduction(name).why_not("cpu", devices) is None)
        replicated = [Placement("replicated", None, name) for name in usable]
    if update == "replicated" or request.all_reduce is not None:
        placings = replicated
    else:
        placings = served if update == "parameter_server" or request.ps != "auto" else [*served, *replicated]
    return placings[:1] if devices == 1 else placings
