"""The scalars of a step, read back by TensorFlow: those of each tower, and those of all."""

import json
from typing import Any

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

# One step behind the one that compiles, for two towers: images/sec 4 / (0.1 + 0.3 s) each.
WRITE_AND_READ = """
import json, sys
from pathlib import Path
import numpy as np, tensorflow as tf
from tensorflow.core.util.event_pb2 import Event
from gputopo.values.run.events import Step, TowerMarks
from gputopo.launch.train.lifecycle.tensorboard import Scalars
from gputopo.launch.train.stepper import StepOutcome
from gputopo.values.run.spec import Lifecycle
from tests.launch.specs import cpu_spec
from gputopo.launch.supervise.sample_scalars import SampleScalars
from tests.launch.supervise.test_alarm import run
marks = tuple(TowerMarks(tower=tower, start_s=0.0, weights_s=0.1, compute_s=0.3) for tower in range(2))
step = Step(time_s=0.0, step=1, seconds=0.5, images=8, loss=1.0, marks=marks, global_step=2)
found = {}
for name, (losses, examples) in json.loads(sys.argv[2]).items():
    folder = Path(sys.argv[1]) / name
    scalars = Scalars(cpu_spec(lifecycle=Lifecycle(tensorboard=str(folder))))
    counts = None if examples is None else np.array(examples)
    for _ in range(2):
        scalars.after(step, StepOutcome(np.array(losses), np.zeros((2, 3)), examples=counts))
    scalars.close()
    for file in folder.glob("*/events*"):
        points = found.setdefault(name, {}).setdefault(file.parent.name, {})
        for record in tf.data.TFRecordDataset(str(file)):
            for value in Event.FromString(record.numpy()).summary.value:
                points[value.tag] = round(float(tf.make_ndarray(value.tensor)), 4)
board = Path(sys.argv[1]) / "gpus"
samples = SampleScalars(print)
for event in run(board, 7):
    samples.event(event)
samples.close()
for file in board.glob("*/events*"):
    first, *rest = [Event.FromString(one.numpy()) for one in tf.data.TFRecordDataset(str(file))]
    assert first.file_version == "brain.Event:2"
    found[file.parent.name] = [
        [event.wall_time, event.step, {one.tag: round(one.simple_value, 2) for one in event.summary.value}]
        for event in rest
    ]
json.dump(found, sys.stdout)
"""
# Losses and examples of the towers.
CASES: dict[str, tuple[list[float], list[int] | None]] = {
    "two": ([1.0, 3.0], None),
    "few": ([3.0, 0.0], [2, 0]),
    "joint": ([2.0], None),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = answer_of(
        "-c", WRITE_AND_READ, str(tmp_path_factory.mktemp("board")), json.dumps(CASES)
    )
    return found


def test_every_tower_has_its_pace_and_its_loss(written: dict[str, Any]) -> None:
    assert written["two"] == {
        "all": {"images_per_sec": 16.0, "loss": 2.0, "learning_rate": 0.005},
        "tower_0": {"images_per_sec": 10.0, "loss": 1.0},
        "tower_1": {"images_per_sec": 10.0, "loss": 3.0},
    }


def test_a_tower_without_an_example_in_the_last_batch_has_no_loss_and_no_weight(
    written: dict[str, Any],
) -> None:
    scalars = written["few"]
    assert scalars["all"]["loss"] == 3.0
    assert scalars["tower_0"]["loss"] == 3.0
    assert "loss" not in scalars["tower_1"]


def test_towers_with_one_joint_loss_have_none_of_their_own(written: dict[str, Any]) -> None:
    assert written["joint"] == {
        "all": {"images_per_sec": 16.0, "loss": 2.0, "learning_rate": 0.005},
        "tower_0": {"images_per_sec": 10.0},
        "tower_1": {"images_per_sec": 10.0},
    }


def test_what_the_gpus_reported_is_read_as_scalars(written: dict[str, Any]) -> None:
    first, (time_s, step, points) = written["gpu_1"]
    assert (time_s, step) == (5.0, 1005)  # one point every 5 s
    assert points == {
        "gpu/core_clock_mhz": 1505.0,
        "gpu/power_w": 100.5,
        "gpu/temperature_c": 71.0,
        "images_per_sec": 20.0,
    }
    assert first[2]["gpu/core_clock_mhz"] == 1500.0
    assert written["gpu_0"][0][2]["images_per_sec"] == 40.0
