"""Copies of variables made and compared, in a process with three CPU devices."""

import math
from typing import Any

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import numpy as np
import tensorflow as tf
from gputopo.launch.models import build_model
from gputopo.launch.train import set_up_devices, stepper_of
from gputopo.launch.train.placement import largest_difference, pin
from tests.launch.train.worker_process import trivial_spec

set_up_devices(trivial_spec(3))

def made(values, tower):
    with tf.device(f"/CPU:{tower}"):
        return tf.Variable(np.array(values, np.float32))

def compared(*copies):
    return largest_difference([[made(values, tower)] for tower, values in enumerate(copies)])

def address(variable):
    return np.asarray(memoryview(variable.read_value())).ctypes.data

drawn = tf.constant(np.arange(100, dtype=np.float32))
pinned = tf.Variable(drawn)
before = address(pinned)
pin([pinned])
def addresses(variables):
    return [address(variable) for variable in variables]

spec = trivial_spec(2, variable_update="replicated", ps_device=None)
stepper = stepper_of(build_model(spec.model, spec), spec)
copies = stepper.placement.places
first = [addresses(copy) for copy in copies]
for number in range(2):
    stepper(number)
nan, inf = float("nan"), float("inf")
large = np.arange(3_000_000) % 1000
spoiled = large.copy()
spoiled[-1] += 2
json.dump({
    "equal": compared([1.5, 2], [1.5, 2], [1.5, 2]),
    "third": compared([1.5, 2], [1.5, 2], [1.5, 2.25]),
    "matrix": compared([[1, 2], [3, 4]], [[1, 2], [3.5, 4]]),
    "empty": compared(np.zeros((0, 4)), np.zeros((0, 4))),
    "large": compared(large, spoiled),
    "all lost": compared([nan, inf, 1], [nan, inf, 1.5]),
    "one lost": compared([1, 2], [1, nan]),
    "too far": compared([3e38], [-3e38]),
    "places": [first, [addresses(copy) for copy in copies]],
    "pinned": [address(pinned) != before, bool((pinned.numpy() == drawn.numpy()).all())],
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def reported() -> dict[str, Any]:
    found: dict[str, Any] = answer_of("-c", ASK)
    return found


def test_the_largest_difference_is_found_and_always_finite(
    reported: dict[str, Any],
) -> None:
    farthest = reported["too far"]
    assert math.isfinite(farthest)
    assert {name: reported[name] for name in reported if name not in ("places", "pinned")} == {
        "equal": 0.0,
        "third": 0.25,
        "matrix": 0.5,
        "empty": 0.0,
        "large": 2.0,
        "all lost": 0.5,
        "one lost": farthest,
        "too far": farthest,
    }
    assert farthest > 3e38


def test_a_pinned_value_is_in_new_memory(reported: dict[str, Any]) -> None:
    assert reported["pinned"] == [True, True]


def test_every_copy_has_memory_of_its_own_from_the_start_and_keeps_it_through_the_steps(
    reported: dict[str, Any],
) -> None:
    before, after = reported["places"]
    assert len(before) == 2
    apart = {address for place in before for address in place}
    assert len(apart) == sum(map(len, before))
    assert after == before
