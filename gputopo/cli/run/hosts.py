"""`gputopo run` as one of several hosts: rank 0 plans for all and trains, the others serve their devices."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from gputopo.cli.hosts import address_of, join, joining, meeting_of
from gputopo.cli.printing import note, to_stderr
from gputopo.cli.run.options import OutputOptions
from gputopo.launch.drive.agent import begun
from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.options import HostOptions
from gputopo.values import schema
from gputopo.values.errors import ExitCode, InputError
from gputopo.values.run.events import Event, Noticed, RankFailed

if TYPE_CHECKING:
    from gputopo.launch.hosts.gathering.guest import Guest
    from gputopo.launch.hosts.gathering.messages import Joining, Reply, Start
    from gputopo.launch.spec.run_spec import RunSpec, Server
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.values.machine import Machine

# Folders and files are rank 0's business, and the others may see them under other names.
_MAY_DIFFER = ("checkpoints", "export", "tensorboard", "trace", "data_dir")


@dataclass(frozen=True)
class Job:
    """What each host was asked for: the request for a plan, the options as typed, the spec of a target."""

    request: "Request"
    asked: Mapping[str, Any]
    spec_of: "Callable[[Target], RunSpec]"


def train_on_hosts(
    allocation: Allocation, hosts: HostOptions, job: Job, machine: "Machine", options: OutputOptions
) -> int:
    """Take part in the training and return the exit code. Raises GputopoError."""
    if allocation.rank == 0:
        return _lead(allocation, hosts, job, machine, options)
    return _take_part(allocation, hosts, job, machine, options)


def _lead(
    allocation: Allocation, hosts: HostOptions, job: Job, machine: "Machine", options: OutputOptions
) -> int:
    """Wait for the other hosts, plan for all, and train."""
    from gputopo.cli.run import training

    assert allocation.leader.name is not None, "rank 0 has a name"
    with meeting_of(allocation, hosts, _common(job.asked)) as meeting:
        joined = meeting.wait(hosts.join_timeout)
        own = _joining(allocation, job, machine, allocation.leader.name, options)
        with contextlib.ExitStack() as claims:
            target = _joint_target(job, {0: own, **joined}, machine, options, claims)
            spec = job.spec_of(target)
            training.require_runnable(target, spec, options)
            meeting.answer({rank: _reply(one, target, spec) for rank, one in joined.items()})
            begun(os.environ)
            return training.train(target, spec, options, meeting=meeting)


def _joining(
    allocation: Allocation, job: Job, machine: "Machine", address: str, options: OutputOptions
) -> "Joining":
    """Return what a host brings. Raises HardwareError for a broken driver."""
    from gputopo.launch.jobs.claims import claimed_by_others, claims_folder
    from gputopo.launch.jobs.guest import free_port
    from gputopo.launch.spec.target import why_cpu
    from gputopo.launch.supervise.process.cpus import usable_cpus

    on_cpu = why_cpu(machine, os.environ, cpu=options.cpu) is not None
    given = allocation.hosts[allocation.rank].port if allocation.rank else None  # rank 0's is the meeting's
    return joining(
        allocation,
        None if on_cpu else machine,
        _common(job.asked),
        address=address,
        port=given or free_port(),
        resources={
            "environ": {name: text for name, text in os.environ.items() if name.startswith("CUDA_")},
            "claimed": {} if on_cpu else claimed_by_others(machine, claims_folder(os.environ)),
            "cores": len(usable_cpus().cpus),
        },
    )


def _common(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that all hosts must have been given alike, as JSON has them."""
    alike = {name: value for name, value in asked.items() if name not in _MAY_DIFFER}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({"command": "run", **alike}))
    return found


def _joint_target(
    job: Job,
    joined: "Mapping[int, Joining]",
    machine: "Machine",
    options: OutputOptions,
    claims: contextlib.ExitStack,
) -> "Target":
    """Plan for all hosts, and claim the GPUs of this one until `claims` closes."""
    from gputopo.launch.hosts.planning import cpu_devices_of_each, devices_of_each, joint, request_of
    from gputopo.launch.jobs.claims import choose_and_claim
    from gputopo.launch.spec.run_spec import Server
    from gputopo.launch.spec.target import target_of
    from gputopo.launch.supervise.process.cpus import usable_cpus
    from gputopo.values.machine import Machine

    wanted = job.request.num_gpus
    assert wanted != "auto"
    hosts = [joined[rank] for rank in sorted(joined)]
    machines = [one.machine or Machine(source="live") for one in hosts]
    on_cpu = options.cpu or all(one.machine is None for one in hosts)
    if on_cpu:
        counts = cpu_devices_of_each(len(hosts), wanted)
    else:
        counts = devices_of_each([_usable(one, job.request) for one in hosts], wanted)
    several = sum(map(bool, counts)) > 1
    targets: list[Target] = []
    servers: list[Server] = []
    for rank, (one, count) in enumerate(zip(hosts, counts, strict=True)):
        if not count:
            continue
        on_rank_0 = rank == 0
        choose = partial(
            target_of,
            machines[rank],
            request_of(job.request, count, rank) if several else replace(job.request, num_gpus=count),
            environ=_environ_of(one),
            require_gpu=options.require_gpu,
            cpu=on_cpu and options.cpu,
            usable=usable_cpus() if on_rank_0 else None,
            affinity=on_rank_0 and not options.no_affinity,
        )
        if on_rank_0:
            plan = partial(_claiming, choose)
            targets.append(
                choose_and_claim(machine, plan, claims, os.environ, "gputopo run", on_problem=note)
            )
        else:
            targets.append(choose(claimed=_claimed_of(one)))
        address = f"[{one.address}]:{one.port}" if ":" in one.address else f"{one.address}:{one.port}"
        servers.append(Server(host=one.name, address=address, cores=int(one.resources.get("cores", 1))))
    if len(set(counts)) > 1:
        shares = ", ".join(f"{one.name} {count}" for one, count in zip(hosts, counts, strict=True))
        note(f"the hosts have unequal numbers of devices: {shares}")
    return joint(targets, servers, job.request) if several else targets[0]


def _claiming(choose: "Callable[..., Target]", others: Mapping[int, str]) -> "Target":
    return choose(claimed=others)


def _usable(host: "Joining", request: "Request") -> int:
    """Return how many GPUs of a host can take part."""
    from gputopo import planner

    if host.machine is None:
        return 0
    named = {gpu.index for gpu in host.machine.gpus if not gpu.lost} - set(request.exclude)
    named &= set(request.gpus) if request.gpus is not None else named
    return len(named - set(planner.hidden_gpus(_environ_of(host), host.machine)) - set(_claimed_of(host)))


def _environ_of(host: "Joining") -> dict[str, str]:
    return {str(name): str(text) for name, text in dict(host.resources.get("environ", {})).items()}


def _claimed_of(host: "Joining") -> dict[int, str]:
    return {int(gpu): str(by) for gpu, by in dict(host.resources.get("claimed", {})).items()}


def _reply(host: "Joining", target: "Target", spec: "RunSpec") -> "Reply":
    from gputopo.launch.hosts.gathering.messages import Start, Unused

    place = _place(spec.servers, host.address, host.port)
    if place is None:
        return Unused(why="the devices of fewer hosts are enough")
    plan = target.others[place - 1].plan
    return Start(spec=msgspec.Raw(schema.encode(spec)), environment=dict(plan.environment), place=place)


def _place(servers: "tuple[Server, ...]", address: str, port: int) -> int | None:
    """Return the number of a host's server among those that take part."""
    ends = (f"{address}:{port}", f"[{address}]:{port}")
    return next((number for number, one in enumerate(servers) if one.address in ends), None)


def _take_part(
    allocation: Allocation, hosts: HostOptions, job: Job, machine: "Machine", options: OutputOptions
) -> int:
    """Join rank 0, serve this host's devices until the run is over, and return the run's exit code."""
    from gputopo.launch.hosts.gathering.messages import Start, Unused

    bringing = _joining(allocation, job, machine, address_of(allocation, hosts), options)
    guest, reply = join(allocation, hosts, bringing)
    if isinstance(reply, Unused):
        note(f"this host is not needed: {reply.why}")
        return ExitCode.OK
    assert isinstance(reply, Start)
    return _serve(reply, guest, bringing, machine, options)


def _serve(
    start: "Start", guest: "Guest", bringing: "Joining", machine: "Machine", options: OutputOptions
) -> int:
    from gputopo.launch.jobs.claims import claimed, claims_folder
    from gputopo.launch.jobs.guest import serve
    from gputopo.launch.spec.env import worker_env
    from gputopo.launch.spec.host_place import HostPlace, host_place
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.supervise.process.cpus import usable_cpus
    from gputopo.probes.run_watch import RunWatch

    begun(os.environ)
    spec = schema.decode(bytes(start.spec), RunSpec, origin="rank 0's answer")
    place = _place(spec.servers, bringing.address, bringing.port)
    assert place is not None, "rank 0 starts hosts that its spec names"
    indices = [device.gpu for device in spec.devices if device.rank == place and device.gpu is not None]
    gpus = indices if spec.backend == "gpu" else []
    folder = _folder(options, bringing.rank)
    file = folder / "spec.json"
    schema.write(file, spec)
    near = (
        host_place(machine, tuple(gpus), usable_cpus()) if gpus and not options.no_affinity else HostPlace()
    )
    cards = [gpu for gpu in machine.gpus if gpu.index in gpus]
    with contextlib.ExitStack() as held:
        held.enter_context(claimed(cards, claims_folder(os.environ), "gputopo run", on_problem=note))
        end = serve(
            spec,
            file,
            place,
            guest,
            environment=worker_env(os.environ, spec, start.environment, near),
            log=folder / "server.log",
            sampler=held.enter_context(RunWatch(gpus)),
            on_event=_show,
        )
    if end.cause is None:
        note(f"the run is over, exit code {end.exit_code}: its result is on rank 0")
    else:
        to_stderr(f"gputopo: {end.cause}\n  {end.hint}\n")
    return end.exit_code


def _folder(options: OutputOptions, rank: int) -> Path:
    """Make the folder of a host's server: within the run's, where one is named. Raises InputError."""
    from gputopo.launch.supervise.run_folder import runs_home

    home = Path(options.output) if options.output is not None else runs_home(os.environ) / "served"
    path = home / f"rank-{rank}" if options.output else home / f"{datetime.now():%Y%m%d-%H%M%S}-rank-{rank}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {path}: {error.strerror}",
            "name a folder that you may write to with --output, or set GPUTOPO_HOME",
        ) from error
    return path


def _show(event: Event) -> None:
    """Print what a host's user should see; all else goes to rank 0."""
    if isinstance(event, Noticed):
        note(event.says)
    elif isinstance(event, RankFailed) and event.last_lines:
        note("\n".join(event.last_lines))
