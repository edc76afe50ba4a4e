"""What each of several hosts trains with: how many of its devices, and the plan of rank 0 for all. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec

from gputopo.launch.spec.run_spec import Server
from gputopo.launch.spec.target import Target
from gputopo.planner.cpu_devices import CPU_DEVICES
from gputopo.planner.request import SPREAD, Request
from gputopo.values.errors import UsageError
from gputopo.values.option import listed
from gputopo.values.run.plan import Candidate, VariableUpdate


def devices_of_each(available: Sequence[int], wanted: int | None) -> list[int]:
    """Return how many devices each host trains with, by rank: the fewest hosts, with equal shares.

    `available`: GPUs of each host; rank 0, whose process trains, always has one at least. `wanted`: of all
    hosts together, None: all there are. Raises UsageError where there are too few, or none on rank 0.
    """
    if not available[0]:
        raise UsageError("rank 0 has no free GPU, and its process trains", "start another host as rank 0")
    wanted = sum(available) if wanted is None else wanted
    if not 1 <= wanted <= sum(available):
        raise UsageError(
            f"--num-gpus cannot be {wanted}: the hosts have {sum(available)} usable GPUs together",
            f"request 1 to {sum(available)}",
        )
    largest_first = [0, *sorted(range(1, len(available)), key=lambda rank: -available[rank])]
    used = 1
    while sum(available[rank] for rank in largest_first[:used]) < wanted:
        used += 1
    counts = [0] * len(available)
    for left, rank in zip(
        range(used, 0, -1), sorted(largest_first[:used], key=lambda rank: available[rank]), strict=True
    ):
        counts[rank] = min(available[rank], (wanted - sum(counts)) // left)
    # What division left over, to hosts that have room.
    for rank in sorted(largest_first[:used]):
        counts[rank] += min(available[rank] - counts[rank], wanted - sum(counts))
    return counts


def cpu_devices_of_each(hosts: int, wanted: int | None) -> list[int]:
    """Return the CPU devices of each host: equal shares of those `wanted`, None: as many as a host alone has.

    Raises UsageError where they cannot be shared equally.
    """
    if wanted is None:
        return [CPU_DEVICES] * hosts
    if wanted % hosts or wanted < hosts:
        raise UsageError(
            f"--num-gpus {wanted} cannot be shared equally by the CPUs of {hosts} hosts",
            f"request a multiple of {hosts}: it counts the devices of all hosts",
        )
    return [wanted // hosts] * hosts


def request_of(request: Request, devices: int, rank: int) -> Request:
    """Return the request for one host: its nearest GPUs and, on rank 0, that of the variables."""
    on_rank_0 = rank == 0 and request.ps.startswith("gpu:") and request.ps != SPREAD
    return msgspec.structs.replace(
        request,
        num_gpus=devices,
        gain=None,
        variable_update="parameter_server" if on_rank_0 else "replicated",
        ps=request.ps if on_rank_0 else "auto",
        all_reduce=None,
    )


def joint(targets: Sequence[Target], servers: Sequence[Server], request: Request) -> Target:
    """Return the target of rank 0 with those of the other hosts, by rank.

    By default every device has its own copy of the variables, and gradients are added within each host first:
    a parameter server would send all weights over the network in every step, too. Raises UsageError for hosts
    of different kinds.
    """
    kinds = {one.backend for one in targets}
    if len(kinds) > 1:
        without = [server.host for server, one in zip(servers, targets, strict=True) if one.backend == "cpu"]
        raise UsageError(
            f"{listed(without, 'and')} would train on CPU devices, the other hosts on GPUs",
            "leave out the hosts without GPUs, or train on the CPUs of all of them with --cpu",
        )
    lead, *others = targets
    choice = _joint_choice(lead.plan.choice, [one.counted for one in targets], request)
    plan = msgspec.structs.replace(lead.plan, choice=choice, candidates=(choice,), prediction=None)
    return replace(lead, plan=plan, others=tuple(others), servers=tuple(servers))


def _joint_choice(own: Candidate, counts: Sequence[int], request: Request) -> Candidate:
    """Return rank 0's choice with the placement of all hosts; the prediction for one host says nothing."""
    update = cast(VariableUpdate, request.variable_update)
    if request.variable_update == "auto":
        update = "replicated" if request.ps == "auto" or request.all_reduce else "parameter_server"
    served = update == "parameter_server"
    default = "hierarchical" if max(counts) > 1 else "copy"
    return Candidate(
        gpus=own.gpus,
        variable_update=update,
        ps_device=None if not served else "cpu" if request.ps == "auto" else request.ps,
        all_reduce=request.all_reduce or default if update == "replicated" else None,
        reasons=(f"{sum(counts)} devices of {len(counts)} hosts: {_shares(counts)}",),
    )


def _shares(counts: Sequence[int]) -> str:
    even = f"{counts[0]} of each" if len(set(counts)) == 1 else None
    return even or "unequal, " + ", ".join(str(count) for count in counts)
