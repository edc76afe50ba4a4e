"""The meaning of a Keras model's output, and the loss of each example."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

Tensor = Any
Ending = Literal["softmax", "sigmoid", "linear"]
MIN_PROBABILITY = 1e-7  # keras.config.epsilon(): keeps the logarithm of a probability finite, as in Keras
_ACTIVATIONS: tuple[Ending, ...] = ("softmax", "sigmoid")
_PASSES_ON = ("Identity", "Cast")  # ops that may follow a model's last activation


@dataclass(frozen=True)
class Head:
    """How the loss is computed from outputs [batch, classes] and labels [batch] (int64).

    `compiled`: the loss that the model was compiled with; None: the loss depends on the last activation.
    """

    classes: int
    ending: Ending  # the model's last activation
    compiled: "Callable[[Tensor, Tensor], Tensor] | None" = None
    compiled_name: str = ""
    sparse: bool = False  # whether the compiled loss takes class numbers

    @property
    def says(self) -> str:
        """The assumption, as a sentence for the user."""
        if self.compiled is not None:
            kind = "class numbers" if self.sparse else "one-hot classes"
            return f"Loss: {self.compiled_name}, as the model was compiled, on {kind}."
        if self.ending == "linear":
            what = "sigmoid" if self.classes == 1 else "softmax"
            return f"Loss: {what} cross-entropy; the last layer returns logits (no softmax or sigmoid)."
        many = "" if self.classes == 1 or self.ending == "softmax" else " of every class"
        return f"Loss: {self.ending} cross-entropy{many}; the model's last activation is {self.ending}."

    def logits(self, outputs: Tensor) -> Tensor:
        """Return logits [batch, classes] in float32. For a compiled loss, return the outputs unchanged."""
        if self.compiled is not None or self.ending == "linear":
            return tf.cast(outputs, tf.float32)
        before = before_activation(outputs, self.ending)
        if before is not None:
            return tf.cast(before, tf.float32)
        least = MIN_PROBABILITY
        probabilities = tf.clip_by_value(tf.cast(outputs, tf.float32), least, 1.0 - least)
        if self.ending == "softmax":
            return tf.math.log(probabilities)
        return tf.math.log(probabilities) - tf.math.log1p(-probabilities)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each example [batch]."""
        if self.compiled is not None:
            return self.compiled(self._wanted(labels, sparse=self.sparse), logits)
        if self.classes == 1 or self.ending == "sigmoid":
            wanted = self._wanted(labels, sparse=False)
            each = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
            return tf.reduce_mean(each, axis=1)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def _wanted(self, labels: Tensor, *, sparse: bool) -> Tensor:
        if sparse:
            return labels
        if self.classes == 1:
            return tf.cast(labels, tf.float32)[:, None]
        return tf.one_hot(labels, self.classes)


def head_of(model: keras.Model, classes: int, ending: Ending) -> Head:
    """Return the meaning of a model's outputs, whose last activation is `ending`."""
    keras_loss = model.loss if getattr(model, "compiled", False) else None
    if keras_loss is not None:
        for sparse in (True, False):
            compiled = _per_example(keras_loss, sparse=sparse)
            if compiled is not None and _fits(compiled, classes, sparse=sparse):
                return Head(classes, ending, compiled, _name(keras_loss), sparse)
    return Head(classes, ending)


def left_out(model: keras.Model, head: Head) -> Iterator[str]:
    """Yield remarks on the parts of a compiled model that a run ignores."""
    if not getattr(model, "compiled", False):
        return
    if model.loss is not None and head.compiled is None:
        yield f"The model's compiled loss ({_name(model.loss)}) does not accept classes and is ignored."
    yield "The model's compiled optimizer, metrics and custom train_step are ignored."


def before_activation(outputs: Tensor, ending: Ending) -> Tensor | None:
    """Return the input of the last activation `ending`, or None if the outputs do not come from one."""
    if not hasattr(outputs, "op"):  # not a tensor of a graph
        return None
    wanted = {"softmax": "Softmax", "sigmoid": "Sigmoid", "linear": ""}[ending]
    op = outputs.op
    while op.type in _PASSES_ON:
        op = op.inputs[0].op
    return op.inputs[0] if op.type == wanted else None


def ending_of(output: Tensor) -> Ending:
    """Return the last activation, found from the op that made the output."""
    return next(
        (ending for ending in _ACTIVATIONS if before_activation(output, ending) is not None), "linear"
    )


def _per_example(keras_loss: Any, *, sparse: bool) -> "Callable[[Tensor, Tensor], Tensor] | None":
    """Return a Keras loss as a function of (labels, outputs) that gives the loss of each example.

    Return None if it is not a Keras loss, or takes labels of the other kind (`sparse`: class numbers).
    """
    if ("sparse" in _name(keras_loss).lower()) != sparse:
        return None
    try:
        loss = keras.losses.get(keras_loss)  # an instance or a function as it is
    except ValueError:
        return None
    if isinstance(loss, keras.losses.Loss):
        called: Callable[[Tensor, Tensor], Tensor] = loss.call
        return called
    return loss if getattr(loss, "__module__", "").startswith("keras") else None


def _fits(loss: Callable[[Tensor, Tensor], Tensor], classes: int, *, sparse: bool) -> bool:
    """Return whether the loss of two examples is two finite numbers."""
    labels = tf.constant([0, min(1, classes - 1)], tf.int64)
    wanted = Head(classes, "linear")._wanted(labels, sparse=sparse)
    try:
        losses = loss(wanted, tf.fill((2, classes), 0.5 / classes))
    except (ValueError, TypeError, tf.errors.InvalidArgumentError):
        return False
    return tuple(losses.shape) == (2,) and bool(tf.reduce_all(tf.math.is_finite(losses)))


def _name(loss: Any) -> str:
    return str(loss if isinstance(loss, str) else getattr(loss, "__name__", None) or type(loss).__name__)
