"""`gputopo bandwidth --network`: ask the hosts which tools they have, then measure with these tools."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.hosts.asking import ask, hosts_to_ask
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.jobs.network import Ended, measure
from gputopo.launch.jobs.network_tools import Command, NetworkHost
from gputopo.launch.remote_ask import at_once
from gputopo.launch.remote_process import MAX_BYTES, HostProcess, host_command, passed_on
from gputopo.report import note
from gputopo.values.bandwidth import NotMeasured
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError

if TYPE_CHECKING:
    from gputopo.values.bandwidth import Bandwidth, Level, NetworkToolChoice
    from gputopo.values.machine import Nic, NicPort


def measure_network(
    options: HostOptions,
    level: "Level | None",
    tool: "NetworkToolChoice",
    report: "Callable[[Bandwidth, Sequence[Nic]], int]",
) -> int:
    """Measure between all hosts that answer, and return the exit code of `report`, which prints.

    `report` also gets the network cards of the first host. Raises GputopoError.
    """
    hosts = hosts_to_ask(options)
    if hosts is None:
        raise UsageError(
            "--network needs other hosts",
            "give the hosts with --hosts LIST (through ssh), or start the command on each host with srun",
        )
    if not hosts:
        return ExitCode.OK
    answers = ask(hosts, options, "network", *(["public"] if options.allow_public_address else []))
    there = [one for one in answers if isinstance(one, Joining)]
    absent = [(host, one) for host, one in zip(hosts, answers, strict=True) if isinstance(one, GputopoError)]
    if len(there) < 2:
        raise next(
            (error for _, error in absent),
            UsageError("--network needs at least two hosts", "list others"),
        )
    python = options.remote_python or sys.executable
    names = [str(hosts[one.rank].name) for one in there]

    def run(commands: Sequence[Command], limit_s: float) -> Sequence[Ended]:
        return at_once(lambda command: _run(command, names, python, limit_s), commands)

    measured = measure(_network_hosts(there), level or "quick", tool, run, os.environ, note)
    lacking = [NotMeasured(what=f"transfers of {host.name}", reason=error.what) for host, error in absent]
    measured = msgspec.structs.replace(
        measured, not_measured=(*measured.not_measured, *lacking), complete=not lacking
    )
    return report(measured, there[0].machine.nics if there[0].machine is not None else ())


def _run(command: Command, names: Sequence[str], python: str, limit_s: float) -> Ended:
    """Run a command on its host, and return how it ended."""
    rank, words = command
    start = host_command(rank, names[rank], words, python=python, environ=os.environ)
    try:
        with HostProcess(start, passed_on(os.environ)) as process:
            printed = process.output(limit_s)
            text = printed.decode(errors="replace") + process.said
            if len(printed) > MAX_BYTES:
                return Ended(text, None, f"printed more than {MAX_BYTES >> 20} MiB")
            if not process.is_done:
                return Ended(text, None, f"did not end within {limit_s:g} s")
            return Ended(text, process.wait() if process.ended is None else process.ended)
    except HardwareError as error:
        return Ended("", None, f"cannot be started: {error.what}")


def _network_hosts(answers: Sequence[Joining]) -> list[NetworkHost]:
    """Return the hosts with different names: hosts with the same name get their ranks."""
    names = [one.name for one in answers]
    return [
        NetworkHost(
            name=one.name if names.count(one.name) == 1 else f"{one.name}#{rank}",
            address=one.address,
            programs=one.resources.programs,
            gpus=one.resources.gpus,
            rdma=_rdma_port(one),
            rate_gbit_per_s=one.resources.rate_gbit_per_s,
            mtu_bytes=one.resources.mtu_bytes,
        )
        for rank, one in enumerate(answers)
    ]


def _rdma_port(answer: Joining) -> "NicPort | None":
    """Return the active RDMA port of a host: of its address's interface, else the first active one."""
    ports = [port for nic in (answer.machine.nics if answer.machine else ()) for port in nic.ports or ()]
    active = [port for port in ports if port.rdma_device and port.state == "ACTIVE"]
    return next(iter(sorted(active, key=lambda port: port.interface != answer.resources.interface)), None)
