"""Trainings that fail on one host, or are ended: what is reported, the exit code, and that nothing is left.

That nothing is left is checked after each test (`hosts`).
"""

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.starters.cluster import HEAD, Cluster, Started
from tests.starters.runs import ENDLESS, WAYS, environ, run

pytestmark = pytest.mark.starters

SERVER, RUN = ("-m", "gputopo.launch.train.server"), ("-m", "gputopo", "run")
Training = Callable[..., Started]


@pytest.fixture
def training(hosts: Cluster, tmp_path: Path) -> Training:
    """Starts a training without an end, and returns it in its first step."""

    def start(way: str, *options: str) -> Started:
        started = hosts.start(run(way, *ENDLESS, *options), environ(tmp_path))
        started.until("step 1:")
        return started

    return start


def kill(hosts: Cluster, host: str, words: tuple[str, ...], number: int = signal.SIGKILL) -> None:
    """Send a signal to the one process with these words that is no starter's, whose words go on with them."""
    (one,) = (one for one in hosts.processes(host, *words) if one.cmdline()[0] == sys.executable)
    one.send_signal(number)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_killed_is_named_with_its_host_and_rank_0_reports(
    hosts: Cluster, training: Training, way: str
) -> None:
    started = training(way)
    kill(hosts, "n2", SERVER)
    code, out, err = started.ended()
    assert code == 137, err
    assert "Failed: host n2 (rank 1): its TensorFlow server was ended by SIGKILL" in " ".join(out.split())
    assert "Run folder:" in err


def test_a_rank_0_that_is_killed_is_named_on_the_other_hosts(hosts: Cluster, training: Training) -> None:
    started = training("srun")
    kill(hosts, "n1", RUN)
    began = time.monotonic()
    code, _, err = started.ended()
    assert code == 137
    assert re.search(r"rank 0 at n1 port 2\d{4} has ended", err)
    assert time.monotonic() - began < 5


def test_a_host_whose_network_is_cut_is_named_within_15_s_and_it_ends_too(
    hosts: Cluster, training: Training
) -> None:
    started = training("ssh")
    hosts.unplug("n2")
    began = time.monotonic()
    try:
        started.until("host n2 (rank 1) no longer answers")
        assert time.monotonic() - began < 15
        code, _, err = started.ended()
    finally:
        hosts.plug("n2")
    assert code == 3, err


def test_scancel_lets_rank_0_save_the_last_step(hosts: Cluster, training: Training, tmp_path: Path) -> None:
    started = training("srun", "--checkpoints", str(tmp_path / "saved"))
    hosts.slurm("scancel", "--user=root")
    code, _, err = started.ended()
    assert code == 143, err
    assert "checkpoint after" in err
    assert len(list((tmp_path / "saved").glob("checkpoint-*"))) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_driver_that_is_ended(hosts: Cluster, training: Training, number: int) -> None:
    started = training("ssh")
    kill(hosts, HEAD, RUN, number)
    code, _, err = started.ended(15)
    if number == signal.SIGTERM:
        assert code == 143, err
        assert "terminated: stopped by SIGTERM" in err


@pytest.mark.parametrize("way", ["srun", "mpirun"])
def test_nothing_outlives_a_starter_that_is_killed(hosts: Cluster, training: Training, way: str) -> None:
    started = training(way)
    started.process.kill()
    started.ended(15)
