"""On what a run runs: the GPUs of this machine, CPU devices in their place, or nothing. Pure.

| the machine                             | a run                                                    |
|-----------------------------------------|----------------------------------------------------------|
| a capture (`--from`)                    | its plan is rehearsed on CPU devices                     |
| an NVIDIA device, no working driver     | HardwareError, exit 3: never silently on the CPU         |
| no NVIDIA device, or none visible       | CPU devices, and every output says so                    |
| GPUs                                    | the plan's GPUs, of those that CUDA_VISIBLE_DEVICES leaves |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputopo import planner
from gputopo.findings import driver_broken
from gputopo.launch.spec.cpu_plan import CPU_DEVICES, cpu_plan
from gputopo.launch.spec.env import narrowed
from gputopo.launch.spec.run_spec import Backend
from gputopo.planner import Request
from gputopo.planner.request import ps_gpu
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.plan import Plan

_NONE_THERE = "No NVIDIA device"
_NONE_VISIBLE = "CUDA_VISIBLE_DEVICES hides all GPUs"


@dataclass(frozen=True)
class Target:
    """The plan, its machine (None: no GPU to plan for), and the backend it runs on.

    `why_cpu`: why it runs on CPU devices, a clause such as "No NVIDIA device"; None on GPUs. `rehearsal_of`:
    name of the captured machine. `cpu_devices`: number of devices of a plan without GPUs.
    """

    backend: Backend
    plan: Plan
    machine: Machine | None
    why_cpu: str | None = None
    rehearsal_of: str | None = None
    cpu_devices: int = CPU_DEVICES


def target_of(
    machine: Machine,
    request: Request,
    *,
    environ: Mapping[str, str],
    rehearsal_of: str | None = None,
    require_gpu: bool = False,
) -> Target:
    """Plan for the machine, and say on what the plan runs.

    `machine` is this one, or the captured one if `rehearsal_of` names it. Raises HardwareError for a broken
    driver, or for no GPU where one is required; UsageError and NoPlanError for a request that cannot be met.
    """
    if rehearsal_of is not None:
        if require_gpu:
            raise UsageError(
                "--require-gpu and --from contradict one another: a rehearsal runs on CPU devices",
                "leave one of them out",
            )
        plan = planner.plan(machine, request)
        return Target("cpu", plan, machine, why_cpu="a rehearsal", rehearsal_of=rehearsal_of)
    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect tells more")
    seen = narrowed(environ, machine)
    if not seen.gpus:
        why = _NONE_VISIBLE if machine.gpus else _NONE_THERE
        return _without_gpus(request, why, require_gpu=require_gpu)
    _refuse_hidden(request, machine, seen, environ)
    return Target("gpu", planner.plan(seen, request), seen)


def rehearsal_name(sources: Sequence[str]) -> str | None:
    """Name the captured machine by what `--from` was given, in letters of UTF-8; None for no capture."""
    names = ("a capture from stdin" if source == "-" else Path(source).stem for source in sources)
    return " + ".join(names).encode(errors="replace").decode() or None


def _without_gpus(request: Request, why: str, *, require_gpu: bool) -> Target:
    if require_gpu:
        raise HardwareError(
            f"{why}, and --require-gpu asks for one", "run it on a machine with GPUs; gputopo inspect looks"
        )
    for option, given in (("--gpus", request.gpus), ("--exclude", request.exclude)):
        if given:
            raise UsageError(
                f"{option} names GPUs, and there is none: {why}",
                "--num-gpus N takes N CPU devices; --from FILE rehearses the plan of another machine",
            )
    devices = CPU_DEVICES if request.num_gpus is None else request.num_gpus
    plan = cpu_plan(
        request.model,
        devices=devices,
        ps=request.ps,
        variable_update=request.variable_update,
        all_reduce=request.all_reduce,
    )
    return Target("cpu", plan, None, why_cpu=why, cpu_devices=devices)


def _refuse_hidden(request: Request, machine: Machine, seen: Machine, environ: Mapping[str, str]) -> None:
    there = {gpu.index for gpu in machine.gpus}
    visible = sorted(gpu.index for gpu in seen.gpus)
    named = ps_gpu(request)
    holder = set() if named is None else {named}
    hidden = sorted((set(request.gpus or ()) | holder) & there - set(visible))
    if hidden:
        raise UsageError(
            f"GPU {hidden[0]} is not visible here: CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']}",
            f"use {', '.join(map(str, visible))}, or unset CUDA_VISIBLE_DEVICES",
        )
