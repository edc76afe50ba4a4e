"""Who reads a tensor of a graph, and what waits for what: ops that TensorFlow builds, none of which runs."""

from typing import Any

import pytest

from tests.launch.train.answers import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import tensorflow as tf
from gputopo.launch.train.step import needed_for, readers_of

def placeholder(name, shape=(2, 2), dtype=tf.float32):
    return tf.compat.v1.placeholder(dtype, shape, name=name)

def names(value, *outcome):
    return sorted(op.name for op in readers_of(value, needed_for(outcome)))

def plain():
    value = placeholder("value")
    outcome = tf.add(tf.square(value, name="square"), tf.exp(value, name="exp"), name="sum")
    return names(value, outcome)

def view():
    value = placeholder("value")
    row = tf.reshape(tf.identity(value), (4,))
    return names(value, tf.exp(row, name="exp"))

def side_by_side():
    first, second = placeholder("first", (2,)), placeholder("second", (2,))
    one, two = tf.identity_n([first, second])
    outcome = tf.exp(one, name="exp") + tf.square(two, name="square")
    return [names(first, outcome), names(second, outcome)]

def shape():
    shape = placeholder("shape", (1,), tf.int32)
    outcome = tf.exp(tf.reshape(tf.zeros((2, 2)), shape, name="row"), name="exp")
    return names(shape, outcome)

def unread_view():
    value = placeholder("value")
    return names(value, tf.reshape(value, (4,), name="row"))

def not_needed():
    value = placeholder("value")
    tf.exp(value, name="unasked")
    with tf.control_dependencies([tf.square(value, name="before")]):
        outcome = tf.constant(1.0)
    return names(value, outcome)

found = {}
for case in (plain, view, side_by_side, shape, unread_view, not_needed):
    with tf.Graph().as_default():
        found[case.__name__] = case()
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def readers() -> dict[str, Any]:
    return answer_of(ASK)


def test_the_ops_that_take_a_value_read_it(readers: dict[str, Any]) -> None:
    assert readers["plain"] == ["exp", "square"]


def test_who_reads_a_view_reads_the_value_and_the_view_itself_does_not(readers: dict[str, Any]) -> None:
    assert readers["view"] == ["exp"]


def test_of_values_that_pass_side_by_side_each_has_its_own_readers(readers: dict[str, Any]) -> None:
    assert readers["side_by_side"] == [["exp"], ["square"]]


def test_a_shape_that_is_given_by_a_value_is_read_and_is_no_view_of_it(readers: dict[str, Any]) -> None:
    assert readers["shape"] == ["row"]


def test_a_view_that_nobody_reads_is_waited_for_itself(readers: dict[str, Any]) -> None:
    assert readers["unread_view"] == ["row"]


def test_ops_that_the_outcome_does_not_need_are_no_readers_and_would_not_run(
    readers: dict[str, Any],
) -> None:
    assert readers["not_needed"] == ["before"]
