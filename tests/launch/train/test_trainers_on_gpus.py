"""Without a GPU: TensorFlow has a GPU kernel for every op that Keras models, methods and strategies place.

Soft placement is off, so one op without such a kernel would stop every run on GPUs.
"""

import json

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

ASK = """
import functools, json, sys
import tensorflow as tf
from tensorflow.python.framework import kernels
from gputopo.values.events import Device
from gputopo.launch.models import models
from gputopo.launch.train.training import stepper_of
from gputopo.launch.train.placement import devices
from gputopo.launch.spec.run_spec import Optimization, Precision, RunSpec

@functools.cache
def of_op(name):
    return kernels.get_registered_kernels_for_op(name).kernel

def has_gpu_kernel(node):
    return any(one.device_type in ("GPU", "DEFAULT") and all(fits(rule, node) for rule in one.constraint)
        for one in of_op(node.op))

def fits(rule, node):
    allowed = set(rule.allowed_values.list.type)
    given = node.attr[rule.name]
    return not allowed or set(given.list.type or [given.type]) <= allowed

def spec(**fields):
    # Towers on CPU 1 and 2 stand for GPUs; CPU 0 is the host.
    given = dict(backend="cpu", ps_device="/CPU:1", batch_size=2,
        devices=tuple(Device(tower=tower, device=f"/CPU:{tower + 1}") for tower in range(2)))
    return RunSpec(**{**given, **fields})

def look(label, nodes):
    for node in nodes:
        if node.device and not node.device.endswith("CPU:0"):
            found["nodes"] += 1
            if not has_gpu_kernel(node):
                found["without"].append([label, node.op, node.name])
        elif not node.device and node.op in ("MatMul", "Conv2D", "AddN", "ConcatV2", "Split", "Mul"):
            found["nowhere"].append([label, node.op, node.name])

devices.set_up(spec(model="any"))
found = {"conv": any(kernel.device_type == "GPU"
    for kernel in kernels.get_registered_kernels_for_op("Conv2D").kernel),
    "nodes": 0, "without": [], "nowhere": []}
USER = "tests.launch.train.user_models:"
for model, formats in ((USER + "normed", ("NHWC", "NCHW")), (USER + "dropping", ("NHWC",)),
        ("keras:MobileNetV2", ("NCHW",))):
    for data_format in formats:
        one = spec(model=model, data_format=data_format)
        step = stepper_of(models.build(model, one), one)
        look(f"{model} {data_format}", step.graph_nodes())
optimizers = {"sgd": {"gradient_clip": 1.0}, "momentum": {"nesterov": True, "weight_decay": 0.1},
    "rmsprop": {"gradient_clip_norm": 1.0}, "adam": {}}
for method, (name, options) in zip(("kuza55", "avolkov1", "fchollet", "kuza55"), optimizers.items()):
    for model in (USER + "normed", USER + "dropping", "lenet"):
        one = spec(model=model, method=method, optimization=Optimization(optimizer=name, **options))
        step = stepper_of(models.build(model, one), one)
        look(f"{model} {method}", step.graph_nodes())
        look(f"{model} {method} {name}", step.update_nodes())
short = Precision(compute="fp16", loss_scale=128.0, auto_loss_scale=True)
for model, method in ((USER + "activity", "fchollet"), (USER + "counting", "avolkov1"), ("lenet", "kuza55")):
    one = spec(model=model, method=method, precision=short)
    step = stepper_of(models.build(model, one), one)
    look(f"{model} {method} short", step.graph_nodes())
    look(f"{model} {method} short update", step.update_nodes())
for strategy in ("mirrored:one", "mirrored:hierarchical", "central"):
    one = spec(model=USER + "normed", strategy=strategy)
    look(strategy, stepper_of(models.build(one.model, one), one).graph_nodes())
json.dump(found, sys.stdout)
"""


def test_every_op_on_a_towers_device_can_run_on_a_gpu() -> None:
    done = run_program("-c", ASK)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    if not found["conv"]:
        pytest.skip("this TensorFlow is a build without any GPU kernel")
    assert found["nodes"] > 5000
    assert found["without"] == []
    assert found["nowhere"] == []
