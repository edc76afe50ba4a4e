"""A program of the user on several hosts: rank 0 plans for all, and each host runs it on its share."""

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.hosts.joining import address_of_leader
from gputopo.cli.hosts.training import HostOfRun, claim, failed_here, place_of, reply_of
from gputopo.cli.printing import note, to_stderr
from gputopo.cli.run.program import make_folder, other_gpus, run_own, run_recorded
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.remote_agent import begun
from gputopo.launch.spec import env
from gputopo.launch.spec.env import HostPlace, host_place
from gputopo.launch.spec.job_spec import ProgramPart, ProgramSpec
from gputopo.launch.spec.names import host_names
from gputopo.launch.spec.prepare import program_spec, words_of
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.cgroup import usable_cpus
from gputopo.launch.user_program.hosts import (
    Following,
    Leading,
    cluster_variables,
    nccl_variables,
    require_all,
    unset,
)
from gputopo.values import schema
from gputopo.values.errors import GputopoError
from gputopo.values.option import listed

if TYPE_CHECKING:
    from gputopo.launch.hosts.messages import Reply
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.values.machine import Machine


def run_program_on_hosts(host: HostOfRun, program: tuple[str, ...], request: "Request") -> int:
    """Take part in the run of a program and return the exit code. Raises GputopoError.

    `host`: with the port of the rendezvous. The options of the plan must be alike on all hosts; the words of
    the program may differ.
    """
    host = replace(host, is_program=True)
    return _follow(host, program) if host.allocation.rank else _lead(host, program, request)


def _lead(host: HostOfRun, program: tuple[str, ...], request: "Request") -> int:
    """Wait for the other hosts, plan for all, and run the program here."""
    options, leader = host.options, str(host.allocation.leader.name)
    with contextlib.ExitStack() as held:
        rendezvous = host.rendezvous()
        with signals.blocked(signal.valid_signals()):  # in its threads: the main one passes them on
            held.enter_context(rendezvous)
        joined = rendezvous.wait(host.hosts.join_timeout)
        target = host.target(request, joined, held)
        require_all(os.environ, host.allocation.size, len(target.servers) or 1)
        master = (leader, free_port())
        places = {rank: place_of(target.servers, one.address, one.port) for rank, one in joined.items()}
        rendezvous.answer({rank: _reply(target, place, program, master) for rank, place in places.items()})
        begun(os.environ)
        if not target.servers:
            return run_own(program, target, options)
        own = replace(target, others=(), servers=())
        spec = program_spec(own, program, [_where(program[0], target)])
        to_stderr(f"gputopo: {spec.says[0]}.\n")
        found = _variables(target, 0, master) | _nccl(address_of_leader([joined[1]]), target.machine, spec)
        return run_recorded(
            program,
            _with(target.environment(os.environ, None), found),
            spec,
            other_gpus(target.machine, spec),
            make_folder(spec, target.plan, target.machine, options),
            options,
            partial(
                Leading,
                rendezvous,
                [0, *(rank for rank, place in places.items() if place is not None)],
                target.servers[0].host,
                program[0],
            ),
        )


def _where(name: str, target: "Target") -> str:
    """Return what runs where, on all hosts."""
    hosts = host_names([server.host for server in target.servers])
    if target.backend != "gpu":
        return f"{target.why_cpu}: {name} runs without a GPU on {listed(hosts, 'and')}"
    gpus = [one.plan.choice.gpus for one in (target, *target.others)]
    on = "; ".join(f"{host} GPU {', '.join(map(str, of))}" for host, of in zip(hosts, gpus, strict=True))
    return f"{name} runs on {on}"


def _reply(target: "Target", place: int | None, program: tuple[str, ...], master: tuple[str, int]) -> "Reply":
    if place is None:
        return reply_of(target, None, b"")
    own = target.others[place - 1]
    part = ProgramPart(
        spec=program_spec(own, program),
        plan=msgspec.structs.replace(own.plan, candidates=(own.plan.choice,)),
        cluster=_variables(target, place, master),
    )
    return reply_of(target, place, schema.encode(part))


def _variables(target: "Target", place: int, master: tuple[str, int]) -> dict[str, str]:
    return cluster_variables([server.address for server in target.servers], place, master)


def _nccl(address: str | None, machine: "Machine | None", spec: ProgramSpec) -> dict[str, str]:
    """Return what NCCL is to use on this host, which has that address on the network of the others."""
    from gputopo.probes.equipment import interface_of

    if not spec.gpus:
        return {}
    found = None if address is None else interface_of(address)
    return nccl_variables(None if found is None else found.interface, machine, spec.gpus)


def _with(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    return {**environment, **unset(variables, environment)}


def _follow(host: HostOfRun, program: tuple[str, ...]) -> int:
    """Join rank 0, run the program on this host's share, and return the exit code of the run."""
    joined = host.joins()
    if isinstance(joined, int):
        return joined
    bringing, client, reply = joined
    machine, options, rank = host.on.machine, host.options, host.allocation.rank
    begun(os.environ)
    part = schema.decode(bytes(reply.spec), ProgramPart, origin="rank 0's answer")
    name = program[0]
    spec = msgspec.structs.replace(part.spec, command=words_of(program))
    where = (
        f"{name} runs on GPU {', '.join(map(str, spec.gpus))}" if spec.gpus else f"{name} runs without a GPU"
    )
    place = HostPlace()
    if spec.gpus and not options.no_affinity:
        place = host_place(machine, tuple(spec.gpus), usable_cpus())
    environment = env.program_env(os.environ, env.allowed(reply.environment) if spec.gpus else None, place)
    output = None if options.output is None else str(Path(options.output) / f"rank-{rank}")
    own = msgspec.structs.replace(options, output=output)
    with contextlib.ExitStack() as held:
        try:
            claim([gpu for gpu in machine.gpus if gpu.index in spec.gpus], held)
            folder = make_folder(spec, part.plan, machine, own)
        except GputopoError as error:
            return failed_here(client, error)
        to_stderr(f"gputopo: {where}.\n")
        code = run_recorded(
            program,
            _with(environment, env.allowed(part.cluster) | _nccl(bringing.address, machine, spec)),
            spec,
            other_gpus(machine, spec),
            folder,
            own,
            partial(Following, client, program[0]),
        )
    if not code:
        note(f"the run is over on all hosts, exit code {code}")
    return code
