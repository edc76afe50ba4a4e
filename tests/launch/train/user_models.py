"""What a user's module may hold: good models, and one of each mistake."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers


def plain() -> Any:
    return keras.Sequential(
        [keras.Input((6, 5, 2)), layers.Conv2D(3, 3, activation="relu"), layers.Flatten(), layers.Dense(7)]
    )


def normed() -> Any:
    return keras.Sequential(
        [
            keras.Input((6, 5, 2)),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(momentum=0.8),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(7, activation="softmax"),
        ]
    )


def normed_rows() -> Any:
    return keras.Sequential([keras.Input((6,)), layers.BatchNormalization(momentum=0.8), layers.Dense(7)])


def mobile() -> Any:
    """The kinds of layers of MobileNetV2, channels first as they are on GPUs."""
    first = "channels_first"
    return keras.Sequential(
        [
            keras.Input((3, 8, 8)),
            layers.ZeroPadding2D(((0, 1), (0, 1)), data_format=first),
            layers.Conv2D(4, 3, strides=2, use_bias=False, data_format=first),
            layers.BatchNormalization(axis=1),
            layers.DepthwiseConv2D(3, padding="same", use_bias=False, data_format=first),
            layers.ReLU(6.0),
            layers.GlobalAveragePooling2D(data_format=first),
            layers.Dense(7),
        ]
    )


def dropping() -> Any:
    return keras.Sequential([keras.Input((64,)), layers.Dropout(0.5), layers.Dense(3)])


def yes_or_no() -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    return model


def squares() -> Any:
    model = keras.Sequential(
        [keras.Input((4, 6)), layers.Flatten(), layers.Dense(3, kernel_regularizer="l2")]
    )
    model.compile("sgd", keras.losses.MeanSquaredError())
    return model


def transducer() -> Any:
    model = plain()
    model.compile("sgd", keras.losses.CTC())
    return model


def typed(first: str | None, last: str | None) -> Any:
    """A model whose layers have types of their own."""
    return keras.Sequential(
        [
            keras.Input((6, 5, 2)),
            layers.Conv2D(3, 3, dtype=first),
            layers.Flatten(dtype=first),
            layers.Dense(7, dtype=last),
        ]
    )


def short_layers() -> Any:
    return typed("mixed_bfloat16", "mixed_bfloat16")


def long_layers() -> Any:
    return typed("float32", "float32")


def long_last_layer() -> Any:
    return typed(None, "float32")


def many_labels() -> Any:
    return keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="sigmoid")])


class Own(keras.Model):  # type: ignore[misc]
    """A model by class, whose call knows no `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(4)
        self.last = layers.Softmax()

    def build(self, shape: Any) -> None:
        self.inner.build(shape)
        self.last.build((None, 4))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.last(self.inner(x))


def by_class() -> Any:
    model = Own()
    model.build((None, 6))
    return model


class Adds(layers.Layer):  # type: ignore[misc]
    """Adds to the loss what it sees."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.3 * keras.ops.mean(x**2))
        return x


class Counts(layers.Layer):  # type: ignore[misc]
    """Computes with a state that changes in every step of training."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1.0)
        return x * (1.0 + 0.1 * self.steps)


def stateful() -> Any:
    """All that layers add to a loss or keep: regularisers of weights and of outputs, `add_loss`, state.

    The wrapper has a condition in the graph, and a kernel that is no layer of the model's list.
    """
    return keras.Sequential(
        [
            keras.Input((6, 5, 2)),
            layers.Conv2D(3, 3, activity_regularizer="l2", kernel_regularizer="l2"),
            Counts(),
            Adds(),
            layers.SpectralNormalization(layers.Conv2D(3, 2)),
            layers.Flatten(),
            layers.Dense(7),
        ]
    )


class Fits(keras.Model):  # type: ignore[misc]
    """A model whose own step of training, and optimizer, are for Keras's fit."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def train_step(self, data: Any) -> Any:
        raise RuntimeError("for fit alone")


def fits() -> Any:
    model = Fits()
    model(keras.ops.zeros((2, 6)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"))
    return model


READY = plain()
NUMBER = 3


def raises() -> Any:
    raise KeyError("weights.h5")


def gives_a_number() -> Any:
    return NUMBER


def two_inputs() -> Any:
    a, b = keras.Input((3,)), keras.Input((3,))
    return keras.Model([a, b], layers.Dense(2)(layers.Add()([a, b])))


def any_size() -> Any:
    a = keras.Input((None, None, 3))
    return keras.Model(a, layers.Dense(2)(layers.GlobalAveragePooling2D()(a)))


def words() -> Any:
    a = keras.Input((4,), dtype="int32")
    return keras.Model(a, layers.Dense(2)(layers.Flatten()(layers.Embedding(9, 3)(a))))


def pictures() -> Any:
    a = keras.Input((4, 4, 3))
    return keras.Model(a, layers.Conv2D(2, 1)(a))


class Hides(layers.Layer):  # type: ignore[misc]
    """Keeps a variable where Keras does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = tf.Variable(1.0)

    def call(self, x: Any) -> Any:
        return x * self.factor


def hidden() -> Any:
    return keras.Sequential([keras.Input((3,)), Hides(), layers.Dense(2)])


def constrained() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_constraint="non_neg")])


def joined() -> Any:
    return keras.Sequential(
        [keras.Input((3,)), layers.BatchNormalization(synchronized=True), layers.Dense(2)]
    )


def wide() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="float64")])


def named_outputs() -> Any:
    a = keras.Input((3,))
    return keras.Model(a, {"logits": layers.Dense(2)(a)})


def nothing_to_train() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.ReLU()])


def batch_of_three() -> Any:
    return keras.Sequential([keras.Input((3,), batch_size=3), layers.Dense(2)])


class Breaks(layers.Layer):  # type: ignore[misc]
    """Works until it trains."""

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            raise RuntimeError("a layer of the user's")
        return x


def breaks() -> Any:
    return keras.Sequential([keras.Input((3,)), Breaks(), layers.Dense(2)])


class Picks(layers.Layer):  # type: ignore[misc]
    """Takes a row that is not there, but in training alone."""

    def call(self, x: Any, training: bool = False) -> Any:
        return tf.gather(x, tf.cast(x[:, 0] * 0 + 99, tf.int32)) if training else x


def picks() -> Any:
    return keras.Sequential([keras.Input((3,)), Picks(), layers.Dense(2)])


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _by_python(weights: Any) -> Any:
    return tf.identity(weights), lambda upper: tf.numpy_function(lambda value: value, [upper], tf.float32)


class ByPython(layers.Layer):  # type: ignore[misc]
    """The gradient of its weights comes from a Python function: TensorFlow knows no shape of it."""

    def build(self, shape: Any) -> None:
        self.weights_in = self.add_weight(shape=(shape[-1], 4))

    def call(self, x: Any) -> Any:
        return tf.matmul(x, _by_python(self.weights_in))


def without_shapes() -> Any:
    return keras.Sequential([keras.Input((3,)), ByPython(), layers.Dense(2)])


class NeedsBatch(layers.Layer):  # type: ignore[misc]
    """Computes with the size of the batch as Python's number."""

    def call(self, x: Any) -> Any:
        if x.shape[0] is None:
            raise ValueError("how many are there?")
        return x / x.shape[0]


def needs_batch() -> Any:
    return keras.Sequential([keras.Input((4,), batch_size=4), NeedsBatch(), layers.Dense(3)])
