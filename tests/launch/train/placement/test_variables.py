"""Copies of variables made and compared, in processes with two or three CPU devices."""

import math

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, sys
import numpy as np
import tensorflow as tf
from gputopo.launch.train.placement import devices
from gputopo.launch.train.placement.variables import INFINITE_DIFFERENCE, largest_difference, pin
from tests.launch.train.reduction_cases import run_spec

devices.set_up_devices(run_spec(3))

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
nan, inf = float("nan"), float("inf")
large = np.arange(3_000_000) % 1000
spoiled = large.copy()
spoiled[-1] += 2
json.dump({
    "equal": compared([1.5, 2], [1.5, 2], [1.5, 2]),
    "third": compared([1.5, 2], [1.5, 2], [1.5, 2.25]),
    "matrix": compared([[1, 2], [3, 4]], [[1, 2], [3.5, 4]]),
    "scalar": compared(3, -1),
    "empty": compared(np.zeros((0, 4)), np.zeros((0, 4))),
    "large": compared(large, spoiled),
    "all lost": compared([nan, inf, 1], [nan, inf, 1.5]),
    "one lost": compared([1, 2], [1, nan]),
    "first lost": compared([nan, 2], [1, 2]),
    "infinities": compared([inf], [-inf]),
    "too far": compared([3e38], [-3e38]),
    "farthest": INFINITE_DIFFERENCE,
    "pinned": [address(pinned) != before, bool((pinned.numpy() == drawn.numpy()).all())],
}, sys.stdout)
"""


def test_the_largest_difference_is_found_and_a_pinned_value_is_in_new_memory() -> None:
    reported = answer_of("-c", ASK)
    farthest = reported.pop("farthest")
    assert math.isfinite(farthest)
    assert reported.pop("pinned") == [True, True]
    assert reported == {
        "equal": 0.0,
        "third": 0.25,
        "matrix": 0.5,
        "scalar": 4.0,
        "empty": 0.0,
        "large": 2.0,
        "all lost": 0.5,
        "one lost": farthest,
        "first lost": farthest,
        "infinities": farthest,
        "too far": farthest,
    }


PLACES = """
import json, sys
import msgspec
import numpy as np
from gputopo.launch.models import models
from gputopo.launch.train.placement import devices
from gputopo.launch.train.training import stepper_of
from tests.launch.specs import cpu_spec

def addresses(variables):
    return [np.asarray(memoryview(one.read_value())).ctypes.data for one in variables]

spec = cpu_spec()
devices.set_up_devices(spec)
reported = {}
for mode, ps in (("parameter_server", "/CPU:0"), ("replicated", None), ("independent", None)):
    own = msgspec.structs.replace(spec, variable_update=mode, ps_device=ps)
    stepper = stepper_of(models.build_model(own.model, own), own)
    places = stepper.placement.places
    before = [addresses(place) for place in places]
    for number in range(3):
        stepper(number)
    reported[mode] = (before, [addresses(place) for place in places])
json.dump(reported, sys.stdout)
"""


def test_every_copy_has_memory_of_its_own_from_the_start_and_keeps_it_through_the_steps() -> None:
    reported = answer_of("-c", PLACES)
    assert {mode: len(before) for mode, (before, _) in reported.items()} == {
        "parameter_server": 1,
        "replicated": 2,
        "independent": 2,
    }
    for mode, (before, after) in reported.items():
        apart = {address for place in before for address in place}
        assert len(apart) == sum(map(len, before)), mode
        assert after == before, mode
