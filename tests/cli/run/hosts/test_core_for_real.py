"""Two launchers of one training on this host's loopback, as their starters start them on two hosts."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.train.lifecycle import checkpoint_files as files
from gputopo.values.run.events import Event, Restarted, Resumed, Step, read_events

pytestmark = pytest.mark.tensorflow

# Two of one name are told apart by their ranks.
HOSTS = ["localhost (rank 0)", "localhost (rank 1)"]
RUN = (sys.executable, "-m", "gputopo", "run", "--cpu", "--json", "--model", "trivial")


class Hosts:
    """Launchers of one training, by rank; at the end none of their processes is left."""

    def __init__(self, home: Path, *options: str, size: int = 2, ports: Sequence[int] = ()) -> None:
        """`ports`: of the first hosts; the others get free ones."""
        free = (free_port() for _ in range(size - len(ports)))
        hosts = ",".join(f"localhost:{port}" for port in (*ports, *free))
        environ = {**os.environ, "GPUTOPO_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
        self.launchers = [
            subprocess.Popen(
                (*RUN, *options, "--hosts", hosts, "--node-rank", str(rank)),
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def end(self) -> list[tuple[int, str, str]]:
        """Return exit code, stdout and stderr of each."""
        found = []
        for one in self.launchers:
            out, err = one.communicate(timeout=300)
            found.append((one.returncode, out, err))
        return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    home = tmp_path_factory.mktemp("home")
    return Hosts(home, "--num-gpus", "2", "--num-batches", "4", "--trace", "2").end()


def result_of(ended: list[tuple[int, str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ended[0][1])
    return found


def test_one_training_runs_over_both_hosts_and_rank_0_has_its_result(
    trained: list[tuple[int, str, str]],
) -> None:
    assert [code for code, _, _ in trained] == [0, 0], trained
    result = result_of(trained)
    assert [row["device"]["rank"] for row in result["devices"]] == [0, 1]
    assert [row["device"]["host"] for row in result["devices"]] == HOSTS
    assert [row["device"]["device"] for row in result["devices"]] == [
        "/job:worker/task:0/device:CPU:0",
        "/job:worker/task:1/device:CPU:0",
    ]
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    assert result["steps"] == 4
    assert trained[1][1] == "", "the other host prints no result"
    assert "its result is on rank 0" in trained[1][2]


def test_a_trace_has_the_devices_of_rank_0(trained: list[tuple[int, str, str]]) -> None:
    (traced,) = result_of(trained)["traces"]
    assert (traced["steps"], traced["says"]) == ([2], ["The trace has the devices of rank 0 only."])
    (device,) = traced["devices"]
    assert (device["device"], device["tower"]) == ("/job:worker/task:0/device:CPU:0", 0)
    assert device["compute_s"] > 0


def test_its_losses_are_those_of_one_host_with_as_many_devices(
    trained: list[tuple[int, str, str]], tmp_path: Path
) -> None:
    alone = subprocess.run(
        (*RUN, "--num-gpus", "2", "--num-batches", "4", "--all-reduce", "copy"),
        env={**os.environ, "GPUTOPO_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    ours, other = result_of(trained), json.loads(alone.stdout)
    assert (ours["first_loss"], ours["last_loss"]) == (other["first_loss"], other["last_loss"])


def shown_until(hosts: Hosts, words: str) -> str:
    """Return what rank 0 prints until a line has these words."""
    printed = hosts.launchers[0].stderr
    assert printed is not None
    shown = ""
    for line in printed:
        shown += line
        if words in line:
            break
    return shown


def workers_of(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process(launcher.pid).children(recursive=True)
        if "gputopo.launch.train" in " ".join(one.cmdline())
    ]


BY_STRATEGY = ("--strategy", "multi_worker_mirrored")


@pytest.fixture(scope="module")
def by_strategy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    """Two hosts, all of whose processes get a SIGTERM after a checkpoint."""
    home = tmp_path_factory.mktemp("home")
    saves = ("--checkpoints", str(home / "saved"), "--checkpoint-steps", "8", "--output", str(home / "run"))
    hosts = Hosts(home, *BY_STRATEGY, "--num-batches", "1000000", "--trace", "2", *saves)
    shown_until(hosts, "checkpoint after 8 steps")
    launchers = [psutil.Process(one.pid) for one in reversed(hosts.launchers)]
    for process in [one for of in launchers for one in (*of.children(recursive=True), of)]:
        process.terminate()
    return home, hosts.end()


def test_tensorflows_strategy_of_several_hosts_trains_as_our_own_towers(
    trained: list[tuple[int, str, str]], by_strategy: tuple[Path, list[tuple[int, str, str]]]
) -> None:
    home, ended = by_strategy
    ours, other = result_of(trained), result_of(ended)
    for row, same in zip(other["devices"], ours["devices"], strict=True):
        assert row["device"] == same["device"]
        assert row["images_per_sec"] > 0
    losses = {one.step: one.loss for one in events_of(home / "run") if isinstance(one, Step)}
    assert losses[1] == pytest.approx(ours["first_loss"], rel=1e-6)
    assert losses[4] == pytest.approx(ours["last_loss"], rel=1e-6)
    assert other["ran"]["trainer"] == "strategy multi_worker_mirrored"
    assert other["exchange"]["ms"] > 0
    assert other["traces"][0]["says"] == ["The trace has the devices of rank 0 only."]


def test_a_sigterm_to_all_processes_of_the_strategy_lets_rank_0_save_its_last_step(
    by_strategy: tuple[Path, list[tuple[int, str, str]]],
) -> None:
    home, ended = by_strategy
    assert [code for code, _, _ in ended] == [143, 143], ended
    assert "The last state is lost" not in ended[0][2]
    found, _ = files.newest(home / "saved")
    assert found is not None
    assert found.header.steps == max(step or 0 for step in losses_of(events_of(home / "run")))


def test_the_strategy_goes_on_from_a_checkpoint_without_a_host_and_after_a_failure_of_rank_0(
    tmp_path: Path,
) -> None:
    saves = ("--checkpoints", str(tmp_path / "saved"), "--checkpoint-steps", "25", "--output")
    goes_on = ("--restart", "2", "--min-hosts", "2", "--num-batches", "100", *ALIKE)
    hosts = Hosts(tmp_path, *BY_STRATEGY, *saves, str(tmp_path / "run"), *goes_on, size=3)
    for rank, steps in ((1, 25), (0, 50)):
        shown_until(hosts, f"checkpoint after {steps} steps")
        for worker in workers_of(hosts.launchers[rank]):
            worker.kill()
    ended = hosts.end()
    assert [code for code, _, _ in ended] == [0, 137, 0], ended
    events = events_of(tmp_path / "run")
    first, second = (one for one in events if isinstance(one, Restarted))
    assert first.cause.startswith("host localhost (rank 1): the worker was ended by SIGKILL")
    assert second.cause.startswith("the worker was ended by SIGKILL")
    assert first.fewer is not None
    assert [one.host for one in first.fewer.devices] == ["localhost (rank 0)", "localhost (rank 2)"]
    assert second.fewer is None
    assert [one.steps for one in events if isinstance(one, Resumed)] == [first.steps, second.steps]
    last, _ = files.newest(tmp_path / "saved")
    assert last is not None
    assert last.header.steps == 103, "as many as without"


def test_a_port_of_another_host_that_a_program_has_is_the_reason_on_both_hosts(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ended = Hosts(tmp_path, "--num-gpus", "2", ports=(free_port(), port)).end()
    assert [code for code, _, _ in ended] == [3, 3], ended
    for _, _, err in ended:
        assert f"cannot listen on 127.0.0.1:{port}" in " ".join(err.split())
    assert "host localhost (rank 1): " in ended[0][2]


# Defaults of both depend on the number of devices.
ALIKE = ("--batch-size", "8", "--learning-rate", "0.05")


def events_of(folder: Path) -> list[Event]:
    with (folder / "events.jsonl").open("rb") as file:
        return list(read_events(file, origin="events.jsonl"))


def losses_of(events: list[Event]) -> dict[int | None, float | None]:
    """By the steps that the weights are trained for."""
    return {one.global_step: one.loss for one in events if isinstance(one, Step)}


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    """Three hosts; the launcher of rank 1 is killed after a checkpoint, and two go on."""
    home = tmp_path_factory.mktemp("home")
    saves = ("--checkpoints", str(home / "saved"), "--checkpoint-steps", "25", "--keep-checkpoints", "1000")
    goes_on = ("--restart", "1", "--min-hosts", "2", "--output", str(home / "run"))
    hosts = Hosts(home, "--num-gpus", "3", "--num-batches", "200", *ALIKE, *saves, *goes_on, size=3)
    shown = shown_until(hosts, "checkpoint after 25 steps")
    second = hosts.launchers.pop(1)
    served = psutil.Process(second.pid).children(recursive=True)
    second.kill()
    second.communicate()
    assert psutil.wait_procs(served, timeout=15)[1] == []
    (code, out, err), left = hosts.end()
    return home, [(code, out, shown + err), left]


def test_a_training_goes_on_with_the_hosts_that_are_left(
    gone_on: tuple[Path, list[tuple[int, str, str]]],
) -> None:
    home, ended = gone_on
    assert [code for code, _, _ in ended] == [0, 0], ended
    result = result_of(ended)
    assert [row["device"]["host"] for row in result["devices"]] == [
        "localhost (rank 0)",
        "localhost (rank 2)",
    ]
    assert all(row["images_per_sec"] > 0 for row in result["devices"])
    (restarted,) = (one for one in events_of(home / "run") if isinstance(one, Restarted))
    assert restarted.cause == "host localhost (rank 1) closed the connection"
    assert restarted.says in result["says"]
    assert restarted.steps + result["warmup_steps"] + result["steps"] == 203, "as many steps as without it"


def test_it_trains_as_two_devices_do_that_are_resumed_from_the_same_checkpoint_by_hand(
    gone_on: tuple[Path, list[tuple[int, str, str]]], tmp_path: Path
) -> None:
    home, _ = gone_on
    (resumed,) = (one for one in events_of(home / "run") if isinstance(one, Resumed))
    (tmp_path / "saved").mkdir()
    shutil.copy(files.path_of(home / "saved", resumed.steps), tmp_path / "saved")
    subprocess.run(
        (
            *(*RUN, "--num-gpus", "2", "--num-batches", "6", *ALIKE, "--all-reduce", "copy", "--resume"),
            *("--checkpoints", str(tmp_path / "saved"), "--output", str(tmp_path / "run")),
        ),
        env={**os.environ, "GPUTOPO_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        check=True,
    )
    by_hand = losses_of(events_of(tmp_path / "run"))
    assert len(by_hand) == 9
    after = losses_of(events_of(home / "run"))  # a step that was taken twice counts as it was at last
    assert {step: after[step] for step in by_hand} == by_hand
    assert len(set(by_hand.values())) == 9, "training changes the loss"
