"""How many examples of a batch are guessed right, in the graph."""

from typing import Any

import tensorflow as tf

from gputopo.launch.models.models import Model

Tensor = Any
TOP = 5


def hits(model: Model, logits: Tensor, labels: Tensor) -> Tensor:
    """Give two numbers (float32): examples whose label is the first guess, and among the first five.

    `logits` [batch, classes]; `labels` [batch], of which those below 0 stand for no example. Equal logits
    count in the order of their classes, as in tf.math.top_k, so that a model that says nothing is not right;
    a logit that is no number is a wrong guess. Plain arithmetic: on GPUs as well.
    """
    if model.classes == 1:  # one number: yes above zero
        right = tf.cast(tf.equal(tf.cast(tf.reshape(logits, (-1,)) > 0, labels.dtype), labels), tf.float32)
        return tf.stack([tf.reduce_sum(right), tf.reduce_sum(right)])
    classes = tf.constant([list(range(model.classes))], labels.dtype)  # [1, classes]
    own = tf.one_hot(labels, model.classes, dtype=logits.dtype)
    of_label = tf.reduce_sum(tf.where(own > 0, logits, tf.zeros_like(logits)), 1, keepdims=True)  # [b, 1]
    better = tf.logical_not(logits <= of_label)
    first = tf.logical_and(tf.equal(logits, of_label), classes < labels[:, None])
    before = tf.reduce_sum(tf.cast(tf.logical_or(better, first), tf.float32), 1)  # [b]
    real = tf.cast(labels >= 0, tf.float32)
    top1 = tf.reduce_sum(real * tf.cast(before < 1, tf.float32))
    return tf.stack([top1, tf.reduce_sum(real * tf.cast(before < TOP, tf.float32))])
