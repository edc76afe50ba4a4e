"""`gputopo run` on one of several hosts: rank 0 plans for all and trains, the others serve their devices."""

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from gputopo import probes
from gputopo.launch.checks import runnable
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.answer import resources_of
from gputopo.launch.hosts.joining import (
    address_of,
    address_of_leader,
    excuse,
    join,
    joining,
    rendezvous_of,
)
from gputopo.launch.hosts.messages import HostStart, Joining, Reply, RunEnd
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.hosts.planning import PlannedHosts, plan_hosts
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.launch.hosts.saved_network import saved_network
from gputopo.launch.job import Job
from gputopo.launch.jobs.claims import ClaimedError, claimed, claims_folder, never_free
from gputopo.launch.jobs.serving import own_spec, serve
from gputopo.launch.site import Site
from gputopo.launch.spec.env import allowed_variables, worker_env
from gputopo.launch.spec.host_place import HostPlace, place_near_gpus
from gputopo.launch.supervise.cgroup import usable_cpus
from gputopo.launch.supervise.run_folder import runs_home
from gputopo.launch.target import Target
from gputopo.planner import Request
from gputopo.report import note, show_error
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, InputError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.events import Event, Noticed, RankFailed
from gputopo.values.run.names import cpu_devices_of
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.spec import RunSpec

# Only rank 0 uses folders and files, and the other hosts may see them under other names.
_MAY_DIFFER = ("checkpoints", "export", "tensorboard", "trace", "data_dir")


@dataclass(frozen=True)
class HostOfRun:
    """One of the hosts of a run: its rank, its machine, and its options."""

    allocation: Allocation
    hosts: HostOptions
    on: Site
    options: OutputOptions
    asked: Mapping[str, Any]  # as typed
    is_program: bool = False  # a program of the user, whose versions are not compared

    @cached_property
    def alike(self) -> dict[str, Any]:
        """Options and versions that must be the same on all hosts, as JSON decodes them."""
        # The number of hosts can come from any source, so it is compared by value.
        options = {**self.asked, "num_hosts": self.allocation.size}
        alike = {
            f"--{name.rstrip('_').replace('_', '-')}": value
            for name, value in options.items()
            if name not in _MAY_DIFFER
        }
        alike["the command"] = "run -- PROGRAM" if self.is_program else "run"
        if not self.is_program:
            install = probes.read_tensorflow()
            alike["Python"] = ".".join(platform.python_version_tuple()[:2])
            alike["TensorFlow"] = "not installed" if install is None else install.version
        as_json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(alike))
        return as_json

    def rendezvous(self) -> RendezvousServer:
        """Return the server at which the other hosts join rank 0."""
        return rendezvous_of(self.allocation, self.hosts, self.alike)

    def brings(self, address: str, network: str | None) -> Joining:
        """Return the joining message of this host. `network`: its IP address. Raises HardwareError."""
        allocation = self.allocation
        brought = self.on.machine if self.on.why_cpu is None else None
        _ = self.on.unusable  # raises if TensorFlow cannot use any GPU of this host
        # Rank 0's port is used by the rendezvous.
        given = allocation.hosts[allocation.rank].port if allocation.rank else None
        return joining(
            allocation,
            machine=brought,
            asked=self.alike,
            address=address,
            port=given or free_port(),
            resources=resources_of(brought, network),
        )

    def joins(self) -> tuple[Joining, RendezvousClient, HostStart] | int:
        """Join rank 0; return this host's joining message, the client and its start, or an exit code."""
        try:
            address = address_of(self.allocation, self.hosts)
            bringing = self.brings(address, address)
        except GputopoError as error:
            return excuse(self.allocation, self.hosts, error)
        client, reply = join(self.allocation, self.hosts, bringing)
        return reply.exit_code if isinstance(reply, RunEnd) else (bringing, client, reply)

    def plan(
        self, wanted: Request, joined: Mapping[int, Joining], claims: contextlib.ExitStack
    ) -> PlannedHosts:
        """Plan for all hosts; unless it is a dry run, claim this host's GPUs until `claims` closes."""

        def claim(request: Request) -> Target:
            return self.on.claimed(request, None if self.options.dry_run else claims)

        leader = str(self.allocation.leader.name)
        mine = self.brings(leader, address_of_leader(list(joined.values())))
        hosts = [mine, *(joined[rank] for rank in sorted(joined))]
        planned = plan_hosts(
            hosts,
            wanted,
            claim=claim,
            cpu=self.on.cpu,
            cpu_devices=cpu_devices_of(self.asked.get("strategy")),
            require_gpu=self.on.require_gpu,
            saved=saved_network(hosts, wanted),
        )
        for line in (*planned.says, *planned.target.plan.warnings):
            note(line)
        return planned


Lead = Callable[[Target, RunSpec, OutputOptions, RendezvousServer | None], int]
"""Trains with the joined hosts, or shows the plan if there is no rendezvous; returns the exit code."""


def train_on_hosts(host: HostOfRun, job: Job, request: Request, lead: Lead) -> int:
    """Take part in the training and return the exit code. `lead`: trains on rank 0. Raises GputopoError."""
    return _take_part(host) if host.allocation.rank else _lead(host, job, request, lead)


def _lead(host: HostOfRun, job: Job, request: Request, lead: Lead) -> int:
    """Wait for the other hosts, plan for all, and train; a dry run only shows the plan."""
    options = host.options
    with host.rendezvous() as rendezvous:
        joined = rendezvous.wait(host.hosts.join_timeout)
        with contextlib.ExitStack() as claims:
            planned = host.plan(request, joined, claims)
            target = job.placed(planned.target)
            target, spec = job.on_hosts(target, lambda chosen: runnable(job, chosen, options))
            if options.dry_run:
                rendezvous.answer(dict.fromkeys(joined, RunEnd(exit_code=0, cause="this is a dry run")))
                rendezvous.end(RunEnd(exit_code=ExitCode.OK))
                return lead(target, spec, options, None)
            rendezvous.answer(replies(joined, planned, lambda place: schema.encode(spec)))
            return lead(target, spec, options, rendezvous)


def replies(
    joined: Iterable[int], planned: PlannedHosts, spec_at: Callable[[int], bytes]
) -> dict[int, Reply]:
    """Return the replies to the hosts that joined, by rank. `spec_at`: the spec for a place, as JSON."""
    answers: dict[int, Reply] = dict.fromkeys(
        joined, RunEnd(exit_code=0, cause="fewer hosts have enough devices")
    )
    for place, (rank, target) in enumerate(zip(planned.ranks[1:], planned.target.others, strict=True), 1):
        environment = dict(target.plan.environment)
        answers[rank] = HostStart(spec=msgspec.Raw(spec_at(place)), environment=environment, place=place)
    return answers


def _take_part(host: HostOfRun) -> int:
    """Join rank 0, serve this host's devices until the run is over, and return the run's exit code."""
    joined = host.joins()
    if isinstance(joined, int):
        return joined
    bringing, client, reply = joined
    try:
        end = _served(reply, client, bringing, host.on.machine, host.options)
    except GputopoError as error:
        return failed_here(client, error)
    if end.cause is None:
        note(f"the run ended with exit code {end.exit_code}: its result is on rank 0")
    else:
        show_error(end.cause, end.hint)
    if end.exit_code:
        client.outlast()
    return end.exit_code


def failed_here(client: RendezvousClient, error: GputopoError) -> int:
    """Print why this host cannot do its part after it joined, report it, and return the exit code.

    For ranks 1 and above. The host ends after rank 0.
    """
    show_error(error.what, error.hint)
    failure = RankFailed(
        time_s=time.time(),
        kind="error",
        cause=error.what,
        remedy=error.hint,
        exit_code=int(error.exit_code),
    )
    client.put(failure)
    client.outlast()
    return int(error.exit_code)


def claim(gpus: Sequence[Gpu], held: contextlib.ExitStack) -> None:
    """Claim GPUs of this host until `held` closes. Raises HardwareError if another run was faster."""
    try:
        held.enter_context(claimed(gpus, claims_folder(os.environ), "gputopo run"))
    except ClaimedError as error:
        raise never_free() from error


def near_to(gpus: Sequence[int], machine: Machine, options: OutputOptions) -> HostPlace:
    """Return the CPUs and memory that are near to GPUs of this host, unless the options disable that."""
    if not gpus or options.no_affinity:
        return HostPlace()
    return place_near_gpus(machine, tuple(gpus), usable_cpus())


def _served(
    start: HostStart,
    client: RendezvousClient,
    bringing: Joining,
    machine: Machine,
    options: OutputOptions,
) -> RunEnd:
    """Serve until the run is over, and return its end. Raises GputopoError if this host cannot serve."""
    spec = schema.decode(bytes(start.spec), RunSpec, origin="rank 0's answer")
    indices = [device.gpu for device in spec.devices if device.rank == start.place and device.gpu is not None]
    gpus = indices if spec.backend == "gpu" else []
    folder = _folder(options, bringing.rank)
    file = folder / "spec.json"
    schema.write(file, own_spec(spec, start.place))
    near = near_to(gpus, machine, options)
    cards = [gpu for gpu in machine.gpus if gpu.index in gpus]
    with contextlib.ExitStack() as held:
        claim(cards, held)
        return serve(
            spec,
            file,
            start.place,
            client,
            environment=worker_env(os.environ, spec, allowed_variables(start.environment), near),
            log=folder / ("server.log" if spec.rank is None else "worker.log"),
            sampler=held.enter_context(probes.RunWatch(gpus)),
            on_event=_show,
        )


def _folder(options: OutputOptions, rank: int) -> Path:
    """Create the folder of a host's server, within --output if that is given. Raises InputError."""
    home = Path(options.output) if options.output is not None else runs_home(os.environ) / "served"
    path = home / f"rank-{rank}" if options.output else home / f"{datetime.now():%Y%m%d-%H%M%S}-rank-{rank}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {path}: {error.strerror}",
            "use a writable folder with --output, or set GPUTOPO_HOME",
        ) from error
    return path


def _show(event: Event) -> None:
    """Print what the user of this host should see; all other events go to rank 0 only."""
    if isinstance(event, Noticed):
        note(event.says)
    elif isinstance(event, RankFailed) and event.last_lines:
        note("\n".join(event.last_lines))
