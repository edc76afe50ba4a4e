"""What goes wrong with the TensorFlow servers of a run's hosts is reported with the host; collectives."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from gputopo.values import schema
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import Event, ModelBuilt, Noticed, RankFailed, Step, decode_line, read_events
from gputopo.values.run.spec import RunSpec
from tests.launch.forks import run_program
from tests.launch.train.hosts import cpu, serving, spec_of
from tests.launch.train.worker_process import run_worker, watched

pytestmark = pytest.mark.tensorflow

MODEL = "trivial-cifar10"  # the cheapest
COLLECTIVE: dict[str, Any] = {"variable_update": "replicated", "all_reduce": "collective", "ps_device": None}


KILLED = 5  # the step after which rank 1 is killed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunSpec, int, list[Event]]]:
    """Runs whose second host is asked to end after a step, and is killed later: spec, exit code, events."""
    found = {}
    for name, placed in {"server": {"ps_device": cpu(1)}, "collective": COLLECTIVE}.items():
        folder = tmp_path_factory.mktemp(name)
        endless = spec_of(2, 1, model=MODEL, num_batches=1_000_000, **placed)
        with serving(folder, endless) as servers:

            def kill(_: int, event: Event, rank_1: int = servers[1]) -> None:
                if isinstance(event, Step) and event.step == 1:
                    os.kill(rank_1, signal.SIGTERM)  # as batch systems do: not by the parent
                elif isinstance(event, Step) and event.step == KILLED:
                    os.kill(rank_1, signal.SIGKILL)

            found[name] = (endless, *watched(folder, endless, kill))
    return found


@pytest.mark.parametrize("name", ["server", "collective"])
def test_a_server_that_is_killed_ends_the_training_and_one_that_others_ask_to_end_does_not(
    killed: dict[str, tuple[RunSpec, int, list[Event]]], name: str
) -> None:
    spec, code, events = killed[name]
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert (code, failed.exit_code, failed.kind) == (3, 3, "unreachable")
    assert f"n1 (rank 1) at {spec.servers[1].address}" in failed.cause


def test_collectives_between_hosts_train_as_a_server_on_one_of_them_does(
    killed: dict[str, tuple[RunSpec, int, list[Event]]],
) -> None:
    by_server, by_collective = (
        [event.loss for event in events if isinstance(event, Step)][: KILLED + 1]
        for _, _, events in killed.values()
    )
    assert len(set(by_server)) == KILLED + 1, "training changes the loss"
    assert by_collective == pytest.approx(by_server, rel=1e-6)


def listening(pid: int) -> set[int]:
    found = (one for one in psutil.net_connections("tcp") if one.pid == pid)
    return {one.laddr[1] for one in found if one.laddr and one.status == psutil.CONN_LISTEN}


_LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, "-P", "-c", '''
import os, signal, sys
from gputopo.launch.train import parent
parent.PARENT_STOPPED_S = 1.0
print(os.getpid(), flush=True)
if sys.argv[1] == "server":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent.end_for_parent(writes_stacks=False)
else:
    parent.end_without_launcher("n0", int(sys.argv[2]))
''', *sys.argv[1:]], close_fds=False)
"""


@pytest.mark.parametrize("kind", ["server", "worker"])
def test_a_process_whose_launcher_is_stopped_ends_and_that_of_rank_0_reports_it(kind: str) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command = [sys.executable, "-P", "-c", _LAUNCHER, kind, str(writing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=(writing,)) as launcher:
        os.close(writing)
        assert launcher.stdout is not None
        served = psutil.Process(int(launcher.stdout.readline()))
        launcher.send_signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + 30
        try:
            while served.status() != psutil.STATUS_ZOMBIE:  # who is stopped does not reap
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
        finally:
            launcher.kill()
    with os.fdopen(reading, "rb") as events:
        reported = list(read_events(events, origin="the worker"))
    if kind == "server":
        assert reported == []
        return
    (failed,) = reported
    assert isinstance(failed, RankFailed)
    assert (failed.rank, failed.exit_code) == (0, 3)
    assert "host n0 (rank 0) was silent: its gputopo was stopped" in failed.cause


# Without waiting some of the variables are those of the round before, in a third of the rounds: eight rounds.
_ASSIGN = """
import sys
import msgspec, numpy as np, tensorflow as tf
from gputopo.values.run.spec import RunSpec
from gputopo.launch.train import Stepper
from gputopo.launch.train import joined, set_up_devices
from gputopo.values import schema
class Read(Stepper):
    def __call__(self, number):
        return [float(one.numpy()) for one in graph()]
spec = schema.decode(open(sys.argv[1], "rb").read(), RunSpec, origin="")
set_up_devices(spec)
with joined(spec):
    there = spec.devices[1].device
    with tf.device(there):
        variables = [tf.Variable(tf.zeros(100_000)) for _ in range(20)]
    def read():
        with tf.device(there):
            return [tf.reduce_min(one.read_value()) for one in variables]
    graph = tf.compat.v1.wrap_function(read, [])
    for number in range(1, 9):
        for one in variables:
            one.assign(np.full(100_000, number, np.float32))
        found, _ = Read().first(0)
        assert found == [number] * 20, found
"""


def test_the_first_step_has_the_values_that_were_assigned_on_other_hosts(tmp_path: Path) -> None:
    spec = spec_of(2, 1)
    file = tmp_path / "spec.json"
    schema.write(file, spec)
    with serving(tmp_path, spec):
        done = run_program("-c", _ASSIGN, str(file))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Event], set[int]]:
    """A run that asks for no exchange, and whose second host is slow; and the ports that it listens on."""
    folder, drills = tmp_path_factory.mktemp("slow"), read_drills("--drill", ["slow-gpu=1:0.2"])
    placed: dict[str, Any] = {"variable_update": "replicated", "ps_device": None}
    spec = spec_of(2, 1, **placed, model=MODEL, batch_size=64, num_batches=8, drills=drills)
    ports: set[int] = set()
    with serving(folder, spec) as servers:

        def look(worker: int, event: Event) -> None:
            if isinstance(event, Step) and event.step == 1:
                ports.update(*map(listening, (worker, *servers.values())))

        code, events = watched(folder, spec, look)
    assert code == 0
    return events, ports


def test_the_ports_that_are_open_to_everyone_are_noticed_once(slow: tuple[list[Event], set[int]]) -> None:
    events, ports = slow
    (notice,) = (one.says for one in events if isinstance(one, Noticed) and "listens" in one.says)
    assert {int(port) for port in re.findall(r"\b\d{4,5}\b", notice)} == ports
    assert "anyone who can connect to them can run code as you" in notice
    assert "gputopo explain security" in notice


def test_the_exchange_between_hosts_is_chosen_by_its_time_where_none_is_asked_for(
    slow: tuple[list[Event], set[int]],
) -> None:
    (built,) = (event for event in slow[0] if isinstance(event, ModelBuilt))
    (said,) = (one for one in built.says if one.startswith("exchange between hosts"))
    assert re.fullmatch(
        r"exchange between hosts: copies [\d.]+ ms, collective [\d.]+ ms: (copies|collective)", said
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_an_address_that_another_program_has_is_named(tmp_path: Path, rank: int) -> None:
    spec = spec_of(2, 1)
    file = tmp_path / "spec.json"
    schema.write(file, spec)
    with socket.socket() as taken:
        taken.bind(("", int(spec.servers[rank].address.rpartition(":")[2])))
        taken.listen()
        if rank == 0:
            code, events, _ = run_worker(tmp_path, spec)
        else:
            done = run_program("-m", "gputopo.launch.train.server", str(file), "1", "1")
            code, events = done.returncode, [decode_line(done.stdout)]
    (failed,) = events
    assert isinstance(failed, RankFailed)
    assert (code, failed.exit_code) == (3, 3)
    assert f"cannot listen on {spec.servers[rank].address}" in failed.cause
    assert "port" in failed.remedy


def test_a_device_of_another_host_that_is_slow_is_seen_in_its_own_marks(
    slow: tuple[list[Event], set[int]],
) -> None:
    steps = [event for event in slow[0] if isinstance(event, Step) and event.step > 0]
    assert len(steps) == 8
    computed = [median(step.marks[tower].compute_s for step in steps) for tower in (0, 1)]
    assert computed[1] > 2 * computed[0]
