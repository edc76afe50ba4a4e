"""Two launchers of one training on this host's loopback, as their starters start them on two hosts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gputopo.launch.jobs.hosts.serving import free_port

pytestmark = pytest.mark.tensorflow

# Two of one name are told apart by their ranks.
HOSTS = ["localhost (rank 0)", "localhost (rank 1)"]
RUN = (sys.executable, "-m", "gputopo", "run", "--cpu", "--json", "--model", "trivial")


class Hosts:
    """Launchers of one training, by rank; at the end none of their processes is left."""

    def __init__(self, home: Path, *options: str, size: int = 2) -> None:
        hosts = ",".join([f"localhost:{free_port()}", *["localhost"] * (size - 1)])
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
            out, err = one.communicate(timeout=120)
            found.append((one.returncode, out, err))
        return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    return Hosts(tmp_path_factory.mktemp("home"), "--num-gpus", "2", "--num-batches", "4").end()


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


def test_a_host_that_is_gone_ends_the_training_and_is_named(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "--num-gpus", "2", "--num-batches", "100000")
    first, second = hosts.launchers
    assert first.stderr is not None
    for line in first.stderr:
        if "steps" in line:
            break
    served = psutil.Process(second.pid).children(recursive=True)
    second.kill()
    rest = first.communicate(timeout=60)[1]
    second.communicate()
    assert first.returncode == 3
    assert "rank 1" in rest
    assert not [one for one in served if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
