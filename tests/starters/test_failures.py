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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("n9", "ssh cannot connect to n9: ssh: Could not resolve hostname n9"),
        ("10.77.0.99", "ssh cannot connect to 10.77.0.99: ssh: connect to host 10.77.0.99 port 22"),
    ],
)
def test_a_host_that_ssh_does_not_reach_is_named_and_nobody_waits(
    hosts: Cluster, tmp_path: Path, name: str, says: str
) -> None:
    words = [*run("ssh")[:-2], "--hosts", f"n1,{name}"]
    code, out, err = hosts.start(words, environ(tmp_path)).ended(20)
    assert (code, out) == (3, "")
    assert says in err


def test_a_host_that_never_starts_is_named_after_the_time_to_join(hosts: Cluster, tmp_path: Path) -> None:
    words = [*run("ssh"), "--node-rank", "0", "--join-timeout", "1"]
    code, out, err = hosts.start(words, environ(tmp_path), host="n1").ended()
    assert (code, out) == (3, "")
    assert "1 of 2 hosts did not join within 1 s: n2 (rank 1)" in err


def test_a_rank_with_other_options_is_refused_with_them(hosts: Cluster, tmp_path: Path) -> None:
    srun, rest = run("srun")[:3], run("srun")[3:]
    own = ("sh", "-c", 'exec "$@" --batch-size $((8 + SLURM_NODEID))', "sh")
    code, out, err = hosts.start([*srun, *own, *rest], environ(tmp_path)).ended()
    assert (code, out) == (2, "")
    assert "--batch-size is 9 on n2 (rank 1), 8 on rank 0" in err
