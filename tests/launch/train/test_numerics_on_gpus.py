"""Without a GPU: does TensorFlow have kernels for GPUs for what short types, loss scales and optimizers add?

As in test_gpu_kernels, and inside the functions of a step as well: the branches of one that may be left out.
"""

import json

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

ASK = """
import functools, itertools, json, sys
import tensorflow as tf
from tensorflow.python.framework import kernels
from gputopo.values.events import Device
from gputopo.launch.train import step
from gputopo.launch.train.placement import devices, placements
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.spec.run_spec import Optimization, Precision, RunSpec
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

def spec(compute, optimizer, data_format, update):
    # Towers on CPU 1 and 2 stand for GPUs; CPU 0 is the host.
    return RunSpec(model="tiny", backend="cpu", variable_update=update, data_format=data_format,
        devices=tuple(Device(tower=tower, device=f"/CPU:{tower + 1}") for tower in range(2)),
        ps_device="/CPU:1" if update == "parameter_server" else None, batch_size=2,
        precision=Precision(compute=compute, auto_loss_scale=True),
        optimization=Optimization(optimizer=optimizer, weight_decay=0.1, gradient_clip=1.0,
            gradient_clip_norm=1.0))

every = [
    spec("fp16", "adam", "NHWC", "parameter_server"),
    spec("bf16", "rmsprop", "NHWC", "replicated"),
    spec("bf16", "momentum", "NCHW", "independent"),
    spec("fp32", "sgd", "NCHW", "replicated"),
]
devices.set_up(every[0])
found = {"conv": any(kernel.device_type == "GPU"
    for kernel in kernels.get_registered_kernels_for_op("Conv2D").kernel),
    "nodes": 0, "branches": 0, "without": [], "short": 0}
for one in every:
    model = tiny(keep=0.5)
    built = step.TrainingStep(model, one, placements.place(model, one), source_of(model, one))
    graph = built._graph.graph.as_graph_def()
    inner = [node for function in graph.library.function for node in function.node_def]
    for node in itertools.chain(graph.node, inner):
        if node.device and not node.device.endswith("CPU:0"):
            found["nodes"] += 1
            found["short"] += node.op == "Conv2D" and node.attr["T"].type in (
                tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
            if not has_gpu_kernel(node):
                found["without"].append([node.op, node.name])
    found["branches"] += sum("ResourceApply" in node.op for node in inner)
json.dump(found, sys.stdout)
"""


def test_every_op_of_numerics_can_run_on_a_gpu() -> None:
    done = run_program("-c", ASK)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    if not found["conv"]:
        pytest.skip("this TensorFlow is a build without any GPU kernel")
    assert found["nodes"] > 500
    assert found["short"] == 12, "two convolutions of two towers in three runs"
    assert found["branches"] > 30, "the updates are inside branches"
    assert found["without"] == []
