"""A user's models that Keras accepts, and a run not in every respect."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers


def plain() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3)])


def odd_layer() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="my dense:0")])


def odd_inner_model() -> Any:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3)], name="a b-ü")
    return keras.Sequential([keras.Input((4,)), inner])


class NeedsBatch(layers.Layer):  # type: ignore[misc]
    """Computes with the size of the batch as Python's number."""

    def call(self, x: Any) -> Any:
        if x.shape[0] is None:
            raise ValueError("how many are there?")
        return x / x.shape[0]


def needs_batch() -> Any:
    return keras.Sequential([keras.Input((4,), batch_size=4), NeedsBatch(), layers.Dense(3)])


def as_in_tensorflow_1() -> Any:
    tf.compat.v1.disable_eager_execution()
    return plain()
