"""Shapes, sizes and random numbers, asked of TensorFlow in its own process."""

import pytest

from gputopo.workload import require_workload, workload_names
from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import numpy as np
import tensorflow as tf
from gputopo.workload import known_architectures, workload_names
from gputopo.launch.models import NetworkModel, Stream, TowerRows, build_model, parameter_count
from gputopo.launch.models.layers import cut_normal, normal, uniform
from gputopo.launch.train.inputs import examples
from tests.launch.train.process import tiny  # it has all kinds of layers but a shortcut

models = {name: build_model(name) for name in workload_names()}
answer = {"parameters": {name: parameter_count(model) for name, model in models.items()}}
answer["shapes"] = {name: model.input_shape for name, model in models.items()}
stream = Stream(7, 3)
for name, draw in (("uniform", uniform), ("normal", normal)):
    whole = draw(stream, (8, 3, 5)).numpy()
    cut = np.concatenate([draw(stream, (3, 3, 5)).numpy(), draw(stream, (5, 3, 5), first_row=3).numpy()])
    answer[name] = bool((whole == cut).all())
many = normal(Stream(1, 1), (400, 100)).numpy()
answer["moments"] = [float(many.mean()), float(many.std())]
answer["seeds differ"] = bool((uniform(Stream(7, 3), (2, 4)) != uniform(Stream(8, 3), (2, 4))).numpy().all())
answer["steps differ"] = bool(
    (uniform(Stream(7, 3), (2, 4)) != uniform(Stream(7, 3, 1), (2, 4))).numpy().all())
cut = np.clip(many, -2.0, 2.0) * np.float32(0.3)
answer["first values"] = bool((cut_normal(Stream(1, 1), (400, 100), 0.3).numpy() == cut).all())
odd = np.clip(normal(Stream(1, 1), (9, 1, 7)).numpy(), -2.0, 2.0)
answer["odd rows"] = bool((cut_normal(Stream(1, 1), (9, 1, 7), 1.0).numpy() == odd).all())
model = models["trivial"]
nhwc = examples(model, TowerRows(0, 2, stream), seed=1, data_format="NHWC")[0].numpy()
nchw = examples(model, TowerRows(0, 2, stream), seed=1, data_format="NCHW")[0].numpy()
answer["formats"] = bool((nhwc.transpose(0, 3, 1, 2) == nchw).all())
def takes_any(model):
    with tf.Graph().as_default():
        given = [tf.compat.v1.placeholder(tf.float32, one.shape) for one in (*model.variables, *model.state)]
        images = tf.compat.v1.placeholder(tf.float32, (None, *model.input_shape))
        count, rows = len(model.variables), TowerRows(0, -1, Stream(0, 0))
        passed = model.forward(given[:count], given[count:], images, rows, "NHWC", training=False)
        return passed.logits.shape.as_list() == [None, model.classes]
answer["takes any"] = [takes_any(tiny()), takes_any(NetworkModel.of(known_architectures()["resnet20"]))]
json.dump(answer, sys.stdout)
"""


@pytest.fixture(scope="module")
def answer() -> dict[str, object]:
    found: dict[str, object] = answer_of("-c", ASK)
    return found


def test_models_have_exactly_the_listed_parameters_and_shapes(answer: dict[str, object]) -> None:
    listed = {name: require_workload(name).parameters for name in workload_names()}
    assert answer["parameters"] == listed
    assert listed["alexnet"] == 61_842_345
    assert answer["shapes"] == {name: list(require_workload(name).input_shape) for name in workload_names()}


def test_rows_are_the_same_however_the_batch_is_cut(answer: dict[str, object]) -> None:
    assert answer["uniform"] is answer["normal"] is True


def test_normal_numbers_have_mean_0_and_deviation_1(answer: dict[str, object]) -> None:
    # 40,000 numbers: the standard errors are 0.005 and 0.0035.
    assert answer["moments"] == pytest.approx([0.0, 1.0], abs=0.025)


def test_first_values_are_the_normal_numbers_cut_at_two_deviations(answer: dict[str, object]) -> None:
    assert answer["first values"] is True
    assert answer["odd rows"] is True


def test_other_seeds_and_other_steps_give_other_numbers(answer: dict[str, object]) -> None:
    assert answer["seeds differ"] is True
    assert answer["steps differ"] is True


def test_both_data_formats_hold_the_same_images(answer: dict[str, object]) -> None:
    assert answer["formats"] is True


def test_networks_take_a_batch_of_any_size_as_an_export_needs(answer: dict[str, object]) -> None:
    assert answer["takes any"] == [True, True]
