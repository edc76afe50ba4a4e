"""Launchers of one training on this host's loopback, as their starters start them on several hosts."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import IO, Any

import pytest

from gputopo.values.run.events import Event, Step, read_events
from tests.cli import trained as alone
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


def localhosts(count: int) -> str:
    return ",".join(f"localhost:{free_port()}" for _ in range(count))


def with_tensorflow(*words: str, **more: str) -> AbstractContextManager[tuple[Program, IO[str]]]:
    """Start a launcher whose workers and servers are forks of it, where TensorFlow can be forked."""
    server = forks.server()
    if server is None:
        return commands.started(*words, out=None, **more)
    return server.started(words, environment(**more))


Start = Callable[..., list[Host]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts launchers of hosts, as named."""
    home = tmp_path_factory.mktemp("homes")
    (home / "sys/bus/pci/devices").mkdir(parents=True)

    def start(hosts: str, *options: str) -> list[Host]:
        launched = Hosts(home, ending, hosts, with_tensorflow)
        return [launched.start(rank, *options, trains=True) for rank in range(len(hosts.split(",")))]

    with ExitStack() as ending:
        yield start


def result_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run/result.json").read_bytes())
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, start: Start) -> tuple[dict[str, Any], str]:
    """The result of two hosts, and what the other one than rank 0 printed."""
    folder = tmp_path_factory.mktemp("trained")
    options = (*ALIKE, "--num-batches", "4", "--trace", "2", "--output", str(folder / "run"))
    ended = [host.ended() for host in start(localhosts(2), *options)]
    assert [code for code, _ in ended] == [0, 0], ended
    return result_in(folder), ended[1][1]


def test_one_training_runs_over_both_hosts_and_rank_0_has_its_result(
    trained: tuple[dict[str, Any], str],
) -> None:
    result, printed = trained
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


def test_its_losses_are_those_of_one_host_with_as_many_devices(
    trained: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    ours, _ = trained
    other = alone.result_of(
        tmp_path, "--model", "trivial", "--num-batches", "4", "--all-reduce", "copy", *ALIKE
    )
    assert (ours["first_loss"], ours["last_loss"]) == (other.first_loss, other.last_loss)


@pytest.fixture(scope="module")
def by_strategy(tmp_path_factory: pytest.TempPathFactory, start: Start) -> tuple[Path, list[tuple[int, str]]]:
    """Two hosts by TensorFlow's strategy, which are asked to end after a checkpoint."""
    folder = tmp_path_factory.mktemp("by_strategy")
    kept = ("--checkpoints", str(folder / "saved"), "--checkpoint-steps", "10", "--trace", "2")
    options = (
        "--strategy",
        "multi_worker_mirrored",
        *kept,
        "--num-batches",
        "1000000",
        "--display-every",
        "1",
    )
    hosts = start(localhosts(2), *ALIKE, *options, "--output", str(folder / "run"))
    hosts[0].until("checkpoint after ")
    hosts[0].until("step ")  # one more
    for process in [one for host in reversed(hosts) for one in reversed(host.all())]:
        process.terminate()
    return folder, [host.ended() for host in hosts]


def test_tensorflows_strategy_saves_its_last_step_and_names_what_it_cannot_do(
    by_strategy: tuple[Path, list[tuple[int, str]]],
) -> None:
    folder, ended = by_strategy
    assert [code for code, _ in ended] == [143, 143], ended
    assert "The last state is lost" not in ended[0][1]
    assert "Between hosts: TensorFlow's MultiWorkerMirroredStrategy, without drills" in " ".join(
        ended[0][1].split()
    )
    events, result = events_of(folder / "run"), result_in(folder)
    assert result["checkpoints"][-1]["steps"] == max(step or 0 for step in losses_of(events))
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    assert result["ran"]["trainer"] == "strategy multi_worker_mirrored"
    assert result["exchange"]["ms"] > 0
    assert result["traces"][0]["steps"] == [2]


def test_its_losses_by_the_strategy_are_those_of_one_host_to_rounding(
    by_strategy: tuple[Path, list[tuple[int, str]]], tmp_path: Path
) -> None:
    folder, _ = by_strategy
    losses = losses_of(events_of(folder / "run"))
    options = ("--model", "trivial", "--num-batches", "3", *ALIKE, "--all-reduce", "copy")
    alone.result_of(tmp_path, *options)
    (run,) = tmp_path.glob("home/runs/*")
    by_one = losses_of(events_of(run))
    assert len(set(by_one.values())) > 1, "training changes the loss"
    assert [losses[step] for step in by_one] == pytest.approx([by_one[step] for step in by_one], rel=1e-6)


def events_of(folder: Path) -> list[Event]:
    with (folder / "events.jsonl").open("rb") as file:
        return list(read_events(file, origin="events.jsonl"))


def losses_of(events: list[Event]) -> dict[int, float | None]:
    """By the steps that the weights are trained for."""
    steps = (one for one in events if isinstance(one, Step))
    return {one.global_step: one.loss for one in steps if one.global_step is not None}


def test_a_port_of_another_host_that_a_program_has_is_the_reason_on_both_hosts(start: Start) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ended = [host.ended() for host in start(f"{localhosts(1)},localhost:{port}", *ALIKE)]
    assert [code for code, _ in ended] == [3, 3], ended
    assert all(f"cannot listen on 127.0.0.1:{port}" in " ".join(said.split()) for _, said in ended)
    assert f"host {RANK_1}: " in ended[0][1]
