"""Who reads a tensor of a graph, and what waits for what: ops that TensorFlow builds, none of which runs."""

from typing import Any

import pytest
import tensorflow as tf

from gputopo.launch.train.step import needed_for, readers_of

pytestmark = pytest.mark.tensorflow


def names(value: Any, *outcome: Any) -> list[str]:
    return sorted(op.name for op in readers_of(value, needed_for(outcome)))


def test_the_ops_that_take_a_value_read_it() -> None:
    with tf.Graph().as_default():
        value = tf.compat.v1.placeholder(tf.float32, (2, 2), name="value")
        outcome = tf.add(tf.square(value, name="square"), tf.exp(value, name="exp"), name="sum")
        assert names(value, outcome) == ["exp", "square"]


def test_who_reads_a_view_reads_the_value_and_the_view_itself_does_not() -> None:
    with tf.Graph().as_default():
        value = tf.compat.v1.placeholder(tf.float32, (2, 2), name="value")
        row = tf.reshape(tf.identity(value), (4,))
        outcome = tf.exp(row, name="exp")
        assert names(value, outcome) == ["exp"]


def test_of_values_that_pass_side_by_side_each_has_its_own_readers() -> None:
    with tf.Graph().as_default():
        first = tf.compat.v1.placeholder(tf.float32, (2,), name="first")
        second = tf.compat.v1.placeholder(tf.float32, (2,), name="second")
        one, two = tf.identity_n([first, second])
        outcome = tf.exp(one, name="exp") + tf.square(two, name="square")
        assert names(first, outcome) == ["exp"]
        assert names(second, outcome) == ["square"]


def test_a_shape_that_is_given_by_a_value_is_read_and_is_no_view_of_it() -> None:
    with tf.Graph().as_default():
        shape = tf.compat.v1.placeholder(tf.int32, (1,), name="shape")
        outcome = tf.exp(tf.reshape(tf.zeros((2, 2)), shape, name="row"), name="exp")
        assert names(shape, outcome) == ["row"]


def test_a_view_that_nobody_reads_is_waited_for_itself() -> None:
    with tf.Graph().as_default():
        value = tf.compat.v1.placeholder(tf.float32, (2, 2), name="value")
        outcome = tf.reshape(value, (4,), name="row")
        assert names(value, outcome) == ["row"]


def test_ops_that_the_outcome_does_not_need_are_no_readers_and_would_not_run() -> None:
    with tf.Graph().as_default():
        value = tf.compat.v1.placeholder(tf.float32, (2, 2), name="value")
        tf.exp(value, name="unasked")
        with tf.control_dependencies([tf.square(value, name="before")]):
            outcome = tf.constant(1.0)
        assert names(value, outcome) == ["before"]
