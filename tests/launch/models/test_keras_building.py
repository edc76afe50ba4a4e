"""Models of keras.applications and of users: built in processes of their own, trained in every mode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.forks import answer_of
from tests.launch.train.trained import USER, trained

pytestmark = pytest.mark.tensorflow

TOLERANCE = 2e-6
REPLICATED = {"variable_update": "replicated", "all_reduce": "copy"}
GOOD = {
    "normed": "softmax cross-entropy; the model's last activation is softmax",
    "dropping": "softmax cross-entropy",
    "yes_or_no": "binary_crossentropy, as the model was compiled",
    "squares": "MeanSquaredError, as the model was compiled",
    "transducer": "softmax cross-entropy",
    "many_labels": "sigmoid cross-entropy of every class",
    "by_class": "softmax cross-entropy; the model's last activation is softmax",
    "stateful": "softmax cross-entropy",
    "fits": "SparseCategoricalCrossentropy, as the model was compiled, on class numbers",
    "READY": "softmax cross-entropy; the last layer returns logits",
    "batch_of_three": "softmax cross-entropy",  # in batches of 4: Keras takes them
}
BAD = {
    "raises": ("failed: KeyError: 'weights.h5'", "python -c"),
    "hidden": ("reads variables that Keras does not list: Variable", "add_weight"),
    "constrained": ("has constraints on weights (", "--strategy kuza55"),
    "joined": ("has norms over the batches of all devices (batch_normalization", "--strategy mirrored"),
    "wide": ("stores weights as float64 (", "--precision"),
    "named_outputs": ("has 1 outputs", "one input and one output"),
    "gives_a_number": ("returns an object of type builtins.int, not a keras.Model", "returns one"),
    "two_inputs": ("has 2 inputs", "one input and one output"),
    "any_size": ("no fixed input shape: (?, ?, ?, 3)", "keras.Input("),
    "words": ("takes int32 of shape (?, 4)", "float32"),
    "pictures": ("outputs (?, 4, 4, 2), not one row of classes", "Flatten"),
    "nothing_to_train": ("nothing to train", "trainable"),
    "breaks": (
        "forward pass: RuntimeError: Exception encountered when calling Breaks.call(). a layer of the user's "
        "(tests/launch/train/user_models.py, line ",
        "test it on a batch",
    ),
    "plan": ("has no 'plan'", "did you mean tests.launch.train.user_models:plain?"),
}


def cases(folder: Path) -> dict[str, dict[str, Any]]:
    one = {"ps_device": "/CPU:0", "devices": [{"tower": 0, "device": "/CPU:0"}]}
    made: dict[str, dict[str, Any]] = {
        name: {"model": f"{USER}:{name}", **one, "steps": 2} for name in (*GOOD, *BAD, "short_layers")
    }
    made["normed"] = {"model": f"{USER}:normed", "ps_device": "/CPU:0"}
    del made["joined"]["devices"]  # it is on two
    made["replicated"] = {"model": f"{USER}:normed", **REPLICATED, "data_format": "NCHW"}
    made["short_layers bf16"] = {**made["short_layers"], "precision": {"compute": "bf16"}}
    together = {"small_bytes": 2**20, "small_group": 16}
    made["without shapes"] = {"model": f"{USER}:without_shapes", **REPLICATED, "exchange": together}
    made["no module"] = {**one, "model": "tests.launch.train.nowhere:build"}
    made["needy"] = {**one, "model": "tests.launch.train.user_models_needy:build"}
    made["no application"] = {**one, "model": "keras:ResNet5"}
    made["another seed"] = {**made["by_class"], "seed": 7}
    made["exported"] = {
        **one,
        "model": f"{USER}:needs_batch",
        "lifecycle": {"export": str(folder / "export")},
    }
    return made


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("keras")
    return trained(folder, 2, cases(folder))


def test_a_users_model_trains_and_its_loss_is_reported(found: dict[str, Any]) -> None:
    for name in GOOD:
        reported = found[name]
        assert GOOD[name] in reported["says"][0]
        assert np.isfinite(reported["losses"]).all()
        assert len(set(reported["losses"])) == len(reported["losses"])


def test_a_mistake_is_reported_in_one_line_with_what_to_do(found: dict[str, Any]) -> None:
    for name in BAD:
        what, hint = BAD[name]
        reported = found[name]
        assert what in reported["error"]
        assert hint in reported["hint"]
        assert reported["exit"] == 2
        assert "\n" not in reported["error"] + reported["hint"]


def test_what_cannot_be_found_or_exported_is_reported_by_its_name(found: dict[str, Any]) -> None:
    cases: list[tuple[str, str, str]] = [
        ("no module", "there is no module tests.launch.train.nowhere", "PYTHONPATH"),
        ("needy", "ModuleNotFoundError: No module named 'nothing_of_that_name'", "python -c"),
        ("no application", "no model 'ResNet5'", "keras:ResNet50"),
        (
            "exported",
            "does not take a batch of any size, as --export needs it to: ValueError: ",
            "keras.ops.shape",
        ),
    ]
    for case, what, hint in cases:
        assert what in found[case]["error"]
        assert hint in found[case]["hint"]


def test_gradients_whose_shape_tensorflow_does_not_know_have_that_of_their_variables(
    found: dict[str, Any],
) -> None:
    losses = found["without shapes"]["losses"]
    assert np.isfinite(losses).all()
    assert len(set(losses)) == len(losses)


def test_every_synchronous_mode_and_layout_trains_alike(found: dict[str, Any]) -> None:
    server, copies = found["normed"], found["replicated"]
    assert copies["losses"] == pytest.approx(server["losses"], rel=TOLERANCE)
    assert any("compute in NHWC" in says for says in copies["says"])
    assert server["losses"][-1] < server["losses"][0] - 0.1
    for name in ("s0", "s1", "w0_0", "w0_4"):
        np.testing.assert_allclose(copies["arrays"][name], server["arrays"][name], rtol=0, atol=1e-5)
    assert abs(server["arrays"]["s0"]).max() > 1e-3, "moving statistics move"


def test_first_values_follow_the_seed(found: dict[str, Any]) -> None:
    assert found["another seed"]["losses"][0] != pytest.approx(found["by_class"]["losses"][0], rel=1e-3)


def test_layers_with_their_own_type_are_reported(found: dict[str, Any], answer: dict[str, Any]) -> None:
    reported = answer["said"]["long_layers"]
    said = "compute in float32, as they were defined, regardless of --precision (bf16 here)"
    assert sum(said in says for says in reported) == 1
    for own in (found["short_layers bf16"]["says"], answer["said"]["long_last_layer"]):
        assert not any("as they were defined" in says for says in own)


def test_layers_of_a_short_type_train_alike_under_any_precision(found: dict[str, Any]) -> None:
    one, other = found["short_layers"]["losses"], found["short_layers bf16"]["losses"]
    assert one == pytest.approx(other, rel=TOLERANCE)


def test_a_models_regularisers_count_as_in_keras(found: dict[str, Any], answer: dict[str, Any]) -> None:
    assert any("regularisers, add_loss: 1" in says for says in found["squares"]["says"])
    assert any("regularisers, add_loss: 3" in says for says in found["stateful"]["says"])
    first, of_keras, without = answer["regularised"]
    assert first == pytest.approx(of_keras, rel=TOLERANCE)
    assert first > without + 1e-3


def test_what_is_left_out_is_reported(found: dict[str, Any]) -> None:
    assert any("(CTC) does not accept classes" in says for says in found["transducer"]["says"])
    assert any("devices drop different units" in says for says in found["dropping"]["says"])
    assert any("compiled optimizer, metrics and custom train_step" in says for says in found["fits"]["says"])


def test_random_layers_are_reported_to_draw_other_numbers_under_xla(
    found: dict[str, Any], answer: dict[str, Any]
) -> None:
    reported = "use other random numbers with --xla"
    assert any(reported in says for says in answer["said"]["dropping"])
    assert not any(reported in says for says in found["dropping"]["says"])


ASK = """
import json, sys
import keras
import numpy as np
import tensorflow as tf
from gputopo.launch.models import Stream
from gputopo.launch.models import TowerRows
from gputopo.launch.models import build_model
from gputopo.launch.models import parameter_count
from gputopo.launch.models.keras_building import seeds
from gputopo.launch.spec import read_model_name
from gputopo.launch.models.keras_outputs import Head

answer = {}
from gputopo.values.run.events import Device
from gputopo.values.run.spec import Precision, RunSpec
from tests.launch.specs import cpu_spec
shorter, xla = Precision(compute="bf16"), Precision(xla=True)
answer["said"] = {}
for name, precision in (("long_layers", shorter), ("long_last_layer", shorter), ("dropping", xla)):
    own = cpu_spec(model="tests.launch.train.user_models:" + name, precision=precision)
    answer["said"][name] = build_model(own.model, own).says
one = RunSpec(model="keras:convnexttiny", backend="gpu", batch_size=1, data_format="NCHW",
    devices=(Device(tower=0, device="/GPU:0"),))
built = build_model(one.model, one)
answer["counted"] = [parameter_count(built), built.input_shape, built.classes]
answer["turned"] = [built.layout, built.says[-1], keras.config.image_data_format()]
rows = [TowerRows(first, 4, Stream(1, 4, step)) for first in (0, 4) for step in (0, 1)]
drawn = [next(seeds(one)).numpy().tolist() for one in rows]
more = seeds(rows[0])
drawn += [next(more).numpy().tolist() for _ in range(3)][1:]
answer["seeds"] = drawn
logits = tf.constant([[2.0, -1.0, 0.5], [-3.0, 4.0, 60.0]])
labels = tf.constant([0, 2], tf.int64)
exact = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
head = Head(3, "softmax")
answer["from probabilities"] = [exact.numpy().tolist(),
    head.losses(head.logits(tf.nn.softmax(logits)), labels).numpy().tolist()]
graph = tf.function(lambda x: head.logits(tf.nn.softmax(x)), autograph=False)
answer["from the graph"] = bool((graph(logits) == logits).numpy().all())

from gputopo.launch.train import stepper_of
from gputopo.launch.train.inputs import examples
one = RunSpec(model="tests.launch.train.user_models:squares", backend="cpu", ps_device="/CPU:0", batch_size=6,
    devices=(Device(tower=0, device="/CPU:0"),))
model = build_model(one.model, one)
first = float(stepper_of(model, one)(0).losses[0])
images, labels = examples(model, TowerRows(0, 6, Stream(one.seed, 0)), seed=one.seed, data_format="NHWC")
images, wanted = model.own_layout(images, "NHWC"), tf.one_hot(labels, 3)
answer["regularised"] = [first, float(model.keras.test_on_batch(images, wanted)),
    float(tf.reduce_mean((model.keras(images) - wanted) ** 2))]
json.dump(answer, sys.stdout)
"""


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    found: dict[str, Any] = answer_of("-c", ASK)
    return found


def test_an_application_has_the_published_parameter_count_under_its_name_in_any_case(
    answer: dict[str, Any],
) -> None:
    assert answer["counted"] == [28_589_128, [224, 224, 3], 1000]


def test_an_application_that_knows_channels_last_alone_is_built_so(answer: dict[str, Any]) -> None:
    # NCHW is the default on GPUs, so nobody may have asked for it.
    assert answer["turned"] == [
        "NHWC",
        "The model's own layers compute in NHWC: NCHW is transposed for it.",
        "channels_last",
    ]


def test_seeds_of_random_layers_differ_by_tower_step_and_layer(answer: dict[str, Any]) -> None:
    drawn = [tuple(seed) for seed in answer["seeds"]]
    assert len(set(drawn)) == len(drawn) == 6


def test_probabilities_give_the_loss_of_their_logits(answer: dict[str, Any]) -> None:
    exact, found = answer["from probabilities"]
    assert found == pytest.approx(exact, rel=1e-5, abs=1e-6)
    assert answer["from the graph"] is True
