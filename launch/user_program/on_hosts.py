"""A program of the user on several hosts: rank 0 plans for all, and each host runs it on its share."""

import contextlib
import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.launch.device_names import host_names
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.hosts.joining import address_of_leader
from gputopo.launch.hosts.messages import RunEnd
from gputopo.launch.hosts.training import HostOfRun, claim, failed_here, near_to, replies
from gputopo.launch.spec import env
from gputopo.launch.spec.prepare import program_spec, words_of
from gputopo.launch.user_program.hosts import cluster_variables, nccl_variables, require_all, unset_variables
from gputopo.launch.user_program.running import make_folder, other_gpus, run_program, run_recorded, runs_on
from gputopo.probes import interface_of
from gputopo.report import to_stderr
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError
from gputopo.values.run.events import Noticed, RankFailed
from gputopo.values.run.program import ProgramPart

if TYPE_CHECKING:
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer
    from gputopo.launch.supervise.run_folder import RunFolder
    from gputopo.launch.target import Target
    from gputopo.planner import Request


def run_program_on_hosts(host: HostOfRun, program: tuple[str, ...], request: "Request") -> int:
    """Take part in the run of a program and return the exit code of this host. Raises GputopoError.

    The hosts meet before the program starts, so that its ports are free. The options of the plan must be the
    same on all hosts; the command of the program may differ.
    """
    host = replace(host, is_program=True)
    return _follow(host, program) if host.allocation.rank else _lead(host, program, request)


def _lead(host: HostOfRun, program: tuple[str, ...], request: "Request") -> int:
    """Wait for the other hosts, plan for all, and run the program here."""
    with contextlib.ExitStack() as held:
        with host.rendezvous() as rendezvous:
            joined = rendezvous.wait(host.hosts.join_timeout)
            planned = host.plan(request, joined, held)
            target, ranks = planned.target, planned.ranks
            require_all(os.environ, host.allocation.size, len(ranks))
            parts = _parts(target, program, (str(host.allocation.leader.name), free_port()))
            folder = None
            if len(ranks) > 1:
                folder = make_folder(parts[0].spec, target.plan, host.on.machine, host.options)
            rendezvous.answer(replies(joined, planned, lambda place: schema.encode(parts[place])))
            _await_ready(rendezvous, ranks)
            rendezvous.end(RunEnd(exit_code=ExitCode.OK))
        if len(ranks) == 1:
            return run_program(program, target, host.options)
        address = address_of_leader([joined[1]])
        return _run(host, program, parts[0], target.plan.environment, address, folder)


def _follow(host: HostOfRun, program: tuple[str, ...]) -> int:
    """Join rank 0, run the program on this host's share, and return its exit code."""
    joined = host.joins()
    if isinstance(joined, int):
        return joined
    bringing, client, reply = joined
    machine, output = host.on.machine, host.options.output
    part = schema.decode(bytes(reply.spec), ProgramPart, origin="rank 0's answer")
    spec = msgspec.structs.replace(part.spec, command=words_of(program))
    part = msgspec.structs.replace(part, spec=spec, cluster=env.allowed_variables(part.cluster))
    if output is not None:
        options = msgspec.structs.replace(host.options, output=str(Path(output) / f"rank-{bringing.rank}"))
        host = replace(host, options=options)
    with contextlib.ExitStack() as held:
        try:
            claim([gpu for gpu in machine.gpus if gpu.index in part.spec.gpus], held)
            folder = make_folder(part.spec, part.plan, machine, host.options)
        except GputopoError as error:
            return failed_here(client, error)
        client.put(Noticed(time_s=time.time(), says="ready"))
        client.outlast()
        if client.end is not None and client.end.exit_code:
            raise client.end.error
        return _run(host, program, part, env.allowed_variables(reply.environment), bringing.address, folder)


def _await_ready(rendezvous: "RendezvousServer", ranks: Sequence[int]) -> None:
    """Wait until each other host is ready to start the program. Raises GputopoError if a host is not."""
    waiting = {*ranks} - {0}
    while waiting:
        select.select((rendezvous.events.ready,), (), ())
        for event in rendezvous.events.take():
            if isinstance(event, RankFailed):
                raise RunEnd(exit_code=event.exit_code, cause=event.cause, hint=event.remedy).error
            waiting -= {event.rank} if isinstance(event, Noticed) else set()


def _parts(target: "Target", program: tuple[str, ...], master: tuple[str, int]) -> list[ProgramPart]:
    """Return the parts of the hosts that take part, by place."""
    hosts = (replace(target, others=(), servers=()), *target.others)
    workers = [server.address for server in target.servers]
    name, names = program[0], host_names([server.host for server in target.servers])
    of_all = runs_on(name, target)
    if len(hosts) > 1 and target.backend == "gpu":
        gpus = (", ".join(map(str, host_target.plan.choice.gpus)) for host_target in hosts)
        each = (f"{host} GPU {numbers}" for host, numbers in zip(names, gpus, strict=True))
        of_all = f"{name} runs on {'; '.join(each)}"
    says = [of_all, *(runs_on(name, host_target) for host_target in hosts[1:])]
    return [
        ProgramPart(
            spec=program_spec(host_target, program, [sentence]),
            plan=msgspec.structs.replace(host_target.plan, candidates=(host_target.plan.choice,)),
            cluster=cluster_variables(workers, place, master),
        )
        for place, (host_target, sentence) in enumerate(zip(hosts, says, strict=True))
    ]


def _run(
    host: HostOfRun,
    program: tuple[str, ...],
    part: ProgramPart,
    visible: Mapping[str, str],
    address: str | None,
    folder: "RunFolder | None",
) -> int:
    """Run the program on a host's part, record it, and return its exit code.

    `visible`: variables of the plan. `address`: of this host on the network of the hosts.
    """
    spec, machine = part.spec, host.on.machine
    cluster = part.cluster
    if spec.gpus:
        card = None if address is None else interface_of(address)
        cluster = cluster | nccl_variables(None if card is None else card.interface, machine, spec.gpus)
    near = near_to(spec.gpus, machine, host.options)
    environment = env.program_env(os.environ, visible if spec.gpus else None, near)
    to_stderr(f"gputopo: {spec.says[0]}.\n")
    environment |= unset_variables(cluster, environment)
    others = other_gpus(machine, spec)
    return run_recorded(program, environment, spec, others, folder, host.options)
