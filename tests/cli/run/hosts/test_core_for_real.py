"""Launchers of one training on this host's loopback, as their starters start them on several hosts."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.train.lifecycle import checkpoint_files as files
from gputopo.values.run.events import Event, Restarted, Resumed, Step, read_events
from tests.cli import trained as alone
from tests.cli.run.hosts.test_faults import Host, Hosts
from tests.kit import commands
from tests.kit.forks import Program
from tests.launch import forks
from tests.launch.train.worker_process import environment

pytestmark = pytest.mark.tensorflow

# Hosts of one name are told apart by their ranks.
RANK_0, RANK_1, RANK_2 = (f"localhost (rank {rank})" for rank in range(3))
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


def saving(folder: Path) -> tuple[str, ...]:
    kept = ("--checkpoints", str(folder / "saved"), "--checkpoint-steps", "10", "--keep-checkpoints", "1000")
    return (*ALIKE, *kept, "--min-hosts", "2", "--output", str(folder / "run"))


def events_of(folder: Path) -> list[Event]:
    with (folder / "events.jsonl").open("rb") as file:
        return list(read_events(file, origin="events.jsonl"))


def losses_of(events: list[Event]) -> dict[int | None, float | None]:
    """By the steps that the weights are trained for."""
    return {one.global_step: one.loss for one in events if isinstance(one, Step)}


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory, start: Start) -> tuple[Path, list[tuple[int, str]]]:
    """Three hosts; the launcher of rank 1 is killed after a checkpoint, and two go on."""
    folder = tmp_path_factory.mktemp("gone_on")
    options = (*saving(folder), "--num-batches", "100", "--restart", "1")
    first, second, third = start(localhosts(3), *options)
    first.until("checkpoint after 10 steps")
    own, *served = second.all()
    own.kill()
    assert psutil.wait_procs(served, timeout=15)[1] == []
    return folder, [first.ended(), third.ended()]


def test_a_training_goes_on_with_the_hosts_that_are_left(
    gone_on: tuple[Path, list[tuple[int, str]]],
) -> None:
    folder, ended = gone_on
    assert [code for code, _ in ended] == [0, 0], ended
    result = result_in(folder)
    assert [row["device"]["host"] for row in result["devices"]] == [RANK_0, RANK_2]
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    (restarted,) = (one for one in events_of(folder / "run") if isinstance(one, Restarted))
    assert restarted.cause == f"host {RANK_1} closed the connection"
    assert restarted.says in result["says"]
    assert restarted.steps + result["warmup_steps"] + result["steps"] == 103, "as many steps as without it"


def test_it_trains_as_two_devices_do_that_are_resumed_from_the_same_checkpoint_by_hand(
    gone_on: tuple[Path, list[tuple[int, str]]], tmp_path: Path
) -> None:
    events = events_of(gone_on[0] / "run")
    (resumed,) = (one for one in events if isinstance(one, Resumed))
    (tmp_path / "saved").mkdir()
    shutil.copy(files.path_of(gone_on[0] / "saved", resumed.steps), tmp_path / "saved")
    options = ("--model", "trivial", "--num-batches", "6", *ALIKE, "--all-reduce", "copy", "--resume")
    alone.result_of(tmp_path, *options, "--checkpoints", "saved")
    (run,) = tmp_path.glob("home/runs/*")
    by_hand = losses_of(events_of(run))
    after = losses_of(events)  # a step that was taken twice counts as it was at last
    assert {step: after[step] for step in by_hand} == by_hand
    assert len(by_hand) == len(set(by_hand.values())) == 9, "training changes the loss"


BY_STRATEGY = ("--strategy", "multi_worker_mirrored")


def test_tensorflows_strategy_goes_on_without_a_host_and_after_a_failure_of_rank_0_and_saves_its_last_step(
    gone_on: tuple[Path, list[tuple[int, str]]], start: Start, tmp_path: Path
) -> None:
    options = (*saving(tmp_path), "--num-batches", "1000000", "--trace", "2", "--display-every", "1")
    hosts = start(localhosts(3), *BY_STRATEGY, *options, "--restart", "2")
    for number, rank in enumerate((1, 0), start=1):
        hosts[0].until("checkpoint after ")
        for worker in hosts[rank].all()[1:]:
            worker.kill()
        hosts[0].until(f"Restart {number} of 2")
    hosts[0].until("checkpoint after ")
    hosts[0].until("step ")  # one more
    for process in [one for host in (hosts[2], hosts[0]) for one in reversed(host.all())]:
        process.terminate()
    ended = [host.ended() for host in hosts]
    assert [code for code, _ in ended] == [143, 137, 143], ended
    assert "The last state is lost" not in ended[0][1]

    events, result = events_of(tmp_path / "run"), result_in(tmp_path)
    first, second = (one for one in events if isinstance(one, Restarted))
    assert first.cause.startswith(f"host {RANK_1}: the worker was ended by SIGKILL")
    assert second.cause.startswith("the worker was ended by SIGKILL")
    assert first.fewer is not None
    assert [one.host for one in first.fewer.devices] == [RANK_0, RANK_2]
    assert second.fewer is None
    # Rank 0's process may have saved once more before it was killed.
    at_first, at_second = (one.steps for one in events if isinstance(one, Resumed))
    assert at_first == first.steps
    assert at_second >= second.steps
    last, _ = files.newest(tmp_path / "saved")
    assert last is not None
    assert last.header.steps == max(step or 0 for step in losses_of(events))

    own_towers, losses = losses_of(events_of(gone_on[0] / "run")), losses_of(events)
    assert [losses[step] for step in range(1, 10)] == pytest.approx(
        [own_towers[step] for step in range(1, 10)], rel=1e-6
    )
    assert [row["device"]["device"] for row in result["devices"]] == [
        "/job:worker/task:0/device:CPU:0",
        "/job:worker/task:2/device:CPU:0",
    ]
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    assert result["ran"]["trainer"] == "strategy multi_worker_mirrored"
    assert result["exchange"]["ms"] > 0
    assert result["traces"][0]["steps"] == [2]


def test_a_port_of_another_host_that_a_program_has_is_the_reason_on_both_hosts(start: Start) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ended = [host.ended() for host in start(f"{localhosts(1)},localhost:{port}", *ALIKE)]
    assert [code for code, _ in ended] == [3, 3], ended
    assert all(f"cannot listen on 127.0.0.1:{port}" in " ".join(said.split()) for _, said in ended)
    assert f"host {RANK_1}: " in ended[0][1]
