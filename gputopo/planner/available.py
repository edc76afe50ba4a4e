"""The plan for this machine, with the GPUs that this process may use.

These are the GPUs in CUDA_VISIBLE_DEVICES (NVML also lists GPUs that Slurm or the user hides) that no other
process has claimed (`gputopo.launch.jobs.claims`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputopo.planner.choose import plan, plan_environment
from gputopo.planner.request import Request, ps_gpu
from gputopo.prediction import Figure
from gputopo.values.errors import HardwareError, NoPlanError, UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.plan import Learned, Plan

NAME = "CUDA_VISIBLE_DEVICES"
_INDEX = re.compile(r"\s*([+-]?[0-9]{1,9})", re.ASCII)


def visible_gpus(environ: Mapping[str, str], machine: Machine) -> tuple[int, ...] | None:
    """Return the GPUs that a program started here sees, in its order, or None for all.

    CUDA's rules ("CUDA Environment Variables" in its programming guide; torch/cuda/__init__.py,
    `_parse_visible_devices`):

    - The first entry decides whether the list has numbers, UUIDs or MIG instances.
    - The list ends at the first entry that matches no GPU or several. An entry that is given twice hides all.
    - Numbers are in PCI order with CUDA_DEVICE_ORDER=PCI_BUS_ID, else in CUDA's order. Characters after the
      digits are ignored. A UUID may be shortened.
    - A program gets only the first MIG instance of a list. Its GPU is visible; if that is not known, all GPUs
      in MIG mode are.

    None for UUIDs if the machine does not know the UUIDs of its GPUs.
    """
    value = environ.get(NAME)
    if value is None:
        return None
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith("MIG-"):
        return tuple(gpu.index for gpu in machine.gpus if _has_instance(gpu, entries[0]))
    by_uuid = entries[0].startswith("GPU-")
    if by_uuid and any(gpu.uuid is None for gpu in machine.gpus):
        return None
    pci_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    seen: list[int] = []
    for entry in entries:
        if by_uuid:
            named = [gpu.index for gpu in machine.gpus if (gpu.uuid or "").startswith(entry)]
            named = named if entry.startswith("GPU-") else []
        else:
            named = [gpu.index for gpu in machine.gpus if _has_number(gpu, entry, pci_order=pci_order)]
        if len(named) != 1:
            break
        if named[0] in seen:
            return ()
        seen.append(named[0])
    return tuple(seen)


def hidden_gpus(environ: Mapping[str, str], machine: Machine) -> dict[int, str]:
    """Return the GPUs that are hidden from a program started here, with the reason."""
    seen = visible_gpus(environ, machine)
    if seen is None:
        return {}
    return {gpu.index: f"hidden by {NAME}" for gpu in machine.gpus if gpu.index not in seen}


def plan_here(
    machine: Machine,
    request: Request,
    environ: Mapping[str, str],
    claimed: Mapping[int, str],
    *,
    unusable: Mapping[int, str] = {},
    history: Sequence[Figure] = (),
    learned: Learned | None = None,
    keep: int | None = None,
) -> Plan:
    """Plan for this machine without GPUs that are hidden, `unusable`, or `claimed` by others (with reasons).

    Raises UsageError and NoPlanError as `plan` does, UsageError for a hidden GPU that is requested by index,
    and HardwareError if claims of other processes leave too few GPUs.
    """
    hidden = hidden_gpus(environ, machine)
    holder = ps_gpu(request)
    named = {*(request.gpus or ()), *(() if holder is None else (holder,))}
    if shut := sorted(named & hidden.keys()):
        visible = [str(gpu.index) for gpu in machine.gpus if gpu.index not in hidden]
        use = f"use {', '.join(visible)}, or " if visible else ""
        raise UsageError(f"GPU {shut[0]} is not visible here: {NAME}={environ[NAME]}", f"{use}unset {NAME}")
    exact = (request.gpus or ()) if request.num_gpus is None else ()
    require_unclaimed((*exact, *(() if holder is None else (holder,))), claimed, machine)
    try:
        left_out = {**claimed, **unusable, **hidden}
        planned = plan(machine, request, unavailable=left_out, history=history, learned=learned, keep=keep)
        order = visible_gpus(environ, machine) or ()
        if request.model is None and {*planned.choice.gpus} <= {*order}:
            # A program numbers its GPUs as its user does.
            gpus = tuple(sorted(planned.choice.gpus, key=order.index))
            choice = msgspec.structs.replace(planned.choice, gpus=gpus)
            environment = plan_environment(machine, gpus)
            return msgspec.structs.replace(planned, choice=choice, environment=environment)
        return planned
    except NoPlanError as error:
        if not claimed:
            raise
        plan(machine, request, unavailable={**unusable, **hidden})  # raises if claims are not the reason
        first = min(claimed)
        hint = f"GPU {first} is {claimed[first]}: wait until it has ended, or request fewer GPUs"
        raise HardwareError(error.what, hint) from error


def require_unclaimed(named: Iterable[int], others: Mapping[int, str], machine: Machine) -> None:
    """Raise HardwareError if another process has claimed one of the requested GPUs."""
    taken = sorted({*named} & others.keys())
    if taken:
        free = [str(gpu.index) for gpu in machine.gpus if gpu.index not in others and not gpu.lost]
        use = f", or use {', '.join(free)}" if free else ""
        raise HardwareError(f"GPU {taken[0]} is {others[taken[0]]}", f"wait until it has ended{use}")


def _has_number(gpu: Gpu, entry: str, *, pci_order: bool) -> bool:
    match = _INDEX.match(entry)
    number = gpu.index if pci_order or gpu.cuda_index is None else gpu.cuda_index
    return match is not None and int(match[1]) == number and not match[1].startswith("-")


def _has_instance(gpu: Gpu, entry: str) -> bool:
    """Return whether a MIG instance may be on this GPU.

    `MIG-GPU-<uuid>/1/0` has the UUID of its GPU; `MIG-<uuid>` may be on any GPU whose MIG mode is not off.
    """
    parent = re.match(r"MIG-(GPU-[^/]+)/", entry)
    if parent is not None and gpu.uuid is not None:
        return gpu.uuid == parent[1]
    return gpu.mig.mode is not False
