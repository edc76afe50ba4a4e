"""The scalars of a step, read back by TensorFlow: what each tower has of its own, and what they share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.train.worker_process import environment

pytestmark = pytest.mark.tensorflow

# One step behind the one that compiles, for two towers: images/sec 4 / (0.1 + 0.3 s) each.
WRITE_AND_READ = """
import json, sys
from pathlib import Path
import msgspec, numpy as np, tensorflow as tf
from tensorflow.core.util.event_pb2 import Event
from gputopo.values.events import Step, TowerMarks
from gputopo.launch.train.lifecycle.tensorboard import Scalars
from gputopo.launch.train.loop import LossWatch
from gputopo.launch.train.step import StepOutcome
from gputopo.launch.spec.run_spec import Lifecycle
from tests.launch.specs import cpu_spec
folder, losses, examples = Path(sys.argv[1]), *(np.array(json.loads(one)) for one in sys.argv[2:])
examples = examples if examples.shape else None
marks = tuple(TowerMarks(tower=tower, start_s=0.0, weights_s=0.1, compute_s=0.3) for tower in range(2))
told = Step(time_s=0.0, step=1, seconds=0.5, images=8, loss=1.0, marks=marks, global_step=2)
lost = []
scalars = Scalars(cpu_spec(lifecycle=Lifecycle(tensorboard=str(folder))))
watch = LossWatch(lost.append)
for _ in range(2):
    for observer in (scalars, watch):
        observer.after(told, StepOutcome(losses, np.zeros((2, 3)), examples=examples))
scalars.close()
found = {}
for file in folder.glob("*/events*"):
    points = found.setdefault(file.parent.name, {})
    for record in tf.data.TFRecordDataset(str(file)):
        for value in Event.FromString(record.numpy()).summary.value:
            points[value.tag] = round(float(tf.make_ndarray(value.tensor)), 4)
json.dump({"scalars": found, "lost": [event.towers for event in lost]}, sys.stdout)
"""


def written(folder: Path, losses: list[float], examples: list[int] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", WRITE_AND_READ, str(folder), json.dumps(losses), json.dumps(examples)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_tower_has_its_pace_and_its_loss(tmp_path: Path) -> None:
    assert written(tmp_path, [1.0, 3.0])["scalars"] == {
        "all": {"images_per_sec": 16.0, "loss": 2.0, "learning_rate": 0.005},
        "tower_0": {"images_per_sec": 10.0, "loss": 1.0},
        "tower_1": {"images_per_sec": 10.0, "loss": 3.0},
    }


def test_a_tower_without_an_example_in_the_last_batch_has_no_loss_and_no_say(tmp_path: Path) -> None:
    scalars = written(tmp_path, [3.0, 0.0], [2, 0])["scalars"]
    assert scalars["all"]["loss"] == 3.0
    assert scalars["tower_0"]["loss"] == 3.0
    assert "loss" not in scalars["tower_1"]


def test_towers_with_one_loss_together_have_none_of_their_own(tmp_path: Path) -> None:
    assert written(tmp_path, [2.0])["scalars"] == {
        "all": {"images_per_sec": 16.0, "loss": 2.0, "learning_rate": 0.005},
        "tower_0": {"images_per_sec": 10.0},
        "tower_1": {"images_per_sec": 10.0},
    }


@pytest.mark.parametrize(
    ("losses", "towers"), [([1.0, 2.0], []), ([1.0, float("nan")], [[1]]), ([float("nan")], [[0, 1]])]
)
def test_a_loss_that_is_no_number_is_of_its_tower_or_of_all(
    tmp_path: Path, losses: list[float], towers: list[list[int]]
) -> None:
    assert written(tmp_path, losses)["lost"] == towers
