"""Without a GPU: does TensorFlow have a kernel for GPUs for every op that the core puts on a tower's device?

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
from gputopo.launch.train import step
from gputopo.launch.train.placement import devices, placements
from gputopo.launch.train.lifecycle import evaluating
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.spec.run_spec import Exchange, Lifecycle, RunSpec
from tests.launch.train.numerics_process import tiny

@functools.cache
def of_op(name):
    return kernels.get_registered_kernels_for_op(name).kernel

def has_gpu_kernel(node):
    for kernel in of_op(node.op):
        if kernel.device_type in ("GPU", "DEFAULT") and all(fits(rule, node) for rule in kernel.constraint):
            return True
    return False

def fits(rule, node):
    allowed = set(rule.allowed_values.list.type)
    given = node.attr[rule.name]
    return not allowed or set(given.list.type or [given.type]) <= allowed

def spec(update, data_format, exchange=Exchange(), **fields):
    # Towers on CPU 1 and 2 stand for GPUs; CPU 0 is the host.
    return RunSpec(model="alexnet", backend="cpu", variable_update=update, data_format=data_format,
        devices=tuple(Device(tower=tower, device=f"/CPU:{tower + 1}") for tower in range(2)),
        ps_device="/CPU:1" if update == "parameter_server" and not exchange.ps_spread else None,
        batch_size=2, extra_forward={1: 1}, exchange=exchange, **fields)

devices.set_up(spec("parameter_server", "NHWC"))
found = {"conv": any(kernel.device_type == "GPU"
    for kernel in kernels.get_registered_kernels_for_op("Conv2D").kernel), "nodes": 0, "without": []}
specs = [spec(update, data_format) for update in ("parameter_server", "replicated", "independent")
    for data_format in ("NHWC", "NCHW")]
server = ("parameter_server", "NHWC")
specs += [spec(*server, Exchange(staged=True, ps_spread=True)), spec(*server, Exchange(asynchronous=True))]
packed = Exchange(relaxed=True, repacking=2, small_bytes=4096, transfer="fp16")
specs.append(spec("replicated", "NHWC", packed, all_reduce="ring#2"))
specs.append(spec(*server, lifecycle=Lifecycle(training_accuracy=True)))
specs += [spec("parameter_server", data_format, task="forward") for data_format in ("NHWC", "NCHW")]
for one in specs:
    # tiny has all kinds of layers; the variables of alexnet are large enough to be cut.
    model = models.build("alexnet") if one.all_reduce else tiny(keep=0.5)
    if one.task == "forward":
        built = evaluating.ForwardStep(model, one)
    else:
        built = step.TrainingStep(model, one, placements.place(model, one), source_of(model, one))
    for node in built.graph_nodes():
        if node.device and not node.device.endswith("CPU:0"):
            found["nodes"] += 1
            if not has_gpu_kernel(node):
                found["without"].append([node.op, node.name])
variables = ("VarHandleOp", "ReadVariableOp", "AssignVariableOp")
for op in variables:
    for dtype in (tf.float32, tf.int64):
        node = tf.compat.v1.NodeDef(op=op)
        node.attr["dtype"].type = dtype.as_datatype_enum
        if not has_gpu_kernel(node):
            found["without"].append([op, dtype.name])
json.dump(found, sys.stdout)
"""


def test_every_op_of_a_tower_can_run_on_a_gpu() -> None:
    done = run_program("-c", ASK)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    if not found["conv"]:
        pytest.skip("this TensorFlow is a build without any GPU kernel")
    assert found["nodes"] > 1000
    assert found["without"] == []
