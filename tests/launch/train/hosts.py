"""Runs of several hosts on this one: their TensorFlow servers, each a process with a loopback port."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from gputopo.values import schema
from gputopo.values.run.events import Device, PhaseBegun, decode_line
from gputopo.values.run.spec import Lifecycle, RunSpec, Server
from tests.kit.forks import ROOT
from tests.launch.forks import server
from tests.launch.train.worker_process import environment

# How a host of rank 1 or above trains: without limits, saving nothing.
UNTIL_RANK_0_ENDS: dict[str, Any] = {
    "num_batches": None,
    "time_budget_s": None,
    "max_batches": None,
    "max_error": None,
    "min_warmup_s": 0.0,
}


def cpu(rank: int, number: int = 0) -> str:
    """Return TensorFlow's name of a CPU device of a host."""
    return f"/job:worker/task:{rank}/device:CPU:{number}"


def devices_of(hosts: int, each: int) -> tuple[Device, ...]:
    """Return the devices of a run: so many CPU devices on each host."""
    places = [(rank, number) for rank in range(hosts) for number in range(each)]
    return tuple(
        Device(tower=tower, device=cpu(rank, number), rank=rank, host=f"n{rank}")
        for tower, (rank, number) in enumerate(places)
    )


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that no program listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def of_rank(spec: RunSpec, rank: int) -> RunSpec:
    """Return the spec of a host of rank 1 or above, by a strategy that has a process on each host."""
    saved = Lifecycle(resume=spec.lifecycle.resume, resume_or_start=spec.lifecycle.resume_or_start)
    warns = msgspec.structs.replace(spec.optimization, on_nan="warn")
    return msgspec.structs.replace(spec, rank=rank, lifecycle=saved, optimization=warns, **UNTIL_RANK_0_ENDS)


def spec_of(hosts: int, each: int, **fields: Any) -> RunSpec:
    """Return a spec of the cheapest model on hosts whose addresses are free ports of this one."""
    servers = tuple(
        Server(host=f"n{rank}", address=f"127.0.0.1:{port}", cores=2)
        for rank, port in enumerate(free_ports(hosts))
    )
    given: dict[str, Any] = {"model": "trivial", "backend": "cpu", "batch_size": 2, "num_batches": 3}
    given |= {"num_warmup_batches": 1, "ps_device": cpu(0)}
    if "strategy" in fields:
        given |= {"variable_update": "replicated", "ps_device": None, "rank": 0}
    return RunSpec(**{**given, "devices": devices_of(hosts, each), "servers": servers, **fields})


# A path below /proc/self/cwd is another one for each process.
_WITHIN = """
import os, sys
from gputopo.launch.train import server
os.chdir(sys.argv[1])
sys.exit(server.main(sys.argv[2:]))
"""


@contextmanager
def serving(folder: Path, spec: RunSpec, within: Sequence[Path] = ()) -> Iterator[dict[int, int]]:
    """Start the servers of all hosts but rank 0's, wait until they serve, return the processes by rank.

    `within`: folders that they are in, by rank.
    """
    file = folder / "all.json"
    schema.write(file, spec)
    with ExitStack() as ending:
        started = {}
        for rank in range(1, len(spec.servers)):
            module = ("-c", _WITHIN, str(within[rank])) if within else ("-m", "gputopo.launch.train.server")
            arguments = (*module, str(file), str(rank), "1")
            started[rank] = ending.enter_context(_started(arguments))
        for _, printed in started.values():
            event = decode_line(printed.readline())
            assert isinstance(event, PhaseBegun), event
        yield {rank: pid for rank, (pid, _) in started.items()}


@contextmanager
def working(folder: Path, spec: RunSpec) -> Iterator[dict[int, int]]:
    """Start the workers of all hosts but rank 0's, by a strategy that has one on each; processes by rank."""
    with ExitStack() as ending:
        started = {}
        for rank in spec.ranks[1:]:
            file = folder / f"rank-{rank}.json"
            schema.write(file, of_rank(spec, rank))
            program = ending.enter_context(_started(("-m", "gputopo.launch.train.worker", str(file), "1")))
            started[rank] = program[0]
        yield started


@contextmanager
def _started(arguments: Sequence[str]) -> Iterator[tuple[int, IO[str]]]:
    """Start a program; return its process and what it prints."""
    forks = server()
    if forks is not None:
        with forks.started(arguments, environment()) as (program, printed):
            yield program.pid, printed
        return
    with subprocess.Popen(
        [sys.executable, *arguments], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, process.stdout
        process.kill()
