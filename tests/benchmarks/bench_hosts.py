"""Training over two hosts: `python -m tests.benchmarks.bench_hosts [MODEL] [BATCH] [ROUNDS]`.

Both "hosts" are on the loopback interface; each is pinned to its own core and has one thread per op. Compared
are: gputopo over TensorFlow's servers, the same on one host with two CPU devices, and TensorFlow's
MultiWorkerMirroredStrategy with the same model, by `--strategy multi_worker_mirrored`. They alternate; the
ratios are medians of the rounds.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from gputopo.values import schema
from gputopo.values.run.events import Device, Step, read_events
from gputopo.values.run.spec import Exchange, RunSpec, Runtime, Server
from tests.launch.train.hosts import cpu, free_ports, of_rank

STEPS = {"alexnet": 6, "resnet20": 40}
ENVIRON = {
    **os.environ,
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "1",
}


def pinned(command: list[str], cpus: str, **more: object) -> "subprocess.Popen[str]":
    """Start a command on these CPUs."""
    found: subprocess.Popen[str] = subprocess.Popen(
        ["taskset", "-c", cpus, *command],
        stderr=subprocess.DEVNULL,
        text=True,
        **more,  # type: ignore[call-overload]
    )
    return found


def module(name: str, *arguments: object) -> list[str]:
    """Return the command of the training worker or of a host's TensorFlow server."""
    return [sys.executable, "-P", "-m", f"gputopo.launch.train.{name}", *map(str, arguments)]


def spec_of(model: str, batch: int, *, hosts: int) -> RunSpec:
    """Return the same training on two hosts, or on one with two devices."""
    places = [(rank, 0) for rank in range(2)] if hosts == 2 else [(0, 0), (0, 1)]
    return RunSpec(
        model=model,
        devices=tuple(
            Device(tower=tower, device=cpu(rank) if hosts == 2 else f"/CPU:{number}", rank=rank)
            for tower, (rank, number) in enumerate(places)
        ),
        servers=tuple(
            Server(host=f"host{rank}", address=f"127.0.0.1:{port}", cores=1)
            for rank, port in enumerate(free_ports(2))
        )
        if hosts == 2
        else (),
        backend="cpu",
        variable_update="replicated",
        all_reduce="copy",
        exchange=Exchange(small_bytes=2**20, small_group=16) if hosts == 2 else Exchange(),
        batch_size=batch,
        num_batches=STEPS.get(model, 10),
        num_warmup_batches=3,
        runtime=Runtime(intra_threads=1),
    )


def by_strategy(model: str, batch: int, folder: Path) -> float:
    """Return the images/sec of `--strategy multi_worker_mirrored`."""
    plain = {"all_reduce": None, "exchange": Exchange()}
    spec = msgspec.structs.replace(
        spec_of(model, batch, hosts=2), strategy="multi_worker_mirrored", rank=0, **plain
    )
    running = []
    for rank, own in enumerate((spec, of_rank(spec, 1))):
        file = folder / f"strategy-{rank}.json"
        schema.write(file, own)
        with (folder / f"strategy-{rank}.jsonl").open("wb") as out:
            command = module("worker", file, out.fileno())
            running.append(pinned(command, str(rank), env=ENVIRON, pass_fds=(out.fileno(),)))
    first, second = running
    first.wait()
    second.terminate()
    second.wait()
    return speed_of(folder / "strategy-0.jsonl", batch)


def speed_of(events: Path, batch: int) -> float:
    """Return the images/sec of both devices from the median step."""
    with events.open("rb") as lines:
        steps = [one for one in read_events(lines, origin=str(events)) if isinstance(one, Step)]
    return 2 * batch / statistics.median(step.seconds for step in steps if not step.warmup)


def ours(model: str, batch: int, folder: Path, *, hosts: int) -> float:
    """Return the images/sec of gputopo."""
    spec, file, events = spec_of(model, batch, hosts=hosts), folder / "spec.json", folder / "events.jsonl"
    schema.write(file, spec)
    with events.open("wb") as out, (folder / "server.jsonl").open("wb") as other:
        servers = [
            pinned(module("server", file, 1, other.fileno()), "1", env=ENVIRON, pass_fds=(other.fileno(),))
            for _ in spec.servers[1:]
        ]
        cpus = "0" if hosts == 2 else "0,1"
        worker = pinned(module("worker", file, out.fileno()), cpus, env=ENVIRON, pass_fds=(out.fileno(),))
        worker.wait()
        for one in servers:
            one.terminate()
            one.wait()
    return speed_of(events, batch)


def main(model: str, batch: int, rounds: int) -> int:
    """Print the speeds of every round and the ratios."""
    found: dict[str, list[float]] = {name: [] for name in ("two hosts", "one host", "multi_worker_mirrored")}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            found["two hosts"].append(ours(model, batch, Path(folder), hosts=2))
            found["one host"].append(ours(model, batch, Path(folder), hosts=1))
            found["multi_worker_mirrored"].append(by_strategy(model, batch, Path(folder)))
            print(f"round {number + 1}:", ", ".join(f"{name} {one[-1]:.1f}" for name, one in found.items()))
    for one, other in (("two hosts", "one host"), ("two hosts", "multi_worker_mirrored")):
        ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{model}, {one} over {other}: {middle:.2f} ({low:.2f} to {high:.2f})")
    return 0


if __name__ == "__main__":
    model, batch, rounds, *_ = *sys.argv[1:], *("resnet20", "64", "3")[len(sys.argv) - 1 :]
    raise SystemExit(main(model, int(batch), int(rounds)))
