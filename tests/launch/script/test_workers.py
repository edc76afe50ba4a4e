"""The strategy of a script that is one of several workers; in training: tests/cli/run."""

import pytest

from gputopo.launch.hosts import starters
from gputopo.launch.script.strategy import planned, strategy
from gputopo.launch.script.workers import lines_of_workers, made_with_workers
from gputopo.values.errors import UsageError
from gputopo.values.machine import Driver, Machine
from tests.launch.forks import run_program
from tests.launch.hosts.environs import ray_train
from tests.launch.specs import machine

NOTHING = Machine(source="live", driver=Driver(status="no_device"))


def workers() -> starters.Claim:
    found = starters.tf_config(ray_train())
    assert found is not None
    return found


def test_what_was_chosen_is_said_with_the_worker_its_devices_and_why() -> None:
    chosen, why = lines_of_workers(planned(machine(), {}, num_gpus=2), workers())
    assert chosen == (
        f"gputopo: MultiWorkerMirroredStrategy with NCCL, worker {workers().rank} of 2 on GPUs 2, 3."
    )
    assert why.startswith("gputopo: why: TF_CONFIG has 2 workers; ")
    chosen, why = lines_of_workers(planned(NOTHING, {}), workers())
    assert "with a ring over gRPC" in chosen
    assert chosen.endswith("on one CPU device (No NVIDIA device).")
    assert why == "gputopo: why: TF_CONFIG has 2 workers."


def test_several_cpu_devices_of_a_worker_are_refused_and_not_made_one() -> None:
    with pytest.raises(UsageError, match="num_gpus=2 of several workers needs GPUs: No NVIDIA device"):
        made_with_workers(planned(NOTHING, {}, num_gpus=2), workers(), None, asked=2)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 5}}',
            "its cluster lacks",
        ),
        ('{"cluster": {"worker": ["a:2222"], "ps": ["b:2222"]}, "task": {"type": "worker"}}', "has ps tasks"),
        ("{", "is no JSON"),
    ],
)
def test_a_cluster_that_is_not_understood_never_becomes_a_strategy_of_one_host(
    monkeypatch: pytest.MonkeyPatch, config: str, what: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(UsageError, match=what):
        strategy()


LATE = """
import os, tensorflow as tf
import gputopo.launch
from gputopo.launch.script import strategy as door
from gputopo.values.machine import Driver, Machine
door._machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
tf.constant(1.0)
os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}}'
try:
    gputopo.launch.strategy()
except door.UsageError as error:
    print(error.what, "|", error.hint)
"""


@pytest.mark.tensorflow
def test_workers_are_not_joined_where_tensorflow_has_made_its_devices() -> None:
    done = run_program("-c", LATE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TensorFlow has made its devices already | call gputopo.launch.strategy")
