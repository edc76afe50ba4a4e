"""The plan for a machine without GPUs: logical CPU devices, with the variables as requested.

CPU devices share memory and cores, so nothing is predicted for them. Placements are listed in the order of
the work on the variables: once with a parameter server, on every device if each has a copy.
"""

from collections.abc import Sequence

from gputopo.planner.request import Request, check_placement
from gputopo.prediction.step import Placement
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


def cpu_plan(
    model: str | None,
    *,
    devices: int = CPU_DEVICES,
    ps: str = "auto",
    variable_update: str = "auto",
    all_reduce: str | None = None,
) -> Plan:
    """Return the plan for a machine without GPUs: no GPU chosen, variables as requested.

    `ps` is auto (the same as cpu), cpu, gpu:N (the device of tower N), or gpu:spread (over all devices).
    `variable_update` is auto (replicated if `all_reduce` is given, else parameter_server) or a
    VariableUpdate. The caller has checked both.

    Raises UsageError for a tower that does not exist, or an option that cannot be combined with the variable
    update.
    """
    if not 1 <= devices <= MAX_CPU_DEVICES:
        raise UsageError(
            f"--num-gpus cannot be {devices} without GPUs", f"request 1 to {MAX_CPU_DEVICES} CPU devices"
        )
    check_placement(Request(ps=ps, variable_update=variable_update, all_reduce=all_reduce))
    if ps not in ("auto", *PLACES) and int(ps.removeprefix("gpu:")) >= devices:
        raise UsageError(
            f"--ps {ps} is a device that does not exist: {counted_devices(devices)}",
            f"give gpu:0 to gpu:{devices - 1}, or cpu",
        )
    reduction = None if all_reduce is None else parse(all_reduce).written
    candidates = tuple(
        Candidate(
            gpus=(),
            **placing._asdict(),
            reasons=(f"no GPU to plan for: {counted_devices(devices)}",),
        )
        for placing in _placings(devices, ps, variable_update, reduction)
    )
    return Plan(
        choice=candidates[0],
        candidates=candidates,
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        model=model,
        source="cpu",
    )


def counted_devices(count: int) -> str:
    """Return `1 logical CPU device` or `2 logical CPU devices`."""
    return f"{count} logical CPU device{'' if count == 1 else 's'}"


def _placings(devices: int, ps: str, variable_update: str, all_reduce: str | None) -> Sequence[Placement]:
    if variable_update == "independent":
        return (Placement("independent"),)
    served = [Placement("parameter_server", place) for place in (PLACES if ps == "auto" else (ps,))]
    names = [name for name in _REDUCTIONS if Reduction(name).why_not("cpu", devices) is None]
    copied = [Placement("replicated", None, name) for name in (names if all_reduce is None else [all_reduce])]
    if variable_update == "replicated" or all_reduce is not None:
        found = copied
    else:
        found = served if variable_update == "parameter_server" or ps != "auto" else [*served, *copied]
    return found[:1] if devices == 1 else found
