"""TensorFlow without Keras, each time in a fresh interpreter (a fork has what its server has)."""

import json
import subprocess
import sys

import pytest

from tests.launch.train.worker_process import environment

pytestmark = pytest.mark.tensorflow

LOAD = """
import json, sys
from gputopo.launch import lean_tensorflow
tf = lean_tensorflow.load()
answer = ["keras" in sys.modules, float(tf.reduce_sum(tf.ones((3,))))]
"""
BY_TENSORFLOW = LOAD + "answer.append(tf.keras.layers.Dense(3)(tf.ones((2, 5))).shape.as_list())"
BY_THE_PROGRAM = (
    LOAD + "import keras; answer.append(keras.ops.convert_to_numpy(keras.ops.ones((2, 3))).shape)"
)
AGAIN = LOAD + "answer.append(lean_tensorflow.load() is tf)"
BEFORE = "import keras\n" + LOAD + "answer.append(sys.modules['keras'] is keras)"


def answer_of(program: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", program + "\njson.dump(answer, sys.stdout)"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("program", [BY_TENSORFLOW, BY_THE_PROGRAM])
def test_keras_is_loaded_only_when_it_is_asked_for_and_works_then(program: str) -> None:
    assert answer_of(program) == [False, 3.0, [2, 3]]


def test_what_is_loaded_stays() -> None:
    assert answer_of(AGAIN) == [False, 3.0, True]
    assert answer_of(BEFORE) == [True, 3.0, True]
