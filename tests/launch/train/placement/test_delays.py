"""What the strategies that are stale by one step carry from step to step."""

import pytest

from tests.launch.train.answers import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import numpy as np
import msgspec
from gputopo.launch.train.placement import devices, placements
from gputopo.launch.train.placement.variables import largest_difference
from gputopo.launch.spec.run_spec import Exchange
from tests.launch.train.reduction_cases import run_spec
from tests.launch.train.small_model import SmallModel

base = msgspec.structs.replace(run_spec(2), model="small")
devices.set_up(base)
reported = {}
for name, update, exchange in (
    ("staged", "parameter_server", Exchange(staged=True)),
    ("relaxed", "replicated", Exchange(relaxed=True)),
    ("plain", "replicated", Exchange()),
):
    spec = msgspec.structs.replace(base, variable_update=update, exchange=exchange)
    held = placements.place(SmallModel(), spec)
    made = [variable.device[-5:] for variable in held.buffers]
    for variable in (*held.buffers, *(one for place in held.places for one in place)):
        buffer = any(variable is one for one in held.buffers)
        variable.assign(np.full(variable.shape, 7.0 if buffer else 3.0))
    held.reset_buffers()
    reported[name] = {
        "on": made,
        "values": sorted({float(value) for one in held.buffers for value in one.numpy().flat}),
        "weights": [float(one.numpy().flat[0]) for tower in (0, 1) for one in held.weights(tower)],
    }
json.dump(reported, sys.stdout)
"""


def test_afresh_staged_weights_are_the_variables_and_no_gradient_waits() -> None:
    reported = answer_of(ASK)
    staged, relaxed, plain = reported["staged"], reported["relaxed"], reported["plain"]
    # Four variables: weights and gradients of two towers, or gradients alone.
    of_towers = ["CPU:0"] * 4 + ["CPU:1"] * 4
    assert staged["on"] == of_towers * 2
    assert relaxed["on"] == of_towers
    assert plain["on"] == []
    assert staged["values"] == [0.0, 3.0]
    assert relaxed["values"] == [0.0]
    for found in (staged, relaxed, plain):
        assert found["weights"] == [3.0] * 8


MEMORY = """
import json, sys
import numpy as np
import tensorflow as tf
from gputopo.launch.train.placement import devices, placements
from tests.launch.train.reduction_cases import run_spec

devices.set_up(run_spec(2))
kept, other = (placements.Buffer((3, 2), "/CPU:1") for _ in "ab")
reported = {"first": kept.numpy().tolist(), "shape": kept.shape, "on": kept.device[-5:]}
kept.assign(np.full((3, 2), 5.0))

def take():
    value = kept.take()
    other.take()
    reported["known"] = [kept._emptied.inputs[1].shape.rank, value.shape.rank]
    reported["apart"] = kept._emptied.inputs[1].op.inputs[0] is not other._emptied.inputs[1].op.inputs[0]
    with tf.control_dependencies([kept._emptied]):
        return value, tf.identity(kept._variable.read_value())

def step(number):
    value = kept.take()
    with tf.control_dependencies([kept.put(tf.fill((3, 2), number))]):
        return tf.identity(value)

taken, left = tf.compat.v1.wrap_function(take, [])()
reported["taken"], reported["left"] = taken.numpy().tolist(), left.numpy().tolist()
kept.assign(np.full((3, 2), 6.0))
graph = tf.compat.v1.wrap_function(step, [tf.TensorSpec((), tf.float32)])
reported["steps"] = [float(graph(tf.constant(float(number))).numpy().flat[0]) for number in (1, 2, 3)]
reported["last"] = kept.numpy().tolist()
json.dump(reported, sys.stdout)
"""


def test_what_is_carried_to_the_next_step_is_given_away_there_and_takes_no_memory_then() -> None:
    reported = answer_of(MEMORY)
    assert reported["first"] == [[0.0] * 2] * 3
    assert (reported["shape"], reported["on"]) == ([3, 2], "CPU:1")
    assert reported["taken"] == [[5.0] * 2] * 3
    assert reported["left"] == []
    # TensorFlow took a known shape of nothing, or that of another gradient with the same, for this one's.
    assert reported["known"] == [None, 2]
    assert reported["apart"]
    assert reported["steps"] == [6.0, 1.0, 2.0]
    assert reported["last"] == [[3.0] * 2] * 3
