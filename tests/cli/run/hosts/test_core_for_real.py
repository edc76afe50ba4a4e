"""Launchers of one training on this host's loopback, as their starters start them on several hosts."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import IO, Any

import pytest

from gputopo.values.run.events import Step, read_events
from tests.cli.run.hosts.test_faults import Host, Hosts
from tests.kit import commands
from tests.kit.forks import Program
from tests.kit.ports import free_port
from tests.launch import forks
from tests.launch.train.worker_process import environment

pytestmark = pytest.mark.tensorflow

# Hosts of one name are told apart by their ranks.
RANK_0, RANK_1 = (f"localhost (rank {rank})" for rank in range(2))
# Small pictures; defaults of the others depend on the number of devices.
ALIKE = ("--data-name", "cifar10", "--batch-size", "8", "--learning-rate", "0.002")


def with_tensorflow(*words: str, **more: str) -> AbstractContextManager[tuple[Program, IO[str]]]:
    """Start a launcher whose workers and servers are forks of it, where TensorFlow can be forked."""
    server = forks.server()
    if server is None:
        return commands.started(*words, out=None, **more)
    return server.started(words, environment(**more))


Start = Callable[..., list[Host]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts the launchers of two hosts."""
    home = tmp_path_factory.mktemp("homes")
    (home / "sys/bus/pci/devices").mkdir(parents=True)

    def start(*options: str) -> list[Host]:
        launched = Hosts(home, ending, f"localhost:{free_port()},localhost:{free_port()}", with_tensorflow)
        return [launched.start(rank, *ALIKE, *options, trains=True) for rank in range(2)]

    with ExitStack() as ending:
        yield start


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, start: Start) -> tuple[Path, str]:
    """The run of two hosts, and what the other one than rank 0 printed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    ended = [host.ended() for host in start("--num-batches", "4", "--trace", "2", "--output", str(folder))]
    assert [code for code, _ in ended] == [0, 0], ended
    return folder, ended[1][1]


def result_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    return found


def losses_in(folder: Path) -> dict[int, float | None]:
    """Return the losses by the steps that the weights are trained for."""
    with (folder / "events.jsonl").open("rb") as file:
        steps = (one for one in read_events(file, origin="events.jsonl") if isinstance(one, Step))
        return {one.global_step: one.loss for one in steps if one.global_step is not None}


def test_one_training_runs_over_both_hosts_and_rank_0_has_its_result(trained: tuple[Path, str]) -> None:
    folder, printed = trained
    result = result_in(folder)
    devices = [
        (row["device"]["rank"], row["device"]["host"], row["device"]["device"]) for row in result["devices"]
    ]
    assert devices == [
        (0, RANK_0, "/job:worker/task:0/device:CPU:0"),
        (1, RANK_1, "/job:worker/task:1/device:CPU:0"),
    ]
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    assert result["steps"] == 4
    assert "its result is on rank 0" in printed
    assert "images/sec" not in printed, "the other host prints no result"
    assert [traced["steps"] for traced in result["traces"]] == [[2]]


def test_tensorflows_strategy_trains_alike_saves_its_last_step_and_names_what_it_cannot_do(
    start: Start, trained: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kept = ("--checkpoints", str(tmp_path / "saved"), "--checkpoint-steps", "10")
    endless = ("--num-batches", "1000000", "--display-every", "1", "--output", str(folder))
    hosts = start("--strategy", "multi_worker_mirrored", *kept, *endless)
    hosts[0].until("checkpoint after ")
    hosts[0].until("step ")  # one more
    for process in [one for host in reversed(hosts) for one in reversed(host.all())]:
        process.terminate()
    ended = [host.ended() for host in hosts]
    assert [code for code, _ in ended] == [143, 143], ended
    assert "The last state is lost" not in ended[0][1]
    assert "Between hosts: TensorFlow's MultiWorkerMirroredStrategy, without drills" in " ".join(
        ended[0][1].split()
    )
    result, losses, by_towers = result_in(folder), losses_in(folder), losses_in(trained[0])
    assert result["checkpoints"][-1]["steps"] == max(losses)
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    assert result["ran"]["trainer"] == "strategy multi_worker_mirrored"
    assert result["exchange"]["ms"] > 0
    assert len(set(by_towers.values())) > 1, "training changes the loss"
    assert [losses[step] for step in by_towers] == pytest.approx([*by_towers.values()], rel=1e-6)
