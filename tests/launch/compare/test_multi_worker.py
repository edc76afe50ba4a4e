"""MultiWorkerMirroredStrategy over hosts that are this one: a worker of each, on loopback."""

import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch.supervise.watchdog import SIGN_S
from gputopo.launch.train.lifecycle import newest_checkpoint
from gputopo.values.run.events import (
    Device,
    Evaluated,
    Event,
    ModelBuilt,
    PlacementChecked,
    RankFailed,
    Step,
)
from gputopo.values.run.spec import Data, Lifecycle, Optimization, Precision, RunSpec
from tests.launch.forks import answer_of
from tests.launch.train.hosts import cpu, spec_of, working
from tests.launch.train.trained import USER
from tests.launch.train.worker_process import run_worker, watched

pytestmark = pytest.mark.tensorflow

STRATEGY = "multi_worker_mirrored"
STEPS = 4  # one of warm-up, three counted
TOLERANCE = 2e-6  # float32 keeps 7 digits; reductions add in another order
MOMENTUM = Optimization(optimizer="momentum", weight_decay=0.001, gradient_clip_norm=1.0)
# 2^19 times the loss leaves the range of float16 at first.
SHORT = Precision(compute="fp16", auto_loss_scale=True, loss_scale=2.0**19)


def of_one_process(spec: RunSpec, **fields: Any) -> RunSpec:
    """Return the same training by our own towers on as many devices of one host."""
    devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(2))
    alone: dict[str, Any] = {"rank": None, "strategy": None, "servers": (), "all_reduce": "copy"}
    return msgspec.structs.replace(spec, devices=devices, **alone, **fields)


def steps_of(events: Sequence[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def losses_of(events: Sequence[Event]) -> list[float | None]:
    return [step.loss for step in steps_of(events)]


def over_hosts(folder: Path, spec: RunSpec) -> list[Event]:
    folder.mkdir(parents=True, exist_ok=True)
    with working(folder, spec) as workers:
        code, events, stderr = run_worker(folder, spec)
        assert code == 0, stderr[-3000:]
        for pid in workers.values():
            os.kill(pid, 0)  # the others wait until they are told to end
    return events


def by_one(folder: Path, spec: RunSpec) -> list[Event]:
    folder.mkdir(parents=True, exist_ok=True)
    code, events, stderr = run_worker(folder, spec)
    assert code == 0, stderr[-3000:]
    return events


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def rest(root: Path) -> RunSpec:
    """Return a run that goes on from a checkpoint after the first step."""
    options: dict[str, Any] = {"model": f"{USER}:normed", "batch_size": (2, 5), "learning_rate": 0.2}
    options |= {"optimization": MOMENTUM, "precision": SHORT, "data": Data(source="cpu")}
    kept = Lifecycle(checkpoints=str(root / "kept"), resume=True)
    return spec_of(2, 1, strategy=STRATEGY, lifecycle=kept, **options)


@pytest.fixture(scope="module")
def alone(root: Path, rest: RunSpec) -> list[Event]:
    """All steps by one process, whose first checkpoint the hosts get."""
    whole = Lifecycle(checkpoints=str(root / "whole"), checkpoint_steps=1)
    events = by_one(root / "alone", of_one_process(rest, num_batches=STEPS, lifecycle=whole))
    (root / "kept").mkdir()
    shutil.copy(root / "whole" / f"checkpoint-{1:08d}.npz", root / "kept")
    return events


@pytest.fixture(scope="module")
def ran(root: Path, rest: RunSpec, alone: list[Event]) -> list[Event]:
    return over_hosts(root / "hosts", rest)


def test_two_hosts_go_on_from_a_checkpoint_that_only_rank_0_can_read_as_two_devices_of_one(
    root: Path, alone: list[Event], ran: list[Event]
) -> None:
    assert [step.global_step for step in steps_of(ran)] == list(range(2, STEPS + 2))
    assert losses_of(ran) == pytest.approx(losses_of(alone)[1:], rel=1e-4)
    assert losses_of(ran)[0] != losses_of(ran)[-1], "training changes something"
    ours, theirs = newest_checkpoint(root / "kept")[0], newest_checkpoint(root / "whole")[0]
    assert ours is not None
    assert theirs is not None
    assert dict(ours.arrays())["scale/2"] == 3, "steps left out for an overflow, two of them by the hosts"
    for (name, got), (same, expected) in zip(ours.arrays(), theirs.arrays(), strict=True):
        assert name == same
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-3)  # float16 keeps 3 digits


def test_two_hosts_evaluate_as_two_devices_of_one(root: Path, rest: RunSpec, ran: list[Event]) -> None:
    judged = msgspec.structs.replace(rest, task="eval", num_batches=3, precision=Precision())
    by_hosts = over_hosts(root / "judged", judged)
    by_one_host = by_one(root / "judged alone", of_one_process(judged))
    found, other = (one for events in (by_hosts, by_one_host) for one in events if isinstance(one, Evaluated))
    assert (found.examples, found.steps, found.checkpoint) == (3 * 7, STEPS + 1, other.checkpoint)
    assert (found.top1, found.top5) == (other.top1, other.top5)
    assert found.loss == pytest.approx(other.loss, rel=TOLERANCE)
    assert [len(step.marks) for step in steps_of(by_hosts)] == [2, 2, 2]


def test_rank_0_has_the_marks_of_all_hosts_and_its_exchange_in_every_step(ran: list[Event]) -> None:
    for step in steps_of(ran):
        assert [marks.tower for marks in step.marks] == [0, 1]
        assert all(marks.weights_s >= 0 and marks.compute_s > 0 for marks in step.marks)
        assert step.marks[0].compute_s < step.seconds
        # One clock: no host computes outside of the step, but for what rank 0 does between two steps.
        assert all(abs(marks.start_s) < step.seconds + 5 for marks in step.marks)
        first, second = step.exchange
        assert first.sums_s is not None
        assert 0 <= first.sums_s < step.seconds
        assert (first.sends_s, second.sums_s) == (None, None), "a collective hides them"


def test_what_runs_is_reported_and_is_on_the_devices_of_its_host(ran: list[Event]) -> None:
    (built,) = (event for event in ran if isinstance(event, ModelBuilt))
    assert (
        f"Strategy {STRATEGY}: tf.distribute MultiWorkerMirroredStrategy, gradients reduced over 2 hosts "
        "by CollectiveReduceV2 (ring), in gputopo's training loop."
    ) in built.says
    (placed,) = (event for event in ran if isinstance(event, PlacementChecked))
    assert list(placed.variables) == list(placed.ops) == [cpu(0)]


def test_a_port_that_another_program_has_is_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        spec = spec_of(1, 1, strategy=STRATEGY)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        servers = (msgspec.structs.replace(spec.servers[0], address=address),)
        code, events, _ = run_worker(tmp_path, msgspec.structs.replace(spec, servers=servers))
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert (code, failed.cause.partition(":")[0]) == (3, "TensorFlow's server cannot listen on 127.0.0.1")


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    endless = spec_of(2, 1, strategy=STRATEGY, model="trivial-cifar10", num_batches=1_000_000)
    with working(tmp_path, endless) as workers:

        def kill(_: int, event: Event) -> None:
            if isinstance(event, Step) and event.step == 1:
                os.kill(workers[1], signal.SIGKILL)

        code, events = watched(tmp_path, endless, kill)
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert (code, failed.kind, failed.rank) == (3, "unreachable", 1)
    assert failed.cause == f"the worker of n1 (rank 1) at {endless.servers[1].address} is gone"
    assert "worker.log" in failed.remedy


# Absent, there, and absent again: ten times as long as a sign takes.
_ABSENT = """
import time
from gputopo.launch.compare.multi_worker import Absence
from gputopo.launch.supervise.watchdog import SIGN_S
from gputopo.values import schema
said, there = [], [False]
watch = Absence(lambda: there[0], 1, said.append)
end_s = time.monotonic()
watch.look(end_s + SIGN_S / 2)
there[0] = True
watch.look(end_s + 10 * SIGN_S)
assert said == []
there[0] = False
for _ in range(2):
    watch.look(end_s + 10 * SIGN_S)
(silent,) = said
print(schema.encode(silent).decode())
"""


def test_a_host_that_does_not_come_to_a_step_reports_it_and_one_that_waits_in_it_does_not() -> None:
    silent = answer_of("-c", _ABSENT)
    assert (silent["event"], silent["rank"]) == ("silent", 1)
    assert silent["process"] == "has not begun the next step"
    assert silent["seconds"] == pytest.approx(10 * SIGN_S, rel=0.1)
