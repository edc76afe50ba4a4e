"""How many devices each of several hosts trains with, and the plan of rank 0 for all hosts.

The smallest number of hosts that has enough devices takes part, in equal shares. Each host chooses its GPUs
as if it trained by itself. If the speeds of GPUs and network are known, the steps of all hosts together are
predicted (`gputopo.planner.joint`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from gputopo import planner
from gputopo.launch.device_names import host_names, rank_of_place
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.site import Site
from gputopo.launch.target import Target
from gputopo.planner import (
    HostNetwork,
    Request,
    SavedNetwork,
    choice_of_hosts,
    how_many_of_hosts,
    with_predicted_steps,
)
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import host_set
from gputopo.values.machine import Machine
from gputopo.values.run.batches import require_one_each
from gputopo.values.run.plan import (
    CPU_DEVICES,
    HOST_PS,
    SPREAD,
    Candidate,
    HostGpus,
    HowMany,
)
from gputopo.values.run.spec import Server


@dataclass(frozen=True)
class PlannedHosts:
    """The target of rank 0 for all hosts, and what to print about it."""

    target: Target
    ranks: tuple[int, ...]  # ranks of the hosts that take part, in the order of the target's hosts
    says: tuple[str, ...] = ()


def plan_hosts(
    hosts: Sequence[Joining],
    request: Request,
    *,
    claim: Callable[[Request], Target] | None = None,
    cpu: bool = False,
    cpu_devices: int = CPU_DEVICES,
    require_gpu: bool = False,
    saved: SavedNetwork | None = None,
) -> PlannedHosts:
    """Plan for all hosts, given by rank; if one host is enough, plan for that host only.

    `claim`: returns the target of rank 0 with its GPUs claimed; None: nothing is claimed. `cpu`: use CPU
    devices, as if no host had a GPU. `cpu_devices`: number for each host, unless the request has a number.
    `saved`: a measurement of the network between the hosts. Raises UsageError, NoPlanError, HardwareError.
    """
    on_cpu = cpu or all(host.machine is None for host in hosts)
    count: HowMany | None = None
    if request.num_gpus == "auto":
        if not on_cpu:
            largest = sum(_usable(host, request) for host in hosts)
            count = how_many_of_hosts(largest, request, partial(_trial, hosts, request, saved))
        request = msgspec.structs.replace(request, num_gpus=count and count.num_gpus, gain=None)
    requests = _requests(hosts, request, on_cpu=on_cpu, cpu_devices=cpu_devices)
    taking = [hosts[rank] for rank in requests]
    targets = []
    for rank, its_own in requests.items():
        if rank:
            target = target_alone(hosts[rank], its_own, cpu=cpu, require_gpu=require_gpu, keep=1)
        else:
            target = target_alone(hosts[0], its_own, cpu=cpu) if claim is None else claim(its_own)
        targets.append(target)
    target = targets[0]
    if len(targets) > 1:
        target = joint(targets, [_server(host) for host in taking], request)
        if (target.plan.choice.ps_device or "").startswith(HOST_PS):
            rank_of_place(target.plan.choice.ps_device or "", len(targets))
        if target.backend == "gpu":
            plans = [each.plan for each in targets]
            plan = with_predicted_steps(target.plan, plans, _networks(taking), request, saved)
            target = replace(target, plan=plan)
    if count is not None:
        target = replace(target, plan=msgspec.structs.replace(target.plan, how_many=count))
    return PlannedHosts(target, tuple(requests), _unequal(hosts, requests))


def _requests(
    hosts: Sequence[Joining], request: Request, *, on_cpu: bool, cpu_devices: int
) -> dict[int, Request]:
    """Return the request for each host that takes part, by rank. Raises UsageError."""
    assert request.num_gpus != "auto"
    if on_cpu:
        counts = cpu_devices_of_each(len(hosts), request.num_gpus, cpu_devices)
    else:
        counts = devices_of_each([_usable(host, request) for host in hosts], request.num_gpus)
    require_one_each(request.batch_size or 1, sum(counts), "device")
    if counts[0] == sum(counts):
        return {0: msgspec.structs.replace(request, num_gpus=counts[0])}
    requests: dict[int, Request] = {}
    for rank, number in enumerate(counts):
        its_own = request_of(request, number, rank)
        if isinstance(request.batch_size, tuple):
            first = sum(counts[:rank])
            its_own = msgspec.structs.replace(its_own, batch_size=request.batch_size[first : first + number])
        if number:
            requests[rank] = its_own
    return requests


def _unequal(hosts: Sequence[Joining], requests: Mapping[int, Request]) -> tuple[str, ...]:
    """Return a note if the hosts train with unequal numbers of devices, or some with none."""
    counts = [requests[rank].num_gpus if rank in requests else 0 for rank in range(len(hosts))]
    if len(set(counts)) == 1:
        return ()
    names: dict[str, list[str]] = {}
    for host, number in zip(hosts, counts, strict=True):
        names.setdefault(f"{number}", []).append(host.name)
    shares = ", ".join(f"{host_set(alike)} {number}" for number, alike in names.items())
    return (f"the hosts train with unequal numbers of devices: {shares}",)


def _networks(hosts: Sequence[Joining]) -> list[HostNetwork]:
    return [
        HostNetwork(
            host.name,
            host.machine or Machine(source="live"),
            host.resources.interface,
            host.resources.rate_gbit_per_s,
        )
        for host in hosts
    ]


def _server(host: Joining) -> Server:
    address = f"[{host.address}]" if ":" in host.address else host.address
    return Server(host=host.name, address=f"{address}:{host.port}", cores=host.resources.cores)


def target_alone(
    host: Joining,
    request: Request,
    *,
    cpu: bool = False,
    require_gpu: bool = False,
    keep: int | None = None,
) -> Target:
    """Return the target of one host from what it sent. `keep`: as in `planner.plan`."""
    site = Site(
        host.machine or Machine(source="live"),
        environ=host.resources.environ,
        require_gpu=require_gpu,
        cpu=cpu,
        affinity=False,
        keep=keep,
        alone=False,
    )
    return site.target(request, host.resources.claimed)


def _trial(hosts: Sequence[Joining], request: Request, saved: SavedNetwork | None, count: int) -> Candidate:
    """Return the choice for `count` GPUs of all hosts."""
    sized = msgspec.structs.replace(request, num_gpus=count, gain=None)
    return plan_hosts(hosts, sized, saved=saved).target.plan.choice


def _usable(host: Joining, request: Request) -> int:
    """Return how many GPUs of a host can take part."""
    if host.machine is None:
        return 0
    named = {gpu.index for gpu in host.machine.gpus if not gpu.lost} - set(request.exclude)
    named &= set(request.gpus) if request.gpus is not None else named
    resources = host.resources
    return len(named - set(planner.hidden_gpus(resources.environ, host.machine)) - set(resources.claimed))


def devices_of_each(available: Sequence[int], wanted: int | None) -> list[int]:
    """Return how many devices each host trains with, by rank: the fewest hosts, with equal shares.

    `available`: GPUs of each host. Rank 0 always has at least one device, because its process trains.
    `wanted`: total for all hosts; None for all available GPUs. Raises UsageError if there are too few, or
    none on rank 0.
    """
    if not available[0]:
        raise UsageError("rank 0 has no free GPU, but rank 0 has to train", "start another host as rank 0")
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
    # The remainder of the division goes to hosts with free devices.
    for rank in sorted(largest_first[:used]):
        counts[rank] += min(available[rank] - counts[rank], wanted - sum(counts))
    return counts


def cpu_devices_of_each(hosts: int, wanted: int | None, each: int = CPU_DEVICES) -> list[int]:
    """Return the CPU devices of each host: equal shares of `wanted`, or `each` per host if that is None.

    Raises UsageError if they cannot be shared equally.
    """
    if wanted is None:
        return [each] * hosts
    if wanted % hosts:
        raise UsageError(
            f"--num-gpus {wanted} cannot be shared equally by the CPUs of {hosts} hosts",
            f"request a multiple of {hosts}: it counts the devices of all hosts",
        )
    return [wanted // hosts] * hosts


def request_of(request: Request, devices: int, rank: int) -> Request:
    """Return the request for one host: its nearest GPUs and, on rank 0, the GPU that holds the variables."""
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
    """Return the target of rank 0 with the other hosts' targets, by rank; nothing is predicted yet."""
    lead, *others = targets
    names = host_names([server.host for server in servers])
    choice = choice_of_hosts(
        request,
        tuple(
            HostGpus(host=name, gpus=target.plan.choice.gpus, devices=target.counted)
            for name, target in zip(names, targets, strict=True)
        ),
    )
    plan = msgspec.structs.replace(
        lead.plan,
        choice=choice,
        candidates=(choice,),
        prediction=None,
        unequal=None,
        warnings=tuple(
            f"{name}: {text}"
            for name, target in zip(names, targets, strict=True)
            for text in target.plan.warnings
        ),
        refused=tuple(
            msgspec.structs.replace(refusal, reason=f"{name}: {refusal.reason}")
            for name, target in zip(names, targets, strict=True)
            for refusal in target.plan.refused
        ),
    )
    return replace(lead, plan=plan, others=tuple(others), servers=tuple(servers))
