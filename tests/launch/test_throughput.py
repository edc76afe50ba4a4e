"""Steps that the user's own script reports: measured always, written only where a run asks for it."""

import os
from collections.abc import Callable, Iterator

import pytest

from gputopo.launch.throughput import (
    LOCAL_RANKS,
    STEPS_FILE,
    Report,
    StepDone,
    Steps,
    StepsEnded,
)
from gputopo.launch.user_program.steps import StepPipe
from tests.launch.forks import run_program

Reported = Callable[[], list[Report]]


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reported]:
    """Return the function that reads what was reported through the pipe of a run."""
    pipe = StepPipe()
    monkeypatch.setenv(STEPS_FILE, str(pipe.name))
    for name in LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    yield lambda: list(pipe.take())
    pipe.close()
    assert not pipe.name.parent.exists()


def test_without_a_run_it_measures_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEPS_FILE, raising=False)
    with Steps(examples=8) as steps:
        steps.done()
        assert (steps.examples_per_sec, str(steps)) == (None, "1 step, no speed yet")
        steps.done()
    assert steps.examples_per_sec is not None
    assert steps.examples_per_sec > 0
    assert str(steps).startswith("2 steps, ")


def test_a_run_gets_a_report_of_each_step_and_of_the_end(reported: Reported) -> None:
    with Steps(examples=8) as steps:
        steps.done()
        steps.done(examples=3, busy_s=0.25)
    first, second, end = reported()
    assert isinstance(first, StepDone)
    assert isinstance(second, StepDone)
    assert [(one.step, one.examples, one.busy_s) for one in (first, second)] == [(1, 8, None), (2, 3, 0.25)]
    assert end == StepsEnded(pid=os.getpid())


@pytest.mark.parametrize("name", LOCAL_RANKS)
def test_the_device_is_the_one_that_the_launcher_of_the_process_names(
    name: str, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")
    for device in (None, 1):
        with Steps(examples=8, device=device) as steps:
            steps.done()
    assert [one.device for one in reported() if isinstance(one, StepDone)] == [3, 1]


@pytest.mark.parametrize("name", ["/dev/full", "/nowhere/steps"])
def test_a_report_that_cannot_be_written_never_hurts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS_FILE, name)
    with Steps(examples=8) as steps:
        steps.done()
        steps.done()
    assert steps.examples_per_sec is not None


def test_steps_whose_reports_could_not_be_written_are_in_the_next_report(reported: Reported) -> None:
    with Steps(examples=8, unit="tokens") as steps:
        for _ in range(2000):  # more than a pipe holds
            steps.done()
        written = [one for one in reported() if isinstance(one, StepDone)]
        assert {(one.steps, one.examples, one.unit) for one in written} == {(1, 8, "tokens")}
        steps.begin()
        steps.done()
    (last,) = (one for one in reported() if isinstance(one, StepDone))
    assert (last.step, last.steps, last.examples) == (2001, 2001 - len(written), 8 * (2001 - len(written)))
    assert (last.after_begin, written[-1].after_begin) == (True, False)
    assert "tokens/sec" in str(steps)
    taken_s = sum(one.seconds for one in [*written[1:], last])
    assert taken_s == pytest.approx(2000 * 8 / (steps.examples_per_sec or 0))


def test_a_run_that_reads_no_more_neither_stops_nor_ends_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = StepPipe()
    monkeypatch.setenv(STEPS_FILE, str(pipe.name))
    with Steps(examples=8) as steps:
        for _ in range(2000):  # more than a pipe holds
            steps.done()
        assert len(list(pipe.take())) < 2000
        pipe.close()
        steps.done()
        steps.done()


FITS = """
import os, sys
os.environ["GPUTOPO_STEPS"] = sys.argv[1]
import numpy as np, keras
from gputopo.launch.throughput import keras_steps
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=int(sys.argv[2]))
x, y = np.zeros((32, 4)), np.zeros((32, 1))
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
def test_the_callback_of_keras_reports_each_step_of_fit(reported: Reported) -> None:
    for at_once, steps in ((1, 8), (2, 4)):
        done = run_program("-c", FITS, os.environ[STEPS_FILE], str(at_once))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{steps} steps, ")
        *found, end = reported()
        assert isinstance(end, StepsEnded)
        assert [one.examples for one in found if isinstance(one, StepDone)] == [8 * at_once] * steps
