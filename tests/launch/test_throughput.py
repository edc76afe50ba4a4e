"""Steps that the user's own script reports: measured always, written only where a run asks for it."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch import Steps
from tests.launch.forks import run_program

STEPS_FILE = "GPUTOPO_STEPS"
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
Reports = list[dict[str, Any]]


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a run's pipe for reports that the run reads."""
    os.mkfifo(tmp_path / "steps")
    monkeypatch.setenv(STEPS_FILE, str(tmp_path / "steps"))
    for name in LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    with open(os.open(tmp_path / "steps", os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as reading:
        yield reading.fileno()


@pytest.fixture
def reported(pipe: int) -> Callable[[], Reports]:
    """Return the function that reads what was reported since its last call."""
    return lambda: read_all(pipe)


def read_all(pipe: int) -> Reports:
    data = b""
    while part := os.read(pipe, 2**20):
        data += part
    return [json.loads(line) for line in data.splitlines()]


def test_without_a_run_it_measures_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEPS_FILE, raising=False)
    with Steps(examples=8) as steps:
        steps.done()
        assert (steps.examples_per_sec, str(steps)) == (None, "1 step, no speed yet")
        steps.done()
    assert steps.examples_per_sec is not None
    assert steps.examples_per_sec > 0
    assert str(steps).startswith("2 steps, ")


def test_a_run_gets_a_report_of_each_step_and_of_the_end(reported: Callable[[], Reports]) -> None:
    with Steps(examples=8) as steps:
        steps.done()
        steps.done(examples=3, busy_s=0.25)
    first, second, end = reported()
    assert first == {
        "report": "step",
        "pid": os.getpid(),
        "step": 1,
        "seconds": first["seconds"],
        "examples": 8,
    }
    assert (second["step"], second["examples"], second["busy_s"]) == (2, 3, 0.25)
    assert end == {"report": "ended", "pid": os.getpid()}


def test_the_device_is_the_one_that_the_launcher_of_the_process_names(
    reported: Callable[[], Reports], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "3")
    for device in (None, 1):
        with Steps(examples=8, device=device) as steps:
            steps.done()
    assert [one["device"] for one in reported() if one["report"] == "step"] == [3, 1]


@pytest.mark.parametrize("name", ["/dev/full", "/nowhere/steps"])
def test_a_report_that_cannot_be_written_never_hurts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS_FILE, name)
    with Steps(examples=8) as steps:
        steps.done()
        steps.done()
    assert steps.examples_per_sec is not None


def test_steps_whose_reports_could_not_be_written_are_in_the_next_report(
    reported: Callable[[], Reports], pipe: int
) -> None:
    with Steps(examples=8, unit="tokens") as steps:
        for _ in range(2000):  # more than a pipe holds
            steps.done()
        written = read_available(pipe)
        assert {(one.get("steps", 1), one["examples"], one["unit"]) for one in written} == {(1, 8, "tokens")}
        steps.begin()
        steps.done()
    last, _ = reported()
    assert (last["step"], last["steps"], last["examples"]) == (
        2001,
        2001 - len(written),
        8 * (2001 - len(written)),
    )
    assert last["after_begin"]
    assert "after_begin" not in written[-1]
    assert "tokens/sec" in str(steps)
    taken_s = sum(one["seconds"] for one in [*written[1:], last])
    assert taken_s == pytest.approx(2000 * 8 / (steps.examples_per_sec or 0))


def read_available(pipe: int) -> Reports:
    """Read what is in the pipe of a process that still writes."""
    return [json.loads(line) for line in os.read(pipe, 2**20).splitlines()]


def test_a_run_that_reads_no_more_neither_stops_nor_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "steps")
    monkeypatch.setenv(STEPS_FILE, str(tmp_path / "steps"))
    pipe = os.open(tmp_path / "steps", os.O_RDONLY | os.O_NONBLOCK)
    with Steps(examples=8) as steps:
        for _ in range(2000):  # more than a pipe holds
            steps.done()
        assert len(read_available(pipe)) < 2000
        os.close(pipe)
        steps.done()
        steps.done()


FITS = """
import os, sys
os.environ["GPUTOPO_STEPS"] = sys.argv[1]
import numpy as np, keras
from gputopo.launch import keras_steps
x, y = np.zeros((32, 4)), np.zeros((32, 1))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=2)
callback = keras_steps(examples=8)
model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y), callbacks=[callback])
print(callback.steps)
"""


SHARES = """
import os, tensorflow as tf
from gputopo.launch.throughput import examples_of_worker

class Worker(tf.distribute.MultiWorkerMirroredStrategy):
    def __init__(self, jobs, kind, index):
        resolvers = tf.distribute.cluster_resolver
        cluster = tf.train.ClusterSpec(jobs)
        self.resolver = resolvers.SimpleClusterResolver(cluster, task_type=kind, task_id=index)

    @property
    def cluster_resolver(self):
        return self.resolver

jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
tasks = (("chief", 0), ("worker", 0), ("worker", 1))
print([examples_of_worker(64, Worker(jobs, kind, index)) for kind, index in tasks])
print(examples_of_worker(64, Worker({}, "", 0)), examples_of_worker(64, tf.distribute.get_strategy()))
"""


@pytest.mark.tensorflow
def test_the_workers_of_a_strategy_report_parts_of_the_batch_that_add_up() -> None:
    done = run_program("-c", SHARES)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[21, 21, 22]\n64 64\n"


@pytest.mark.tensorflow
def test_the_callback_of_keras_reports_each_step_of_fit(reported: Callable[[], Reports]) -> None:
    done = run_program("-c", FITS, os.environ[STEPS_FILE])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 steps, ")
    found = [one["examples"] if one["report"] == "step" else None for one in reported()]
    assert found == [16, 16, 16, 16, None]
