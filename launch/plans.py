"""A plan for one host without a run: for this machine, for a captured one, or with changes."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from gputopo import planner
from gputopo.findings import driver_broken
from gputopo.launch.jobs.claims import claimed_by_others, claims_folder
from gputopo.launch.site import Site, with_costs
from gputopo.planner import Request, require_prediction
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Plan

EXPLAINS = "--explain shows a predicted step"


def plan_on(site: Site, request: Request, *, candidates: int | None, changes: Sequence[str]) -> Plan:
    """Return the plan of a request on a site with the effect of `changes`; claims no GPUs.

    `candidates`: how many are listed. Raises GputopoError.
    """
    machine = site.machine
    require_gpus(machine)
    is_here = site.rehearsal_of is None
    if is_here and len(planner.hidden_gpus(site.environ, machine)) == len(machine.gpus):
        raise HardwareError(
            "CUDA_VISIBLE_DEVICES hides all GPUs", "unset it, or plan for another machine with --from FILE"
        )
    request = with_costs(request)
    others = claimed_by_others(machine, claims_folder(site.environ)) if is_here else {}

    def choose(machine: Machine, request: Request, keep: int | None = 1) -> Plan:
        return replace(site, machine=machine, keep=keep).target(request, others).plan

    found = choose(machine, request, candidates)
    if request.explain:
        require_prediction(found, EXPLAINS)
    if not changes:
        return found
    effect = planner.effect_of_changes(machine, request, changes, choose)
    return msgspec.structs.replace(found, what_if=effect)


def require_gpus(machine: Machine) -> None:
    """Raise HardwareError if the driver is broken or there is no GPU to plan for."""
    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect shows more")
    if not machine.gpus:
        raise HardwareError(
            "there is no GPU to plan for",
            "plan for another machine with --from FILE; gputopo run trains on CPU devices",
        )
