"""A Keras model goes through a run and comes out as one, and as a SavedModel that agrees with it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gputopo.launch.spec.run_spec import Lifecycle, Precision
from gputopo.values.run.events import Exported, Noticed
from tests.launch.forks import run_program
from tests.launch.train.worker_process import environment, run_worker, trivial_spec

pytestmark = pytest.mark.tensorflow

LOAD = """
import json, sys
import keras
import numpy as np
import tensorflow as tf
images = np.random.default_rng(3).normal(size=(5, 6, 5, 2)).astype("float32")
model = keras.models.load_model(sys.argv[1] + "/model.keras")
serve = tf.saved_model.load(sys.argv[1] + "/saved_model").signatures["serving_default"]
served = serve(images=tf.constant(images))
json.dump({
    "keras": model.predict(images, verbose=0).tolist(),
    "probabilities": served["probabilities"].numpy().tolist(),
    "mean": model.layers[1].moving_mean.numpy().tolist(),
    "kernel": model.layers[0].kernel.numpy().tolist(),
    "gputopo": any(name.split(".")[0] in ("gputopo", "tests") for name in sys.modules),
}, sys.stdout)
"""


def test_a_trained_keras_model_is_loaded_by_keras_and_by_tensorflow_without_gputopo(tmp_path: Path) -> None:
    export = tmp_path / "export"
    spec = trivial_spec(
        2,
        model="tests.launch.train.user_models:normed",
        batch_size=4,
        learning_rate=0.1,
        lifecycle=Lifecycle(export=str(export)),
    )
    code, events, stderr = run_worker(tmp_path, spec)
    assert code == 0, stderr[-2000:]
    (reported,) = (event for event in events if isinstance(event, Exported))
    assert reported.formats == ("saved_model", "npz", "keras")
    assert not any(isinstance(event, Noticed) for event in events)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(export)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["gputopo"] is False
    np.testing.assert_allclose(found["keras"], found["probabilities"], rtol=0, atol=1e-6)
    assert any(abs(value) > 1e-3 for value in found["mean"]), "the moving statistics were trained"
    with np.load(export / "weights.npz") as arrays:
        assert any(
            arrays[name].shape == np.shape(found["kernel"])
            and np.array_equal(arrays[name], np.array(found["kernel"], np.float32))
            for name in arrays.files
        )


def test_an_exported_keras_model_that_computes_in_a_short_type_is_reported(tmp_path: Path) -> None:
    spec = trivial_spec(
        1,
        model="tests.launch.train.user_models:normed",
        batch_size=4,
        precision=Precision(compute="bf16"),
        lifecycle=Lifecycle(export=str(tmp_path / "export")),
    )
    code, events, stderr = run_worker(tmp_path, spec)
    assert code == 0, stderr[-2000:]
    (reported,) = (event.says for event in events if isinstance(event, Noticed))
    assert reported.startswith("The exported model's layers compute in bfloat16, as they did in training")


FOLLOW = """
import json, sys
import tensorflow as tf
from gputopo.workload.workloads import architectures
from gputopo.launch.models.layers import TowerRows
from gputopo.launch.models.models import NetworkModel
from gputopo.launch.models.layers import Stream
found = {}
for name in json.loads(sys.argv[1]):
    model = NetworkModel.of(architectures()[name])
    with tf.Graph().as_default():
        given = [tf.compat.v1.placeholder(tf.float32, one.shape) for one in (*model.variables, *model.state)]
        images = tf.compat.v1.placeholder(tf.float32, (None, *model.input_shape))
        count = len(model.variables)
        rows = TowerRows(0, -1, Stream(0, 0))
        passed = model.forward(given[:count], given[count:], images, rows, "NHWC", training=False)
        found[name] = passed.logits.shape.as_list() == [None, model.classes]
json.dump(found, sys.stdout)
"""
# All kinds of layers are in them.
NETWORKS = ["alexnet", "googlenet", "resnet50_v2", "resnet20", "densenet40_k12"]


def test_networks_take_a_batch_of_any_size_as_an_export_needs() -> None:
    done = run_program("-c", FOLLOW, json.dumps(NETWORKS))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == dict.fromkeys(NETWORKS, True)
