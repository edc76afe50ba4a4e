"""The plan of a machine without GPUs: logical CPU devices, and the variables where the options say. Pure."""

import msgspec

from gputopo.planner.request import SPREAD
from gputopo.values.all_reduce import parse
from gputopo.values.errors import UsageError
from gputopo.values.plan import Candidate, Plan, VariableUpdate

CPU_DEVICES = 2
MOST_CPU_DEVICES = 64  # towers are built one by one; beyond this a typing mistake is more likely than a wish
_UPDATE_OF_AUTO = {"auto": "parameter_server"}


def cpu_plan(
    model: str | None,
    *,
    devices: int = CPU_DEVICES,
    ps: str = "auto",
    variable_update: str = "auto",
    all_reduce: str | None = None,
) -> Plan:
    """Give the plan of a machine without GPUs: no GPU chosen, variables where the options say.

    `ps` is auto (the same as cpu), cpu, gpu:N, which stands for the device of tower N, or gpu:spread over all
    of them. `variable_update` is auto (parameter_server, or replicated where `all_reduce` is given) or a
    VariableUpdate; the words were checked before.
    Raises UsageError for a tower that there is not, or what does not go with the variable update.
    """
    if not 1 <= devices <= MOST_CPU_DEVICES:
        raise UsageError(
            f"--num-gpus cannot be {devices} without GPUs", f"ask for 1 to {MOST_CPU_DEVICES} CPU devices"
        )
    if variable_update == "auto" and all_reduce is not None:
        variable_update = "replicated"
    update = msgspec.convert(_UPDATE_OF_AUTO.get(variable_update, variable_update), VariableUpdate)
    reasons = (f"no GPU to plan for: {counted_devices(devices)}",)
    if update == "parameter_server":
        place = _place(ps, devices)
        choice = Candidate(gpus=(), variable_update=update, ps_device=place, reasons=reasons)
    else:
        if ps != "auto":
            raise UsageError(
                f"--ps {ps} does not go with --variable-update {update}: every device has its own copy",
                "leave --ps out, or use --variable-update parameter_server",
            )
        reduction = parse(all_reduce or "copy").written if update == "replicated" else None
        choice = Candidate(gpus=(), variable_update=update, all_reduce=reduction, reasons=reasons)
    if all_reduce is not None and choice.all_reduce is None:
        raise UsageError(
            f"--all-reduce {all_reduce} does not go with --variable-update {update}: "
            "nothing is reduced between replicas",
            "leave --all-reduce out, or use --variable-update replicated",
        )
    return Plan(
        choice=choice,
        candidates=(choice,),
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        model=model,
        source="cpu",
    )


def counted_devices(count: int) -> str:
    """Give `1 logical CPU device` or `2 logical CPU devices`."""
    return f"{count} logical CPU device{'' if count == 1 else 's'}"


def _place(ps: str, devices: int) -> str:
    place = "cpu" if ps == "auto" else ps
    if place not in ("cpu", SPREAD) and int(place.removeprefix("gpu:")) >= devices:
        raise UsageError(
            f"--ps {place} names a device that is not there: {counted_devices(devices)}",
            f"give gpu:0 to gpu:{devices - 1}, or cpu",
        )
    return place
