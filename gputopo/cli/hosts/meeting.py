"""What commands that run on several hosts at once share: where they meet, and what each brings there."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gputopo
from gputopo.cli.printing import note, show_error, to_stderr
from gputopo.launch.hosts.addresses import is_this_host
from gputopo.launch.hosts.allocation import Allocation, HostOptions
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.remote_agent import is_driven
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, InputError, UsageError
from gputopo.values.option import Declared, parameters_of

if TYPE_CHECKING:
    from gputopo.launch.hosts.earlier import EarlierRuns
    from gputopo.launch.hosts.messages import Joining, Reply
    from gputopo.launch.hosts.rendezvous_client import RendezvousClient
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.planner.network import SavedNetwork
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan


# The driver says these itself: by the hosts that it starts, and by the rank that it gives to each.
_OF_THE_DRIVER = ("hosts", "hostfile", "num_hosts", "remote_python")


def hosts_to_start(options: HostOptions) -> tuple[HostAddress, ...]:
    """Return the hosts that this process is to start; () where it is one of them, or alone.

    Raises UsageError.
    """
    if options == HostOptions():
        return ()
    from gputopo.launch import remote_start

    found = remote_start.to_start(options, os.environ)
    return () if len(found) == 1 and is_this_host(str(found[0].name)) else found


def start_hosts(
    command: Callable[..., int],
    hosts: Sequence[HostAddress],
    options: HostOptions,
    typed: Mapping[str, Any],
    *,
    program: Sequence[str] = (),
    needs_all: bool = True,
    may_lose: bool = False,
) -> int:
    """Start a command on each host as it was typed, and return its exit code. Raises GputopoError.

    `program`: what follows --. `needs_all`: it ends where one of them cannot be started. `may_lose`: see
    `remote_start.RankEnds`.
    """
    from gputopo.launch import remote_start

    environment = dict(os.environ)
    if sys.stdout.isatty():  # that of rank 0 is a pipe
        environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
    words = typed_words(parameters_of(command), typed, _OF_THE_DRIVER)
    words += ["--", *program] if program else []
    python = options.remote_python or sys.executable
    agents = remote_start.Agents(
        words=("-P", "-m", "gputopo", command.__name__, *words),
        python=sys.executable,
        remote_python=python,
        folder=os.getcwd(),
        environment=environment,
    )
    starts = remote_start.commands(hosts, agents, is_this_host)
    return remote_start.drive(
        starts, python=python, show=to_stderr, note=note, needs_all=needs_all, may_lose=may_lose
    )


def typed_words(
    declared: Sequence[Declared], typed: Mapping[str, Any], without: Sequence[str] = ()
) -> list[str]:
    """Return the options as they were typed, but for those `without`, which are names."""
    words: list[str] = []
    for one in declared:
        name = one.name.rstrip("_")
        if name not in typed or name in without:
            continue
        value = typed[name]
        for text in value if one.option.repeated else (value,):
            words += [one.option.flag] if one.is_flag else [one.option.flag, str(text)]
    return words


def _secret(hosts: HostOptions) -> bytes:
    """Return the secret of this job. Raises UsageError, HardwareError."""
    from gputopo.launch.hosts.secret import take_secret
    from gputopo.launch.supervise.run_folder import runs_home

    if hosts.insecure:
        note("--insecure: whoever reaches rank 0's port can take part in this run")
    return take_secret(os.environ, runs_home(os.environ).parent, insecure=hosts.insecure)


def meeting_of(allocation: Allocation, hosts: HostOptions, asked: dict[str, Any]) -> "RendezvousServer":
    """Return the meeting that rank 0 holds. `asked`: what all hosts must have been asked for alike."""
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer

    found = RendezvousServer(
        [host.name for host in allocation.hosts],
        allocation.port,
        _secret(hosts),
        job=allocation.job,
        asked=_alike(allocation, asked),
        allow_public=hosts.allow_public_address,
    )
    note(
        f"{allocation.source}: {allocation.size} hosts, rank 0 is {allocation.leader.name}, port {found.port}"
    )
    return found


def _alike(allocation: Allocation, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what all hosts must have alike: what was asked for, and the number of hosts of any source."""
    return {**asked, "num_hosts": allocation.size}


def name_of(allocation: Allocation) -> str:
    """Return what this host is called: as it was named, or by its own host name."""
    own = allocation.hosts[allocation.rank]
    return platform.node() if own.name is None or own.is_ip else own.name


def joining(
    allocation: Allocation,
    machine: "Machine | None",
    asked: dict[str, Any],
    *,
    address: str = "",
    port: int = 0,
    resources: dict[str, Any] | None = None,
) -> "Joining":
    """Return what a host brings. `address`, `port`: of its TensorFlow server, if it is to have one."""
    from gputopo.launch.hosts.messages import Joining

    return Joining(
        rank=allocation.rank,
        name=name_of(allocation),
        version=gputopo.__version__,
        address=address,
        port=port,
        job=allocation.job,
        machine=machine,
        asked=_alike(allocation, asked),
        resources=resources or {},
    )


def address_of(allocation: Allocation, hosts: HostOptions) -> str:
    """Return the address of this host, of rank 1 or above, on the network of rank 0.

    A name that is not known yet, as that of a pod which has not started, is tried for as long as rank 0 is
    waited for. Raises HardwareError for a rank 0 that cannot be found, UsageError for a public address.
    """
    from gputopo.launch.hosts.addresses import own_address, require_private
    from gputopo.launch.hosts.messages import RETRY_S

    leader, address = allocation.leader, None
    assert leader.name is not None, "rank 0 has a name"
    deadline_s, has_waited = time.monotonic() + hosts.join_timeout, False
    while address is None:
        try:
            address = own_address(leader.name, allocation.port)
        except (OSError, UnicodeError) as error:
            what = f"rank 0 is {leader.name}, which this host cannot find"
            why = getattr(error, "strerror", None) or error
            if isinstance(error, UnicodeError) or time.monotonic() >= deadline_s:
                hint = "name it by its IP address, or by a name that all hosts know"
                raise HardwareError(f"{what}: {why}", hint) from error
            if not has_waited:
                note(f"{what} yet: {why}; it is tried for {hosts.join_timeout:g} s")
            has_waited = True
            time.sleep(RETRY_S)
    require_private([address], allow_public=hosts.allow_public_address)
    return address


def join(allocation: Allocation, hosts: HostOptions, bringing: "Joining") -> "tuple[RendezvousClient, Reply]":
    """Join rank 0, and return the connection and its reply. Raises HardwareError where it cannot be reached.

    Where rank 0 refuses this host, or ends by an error, the command ends with that, after rank 0 has ended. A
    driver shows the reason once: as rank 0 prints it.
    """
    from gputopo.launch.hosts.messages import Refused
    from gputopo.launch.hosts.rendezvous_client import RendezvousClient

    leader = allocation.leader
    assert leader.name is not None, "rank 0 has a name"
    note(f"{allocation.source}: rank {allocation.rank} of {allocation.size} hosts, joining {leader.name}")
    guest = RendezvousClient(allocation.rank, leader.name, allocation.port, _secret(hosts))
    reply = guest.join(bringing, hosts.join_timeout)
    if isinstance(reply, Refused):
        if not is_driven(os.environ):
            show_error(reply.what, reply.hint)
        guest.outlast()
        raise SystemExit(reply.exit_code)
    return guest, reply


def excuse(allocation: Allocation, hosts: HostOptions, error: GputopoError) -> int:
    """Print why this host, of rank 1 or above, cannot join, report it to rank 0, and return the exit code.

    Rank 0 itself has nobody to report it to: there the error is raised. A driver shows it once: as rank 0
    prints it, where that is there.
    """
    from gputopo.launch.hosts.messages import Unable
    from gputopo.launch.hosts.rendezvous_client import RendezvousClient

    if allocation.rank == 0:
        raise error
    driven = is_driven(os.environ)
    if not driven:
        show_error(error.what, error.hint)
    leader = allocation.leader
    assert leader.name is not None, "rank 0 has a name"
    unable = Unable(
        rank=allocation.rank,
        name=name_of(allocation),
        version=gputopo.__version__,
        job=allocation.job,
        what=error.what,
        hint=error.hint,
        exit_code=int(error.exit_code),
    )
    try:
        client = RendezvousClient(allocation.rank, leader.name, allocation.port, _secret(hosts))
        reported = client.excuse(unable)
    except GputopoError:  # it has no secret either
        reported = False
    if driven and not reported:
        show_error(error.what, error.hint)
    return int(error.exit_code)


def card_of(address: str) -> dict[str, Any]:
    """Return the facts of the interface that has an address: name, rate and MTU; none where none has."""
    from gputopo.probes.equipment import interface_of

    found = interface_of(address)
    if found is None:
        return {}
    return {
        "interface": found.name,
        "rate_gbit_per_s": found.rate_gbit_per_s,
        "mtu_bytes": found.mtu_bytes,
    }


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
        return own_address(joined[0].address, joined[0].port)
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
    from gputopo.launch.hosts.messages import RunEnd, Unused
    from gputopo.launch.jobs.before import earlier_of_hosts
    from gputopo.launch.spec.target import why_cpu

    asked = {"command": "plan", **asked}
    try:
        brought = None if why_cpu(machine, os.environ, cpu=False) is not None else machine
        address = address_of(allocation, hosts) if allocation.rank else ""
    except GputopoError as error:
        return excuse(allocation, hosts, error)
    if allocation.rank:
        own = joining(allocation, brought, asked, address=address, resources=resources_of(brought, address))
        join(allocation, hosts, own)
        note("rank 0 has what was read of this host")
        return ExitCode.OK
    with meeting_of(allocation, hosts, asked) as meeting:
        joined = meeting.wait(hosts.join_timeout)
        meeting.answer({rank: Unused(why="rank 0 has what was read of it") for rank in joined})
        meeting.end(RunEnd(exit_code=ExitCode.OK))
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


def planned(hosts: "Sequence[Joining]", request: "Request", earlier: "EarlierRuns | None" = None) -> "Target":
    """Plan for hosts from what they brought, claiming nothing, and print what is to be said about it.

    `earlier`: runs of this host with others.
    """
    from gputopo.launch.hosts.planning import plan_hosts, target_alone
    from gputopo.launch.spec.rules import OF_ONE_PROCESS
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
