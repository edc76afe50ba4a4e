"""A plan of several hosts: what each brings for it, and `gputopo plan` of hosts that meet or are in files."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gputopo
from gputopo.cli.hosts.meeting import PORT, address_of, card_of, excuse, join, joining, meeting_of
from gputopo.cli.printing import note, to_stderr
from gputopo.launch.hosts.allocation import Allocation, HostOptions
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, InputError, UsageError

if TYPE_CHECKING:
    from gputopo.launch.hosts.earlier import Earlier
    from gputopo.launch.hosts.messages import Joining
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.planner.network import SavedNetwork
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan


def resources_of(machine: "Machine | None", address: str | None) -> dict[str, Any]:
    """Return what a plan needs of this host beside its machine. `address`: on the network of the hosts."""
    from gputopo.launch.jobs.claims import claimed_by_others, claims_folder
    from gputopo.launch.supervise.cgroup import memory_bytes, usable_cpus

    return {
        "environ": {name: text for name, text in os.environ.items() if name.startswith("CUDA_")},
        "claimed": {} if machine is None else claimed_by_others(machine, claims_folder(os.environ)),
        "cores": len(usable_cpus().cpus),
        "memory_bytes": memory_bytes(),
        **({} if address is None else card_of(address)),
    }


def address_of_leader(joined: "Sequence[Joining]") -> str | None:
    """Return the address of rank 0, this host, on the network of the others; None: it cannot be told."""
    from gputopo.launch.hosts.addresses import own_address

    try:
        return own_address(joined[0].address, joined[0].port or PORT)
    except (OSError, UnicodeError):
        return None


def saved_network(hosts: "Sequence[Joining]", request: "Request") -> "SavedNetwork | None":
    """Return what was saved here of the network between these hosts, which is printed to stderr."""
    from gputopo.planner.network import SavedNetwork
    from gputopo.runs import history

    if request.no_history:
        return None
    try:
        saved = history.latest_network(history.history_file(), {one.name for one in hosts})
    except GputopoError as error:
        to_stderr(f"gputopo: planned without the measured network: {error.what}\n")
        return None
    if saved is None:
        return None
    to_stderr(f"gputopo: with the network measured on {saved.date}\n")
    return SavedNetwork(saved.bandwidth, f"on {saved.date}")


def plan_of_hosts(
    allocation: Allocation,
    hosts: HostOptions,
    machine: "Machine",
    request: "Request",
    asked: dict[str, Any],
    show: "Callable[[Plan], None]",
) -> int:
    """Plan as one of several hosts; rank 0 plans for all and shows it. Raises GputopoError."""
    from gputopo.launch.hosts.messages import End, Unused
    from gputopo.launch.jobs.before import earlier_of_hosts
    from gputopo.launch.spec.target import why_cpu

    asked = {"command": "plan", **asked}
    try:
        brought = None if why_cpu(machine, os.environ, cpu=False) is not None else machine
        address = address_of(allocation, hosts) if allocation.rank else ""
    except GputopoError as error:
        return excuse(allocation, error)
    if allocation.rank:
        own = joining(allocation, brought, asked, address=address, resources=resources_of(brought, address))
        join(allocation, hosts, own)
        note("rank 0 has what was read of this host")
        return ExitCode.OK
    with meeting_of(allocation, hosts, asked) as meeting:
        joined = meeting.wait(hosts.join_timeout)
        meeting.answer({rank: Unused(why="rank 0 has what was read of it") for rank in joined})
        meeting.end(End(exit_code=ExitCode.OK))
    network = address_of_leader(list(joined.values()))
    own = joining(allocation, brought, asked, resources=resources_of(brought, network))
    earlier = earlier_of_hosts(brought, request)
    show(planned([own, *(joined[rank] for rank in sorted(joined))], request, earlier).plan)
    return ExitCode.OK


def plan_of_files(sources: Sequence[str], request: "Request") -> "Plan":
    """Return the plan of the hosts of several files. Raises GputopoError, InputError for one not read."""
    from gputopo.cli.hosts.fleet import readings
    from gputopo.launch.hosts.messages import Joining

    if len(sources) < 2:
        raise UsageError(
            "--fleet plans for several hosts, and needs a file of each of two or more",
            "give --from A.json B.json ...: what gputopo inspect --record writes on each host",
        )
    hosts = []
    for rank, (name, found) in enumerate(readings(sources).items()):
        if isinstance(found, GputopoError):
            raise InputError(f"{name} cannot be read: {found.what}", found.hint)
        hosts.append(
            Joining(rank=rank, name=name, version=gputopo.__version__, address=name, port=PORT, machine=found)
        )
    return planned(hosts, request).plan


def planned(hosts: "Sequence[Joining]", request: "Request", earlier: "Earlier | None" = None) -> "Target":
    """Plan for hosts from what they brought, claiming nothing, and print what is to be said about it.

    `earlier`: runs of this host with others.
    """
    from gputopo.launch.hosts.planning import plan_hosts, target_alone
    from gputopo.launch.spec.rules.hosts import OF_ONE_PROCESS
    from gputopo.values.run.all_reduce import parse

    if all(one.machine is None or not one.machine.gpus for one in hosts):
        raise HardwareError(
            "there is no GPU to plan for on any of the hosts",
            "plan for other machines with --from A.json B.json --fleet; gputopo run trains on CPU devices",
        )

    def own(request: "Request", *, cpu: bool) -> "Target":
        return target_alone(hosts[0], request, cpu=cpu)

    found = plan_hosts(hosts, request, own, saved=saved_network(hosts, request), earlier=earlier)
    asked = request.all_reduce
    if asked is not None and found.target.others and parse(asked).name in OF_ONE_PROCESS:
        raise UsageError(
            f"--all-reduce {asked} is within one process, and each host of a training has its own",
            "use --all-reduce hierarchical, or fewer GPUs than one host has: --num-gpus N",
        )
    for line in (*found.says, *found.target.plan.warnings):
        note(line)
    return found.target
