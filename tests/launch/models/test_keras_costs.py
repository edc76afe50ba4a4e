"""Costs of Keras models, counted in their graphs, against counts by hand."""

from typing import Any

import pytest

from gputopo.workload import Workload
from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import keras
import tensorflow as tf
from keras import layers
from gputopo.launch.models import KerasModel
from gputopo.launch.models import count_costs
import msgspec

class Shared(keras.Model):
    def __init__(self):
        super().__init__()
        self.again, self.last = layers.Dense(8), layers.Dense(3)
        self.unused = self.add_weight(shape=(5, 7), name="unused")
    def call(self, x):
        return self.last(self.again(self.again(x)))

class Traced(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.last = layers.Dense(8), layers.Dense(3)
        self.graph = tf.function(self.inner.__call__, autograph=False)
    def call(self, x):
        return self.last(self.graph(x))

def shared(kind):
    model = kind()
    model.build((None, 8))
    return model

def attention():
    x = keras.Input((10, 6))
    y = layers.MultiHeadAttention(2, 3)(x, x)
    return keras.Model(x, layers.Dense(4)(layers.Flatten()(layers.add([x, y]))))

def convolutions():
    return keras.Sequential([
        keras.Input((9, 9, 4)),
        layers.Conv2D(8, 3, groups=2, activation="relu"),
        layers.BatchNormalization(),
        layers.DepthwiseConv2D(3, depth_multiplier=2),
        layers.Conv2DTranspose(5, 2, strides=2, padding="same"),
        layers.MaxPooling2D(2),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
    ])

def recurrent():
    return keras.Sequential([keras.Input((12, 4)), layers.LSTM(5), layers.Dense(2)])

def branches():
    x = keras.Input((4, 4, 3))
    y = layers.concatenate([layers.Conv2D(5, 1)(x), layers.AveragePooling2D(2, 1, "same")(x)])
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(y)))

answer = {}
for name, model in (("shared", shared(Shared)), ("traced", shared(Traced)), ("attention", attention()),
                    ("branches", branches()), ("convolutions", convolutions()), ("recurrent", recurrent())):
    answer[name] = count_costs(KerasModel(model, name=name), name)
sys.stdout.write(msgspec.json.encode(answer).decode())
"""


@pytest.fixture(scope="module")
def costs() -> dict[str, Workload]:
    found: dict[str, Any] = answer_of("-c", ASK)
    import msgspec

    return msgspec.convert(found, dict[str, Workload])


def test_every_variable_is_in_one_block(costs: dict[str, Workload]) -> None:
    for one in costs.values():
        assert sum(block.parameters for block in one.blocks) == one.parameters, one.name


def test_a_layer_that_is_used_twice_has_its_variables_once_and_its_products_twice(
    costs: dict[str, Workload],
) -> None:
    one = costs["shared"]
    assert one.multiply_accumulates == 2 * 8 * 8 + 8 * 3
    assert [block.variables for block in one.blocks] == [(35, 64, 8), (24, 3)]  # nothing uses the first 35


def test_functions_that_the_model_calls_are_followed(costs: dict[str, Workload]) -> None:
    assert costs["traced"].multiply_accumulates == 8 * 8 + 8 * 3
    assert [block.variables for block in costs["traced"].blocks] == [(64, 8), (24, 3)]


def test_products_of_attention_count(costs: dict[str, Workload]) -> None:
    rows, width, heads, key = 10, 6, 2, 3
    projections = 4 * rows * width * heads * key
    products = 2 * heads * rows * rows * key
    assert costs["attention"].multiply_accumulates == projections + products + rows * width * 4


def test_products_of_every_kind_of_convolution_count(costs: dict[str, Workload]) -> None:
    grouped, depthwise, transposed = 7 * 7 * 8 * 9 * 2, 5 * 5 * 16 * 9, 5 * 5 * 16 * 4 * 5
    assert costs["convolutions"].multiply_accumulates == grouped + depthwise + transposed + 5 * 3
    conv, norm, deep, wide, pool = 7 * 7 * 8, 7 * 7 * 8, 5 * 5 * 16, 10 * 10 * 5, 5 * 5 * 5
    assert costs["convolutions"].feature_bytes == 4 * (conv + norm + deep + wide + pool + 5 + 3)
    assert costs["branches"].multiply_accumulates == 4 * 4 * 3 * 5 + 4 * 4 * 8 * 2
    assert costs["branches"].feature_bytes == 4 * (4 * 4 * (5 + 3 + 8) + 2)


def test_the_body_of_a_loop_counts_once(costs: dict[str, Workload]) -> None:
    one = costs["recurrent"]
    assert one.multiply_accumulates == 4 * 20 + 5 * 20 + 5 * 2
    assert [block.variables for block in one.blocks] == [(80,), (100, 20), (10, 2)]
    assert one.input_shape == (1, 12, 4)
    assert one.classes == 2
