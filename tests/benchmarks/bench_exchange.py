"""The exchange of gradients between two hosts: `python -m tests.benchmarks.bench_exchange [MODEL] [ROUNDS]`.

Two "hosts" on this one's loopback, each a process pinned to a core of its own: gputopo's copies and
TensorFlow's ring over TensorFlow's servers, and mpi4py's Allreduce over TCP, tensor by tensor, all on tensors
of a model's sizes. They alternate; ratios are medians of the rounds. mpi4py and Open MPI need not be
installed: `--mpi-python FILE` names a Python that has the one, and `mpirun` is found or left out.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import psutil

from gputopo.launch.jobs.serving import server_command
from gputopo.values import schema
from gputopo.workload.architectures import ARCHITECTURES
from tests.benchmarks.bench_hosts import ENVIRON, pinned, spec_of

CALLS = 3  # of each program in a round, of which the median counts
COPIES, RING, MPI = "gputopo, copies", "TensorFlow's ring", "mpi4py"


def ours(file: str, name: str) -> None:
    """Exchange on every line of the input, and print the milliseconds."""
    from gputopo.launch.models.models import shapes_of
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.train.placement import devices
    from gputopo.launch.train.placement.methods import reducer_of
    from gputopo.launch.train.placement.timing import Bench

    spec = schema.decode(Path(file).read_bytes(), RunSpec, origin=file)
    devices.set_up(spec)
    with devices.joined(spec):
        places = [device.device for device in spec.devices]
        call = Bench(shapes_of(spec.model, spec), places).call_of(
            reducer_of(name, places, spec.exchange), checked=name
        )
        call()
        for _ in sys.stdin:
            print(1e3 * call(), flush=True)


MPI_PROGRAM = """
import json, sys, time
import numpy
from mpi4py import MPI

own = [numpy.ones(size, numpy.float32) for size in json.loads(sys.argv[1])]
sums = [numpy.empty_like(one) for one in own]
world = MPI.COMM_WORLD
while world.bcast(sys.stdin.readline() if world.rank == 0 else None):
    world.Barrier()
    began = time.perf_counter()
    for one, total in zip(own, sums):
        world.Allreduce(one, total)
    world.Barrier()
    if world.rank == 0:
        print(1e3 * (time.perf_counter() - began), flush=True)
"""


def asking(process: "subprocess.Popen[str]") -> Callable[[], float]:
    """Return a function that lets a program exchange once, and returns the milliseconds that it prints."""
    asked: IO[str] | None = process.stdin
    printed: IO[str] | None = process.stdout
    assert asked is not None
    assert printed is not None

    def ask() -> float:
        asked.write("\n")
        asked.flush()
        return float(printed.readline())

    return ask


@contextmanager
def exchanging(model: str, name: str, folder: Path) -> Iterator[Callable[[], float]]:
    """Start a server, and a process that exchanges with it by a reduction."""
    import msgspec

    spec = msgspec.structs.replace(spec_of(model, 1, hosts=2), all_reduce=name)
    file = folder / f"{name}.json"
    schema.write(file, spec)
    with (folder / f"{name}.events").open("wb") as events:
        server = pinned(
            [*server_command(file, 1, events.fileno())], "1", env=ENVIRON, pass_fds=(events.fileno(),)
        )
    command = [sys.executable, "-m", "tests.benchmarks.bench_exchange", "--ours", str(file), name]
    own = pinned(command, "0", env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield asking(own)
    finally:
        for one in (own, server):
            one.kill()
            one.wait()


@contextmanager
def by_mpi(model: str, python: str) -> Iterator[Callable[[], float]]:
    """Start two ranks of Open MPI that are connected by TCP."""
    sizes = [math.prod(one.shape) for one in ARCHITECTURES[model].sketch().variables if one.trainable]
    command = ["mpirun", "--allow-run-as-root", "--bind-to", "core", "--mca", "btl", "tcp,self"]
    command += ["--mca", "btl_tcp_if_include", "lo", "--mca", "pml", "ob1", "-n", "2"]
    process = subprocess.Popen(
        [*command, python, "-c", MPI_PROGRAM, json.dumps(sizes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    exchange = asking(process)
    ranks: list[psutil.Process] = []

    def ask() -> float:
        for one in ranks:
            one.resume()
        taken = exchange()
        ranks[:] = psutil.Process(process.pid).children(recursive=True)
        for one in ranks:
            one.suspend()  # a rank that waits takes all of its core
        return taken

    try:
        yield ask
    finally:
        for one in ranks:
            one.kill()
        process.kill()
        process.wait()


def main(model: str, rounds: int, python: str) -> int:
    """Print the times of every round and the ratios."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        asks = {
            name: started.enter_context(exchanging(model, reduction, Path(folder)))
            for name, reduction in ((COPIES, "copy"), (RING, "collective"))
        }
        if shutil.which("mpirun") and not subprocess.run([python, "-c", "import mpi4py"]).returncode:
            asks[MPI] = started.enter_context(by_mpi(model, python))
        else:
            print("without mpi4py: no mpirun, or --mpi-python has no mpi4py")
        for ask in asks.values():
            ask()
        for number in range(rounds):
            for name, ask in asks.items():
                found.setdefault(name, []).append(statistics.median(ask() for _ in range(CALLS)))
            print(
                f"round {number + 1}:", ", ".join(f"{name} {one[-1]:.0f} ms" for name, one in found.items())
            )
    for name in list(found)[1:]:
        ratios = [a / b for a, b in zip(found[COPIES], found[name], strict=True)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{model}, {COPIES} over {name}: {middle:.2f} ({low:.2f} to {high:.2f})")
    return 0


def command_line(arguments: Sequence[str]) -> int:
    """Run the benchmark, or be one of its processes."""
    if arguments[:1] == ["--ours"]:
        ours(*arguments[1:])
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="alexnet")
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    parser.add_argument("--mpi-python", default=sys.executable)
    given = parser.parse_args(arguments)
    return main(given.model, given.rounds, given.mpi_python)


if __name__ == "__main__":
    raise SystemExit(command_line(sys.argv[1:]))
