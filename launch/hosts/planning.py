"""What each of several hosts trains with: how many of its devices, and the plan of rank 0 for all. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import msgspec

from gputopo import planner
from gputopo.launch.hosts.gathering.messages import Joining
from gputopo.launch.spec.run_spec import Server
from gputopo.launch.spec.target import Target, target_of
from gputopo.planner.cpu_devices import CPU_DEVICES
from gputopo.planner.request import SPREAD, Request
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.option import listed
from gputopo.values.run.plan import Candidate, VariableUpdate


@dataclass(frozen=True)
class Planned:
    """The target of rank 0 for all hosts, and what is to be said about it."""

    target: Target
    says: tuple[str, ...] = ()


class Own(Protocol):
    """Chooses the target of rank 0, and claims its GPUs. Raises GputopoError."""

    def __call__(self, request: Request, *, cpu: bool) -> Target: ...  # noqa: D102


def plan_hosts(
    hosts: Sequence[Joining], request: Request, own: Own, *, cpu: bool = False, require_gpu: bool = False
) -> Planned:
    """Plan for all hosts, by rank, from what they bring: where one is enough, for that host alone.

    `own`: the choice of rank 0. `cpu`: on CPU devices, as where no host has a GPU. Raises UsageError,
    NoPlanError, HardwareError.
    """
    assert request.num_gpus != "auto"
    if cpu or all(one.machine is None for one in hosts):
        counts = cpu_devices_of_each(len(hosts), request.num_gpus)
    else:
        counts = devices_of_each([_usable(one, request) for one in hosts], request.num_gpus)
    several = sum(map(bool, counts)) > 1
    targets: list[Target] = []
    servers: list[Server] = []
    for rank, (one, count) in enumerate(zip(hosts, counts, strict=True)):
        if not count:
            continue
        its_own = (
            request_of(request, count, rank) if several else msgspec.structs.replace(request, num_gpus=count)
        )
        if rank == 0:
            targets.append(own(its_own, cpu=cpu))
        else:
            targets.append(
                target_of(
                    one.machine or Machine(source="live"),
                    its_own,
                    environ=_environ_of(one),
                    claimed=_claimed_of(one),
                    require_gpu=require_gpu,
                    cpu=cpu,
                    affinity=False,
                )
            )
        address = f"[{one.address}]:{one.port}" if ":" in one.address else f"{one.address}:{one.port}"
        servers.append(Server(host=one.name, address=address, cores=int(one.resources.get("cores", 1))))
    says: tuple[str, ...] = ()
    if len(set(counts)) > 1:
        shares = ", ".join(f"{one.name} {count}" for one, count in zip(hosts, counts, strict=True))
        says = (f"the hosts have unequal numbers of devices: {shares}",)
    return Planned(joint(targets, servers, request) if several else targets[0], says)


def _usable(host: Joining, request: Request) -> int:
    """Return how many GPUs of a host can take part."""
    if host.machine is None:
        return 0
    named = {gpu.index for gpu in host.machine.gpus if not gpu.lost} - set(request.exclude)
    named &= set(request.gpus) if request.gpus is not None else named
    return len(named - set(planner.hidden_gpus(_environ_of(host), host.machine)) - set(_claimed_of(host)))


def _environ_of(host: Joining) -> dict[str, str]:
    return {str(name): str(text) for name, text in dict(host.resources.get("environ", {})).items()}


def _claimed_of(host: Joining) -> dict[int, str]:
    return {int(gpu): str(by) for gpu, by in dict(host.resources.get("claimed", {})).items()}


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
