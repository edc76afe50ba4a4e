"""Measures the network between hosts: asks which tools they have, then measures with these tools."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gputopo.launch.hosts.allocation import find_hosts
from gputopo.launch.hosts.asking import ask, at_once
from gputopo.launch.hosts.host_process import MAX_BYTES, HostProcess, host_command, passed_on
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.jobs.network import EndedCommand, measure_between_hosts
from gputopo.launch.jobs.network_tools import Command, NetworkHost
from gputopo.report import note
from gputopo.values.bandwidth import NotMeasured
from gputopo.values.errors import HardwareError, UsageError

if TYPE_CHECKING:
    from gputopo.values.bandwidth import Bandwidth, Level, NetworkToolChoice
    from gputopo.values.machine import Nic, NicPort


def measure_network(
    options: HostOptions, level: "Level | None", tool: "NetworkToolChoice"
) -> "tuple[Bandwidth, tuple[Nic, ...]] | None":
    """Measure between all hosts that answer; None if rank 0 measures.

    Also returns the network cards of the first host. `complete` is False if a host did not answer. Raises
    GputopoError.
    """
    hosts = find_hosts(options, os.environ)
    if hosts is None:
        raise UsageError(
            "--network needs other hosts",
            "give the hosts with --hosts LIST (through ssh), or start the command on each host with srun",
        )
    answers = ask(hosts, options, "network", *(["public"] if options.allow_public_address else []))
    if not answers:
        return None
    there = {host: answer for host, answer in answers.items() if isinstance(answer, Joining)}
    absent = {host: answer for host, answer in answers.items() if not isinstance(answer, Joining)}
    if len(there) < 2:
        raise next(iter(absent.values()), UsageError("--network needs at least two hosts", "list others"))
    python = options.remote_python or sys.executable
    names = [str(host.name) for host in there]

    def run(commands: Sequence[Command], limit_s: float) -> Sequence[EndedCommand]:
        return at_once(lambda command: _run(command, names, python, limit_s), commands)

    joined = tuple(there.values())
    measured = measure_between_hosts(_network_hosts(joined), level or "quick", tool, run, os.environ, note)
    lacking = [
        NotMeasured(what=f"transfers of {host.name}", reason=error.what) for host, error in absent.items()
    ]
    measured = msgspec.structs.replace(
        measured, not_measured=(*measured.not_measured, *lacking), complete=not lacking
    )
    return measured, () if joined[0].machine is None else joined[0].machine.nics


def _run(command: Command, names: Sequence[str], python: str, limit_s: float) -> EndedCommand:
    """Run a command on its host, and return how it ended."""
    rank, words = command
    start = host_command(rank, names[rank], words, python=python, environ=os.environ)
    try:
        with HostProcess(start, passed_on(os.environ)) as process:
            printed = process.output(limit_s)
            text = printed.decode(errors="replace") + process.said
            if len(printed) > MAX_BYTES:
                return EndedCommand(text, None, f"printed more than {MAX_BYTES >> 20} MiB")
            if not process.is_done:
                return EndedCommand(text, None, f"did not end within {limit_s:g} s")
            return EndedCommand(text, process.wait() if process.ended is None else process.ended)
    except HardwareError as error:
        return EndedCommand("", None, f"cannot be started: {error.what}")


def _network_hosts(answers: Sequence[Joining]) -> list[NetworkHost]:
    """Return the hosts with different names: hosts with the same name get their ranks."""
    names = [answer.name for answer in answers]
    return [
        NetworkHost(
            name=answer.name if names.count(answer.name) == 1 else f"{answer.name}#{rank}",
            address=answer.address,
            programs=answer.resources.programs,
            gpus=answer.resources.gpus,
            rdma=_rdma_port(answer),
            rate_gbit_per_s=answer.resources.rate_gbit_per_s,
            mtu_bytes=answer.resources.mtu_bytes,
        )
        for rank, answer in enumerate(answers)
    ]


def _rdma_port(answer: Joining) -> "NicPort | None":
    """Return the active RDMA port of a host: of its address's interface, else the first active one."""
    ports = [port for nic in (answer.machine.nics if answer.machine else ()) for port in nic.ports or ()]
    active = [port for port in ports if port.rdma_device and port.state == "ACTIVE"]
    return min(active, key=lambda port: port.interface != answer.resources.interface, default=None)
