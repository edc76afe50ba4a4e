"""TensorFlow's runtime as the spec sets it, asked of TensorFlow in its own process."""

import json

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

ASK = """
import json, os, sys, time
import tensorflow as tf
from gputopo.launch.train.marks import clock
from gputopo.launch.train import set_up_devices
from gputopo.launch.train.placement import server_config, settings
from gputopo.values.run.spec import Precision, Runtime
from tests.launch.specs import cpu_spec

silent = settings(cpu_spec())
os.environ.update(json.loads(sys.argv[2]))
spec = cpu_spec(runtime=Runtime(**json.loads(sys.argv[1])))
set_up_devices(spec)
made = [one.name.replace("device:", "") for one in tf.config.list_logical_devices()]
reported = settings(spec)

# GPUs that are not there: what is asked of TensorFlow for each of them.
asked = []
gpus = ["gpu a", "gpu b"]
tf.config.list_physical_devices = lambda kind: gpus
tf.config.experimental.set_memory_growth = lambda gpu, on: asked.append([gpu, "growth", on])
tf.config.set_logical_device_configuration = lambda gpu, parts: asked.append(
    [gpu, "limit", [part.memory_limit for part in parts]])
set_up_devices(cpu_spec(backend="gpu", runtime=Runtime(memory_limit_mib=512)))
set_up_devices(cpu_spec(backend="gpu"))
tf32 = [tf.config.experimental.tensor_float_32_execution_enabled()]
exact = cpu_spec(backend="gpu", precision=Precision(tf32="off", deterministic=True),
    runtime=Runtime(memory_limit_mib=512))
server_config(exact, 0)
tf32.append(tf.config.experimental.tensor_float_32_execution_enabled())
graph = tf.compat.v1.wrap_function(lambda: clock([]), [])
read = [float(graph()) for _ in range(2)]
print(json.dumps({"silent": silent, "devices": made, "reported": reported, "asked": asked,
    "gpu": settings(exact), "tf32": tf32, "later": read[0] <= read[1] <= time.time(),
    "clock": sorted({op.type for op in graph.graph.get_operations()} & {"PyFunc", "Timestamp"})}))
"""


def ask(runtime: dict[str, int], **more: str) -> dict[str, object]:
    found: dict[str, object] = answer_of("-c", ASK, json.dumps(runtime), json.dumps(more))
    return found


def test_threads_are_as_in_the_spec_and_are_reported() -> None:
    threads = {"TF_GPU_THREAD_MODE": "gpu_shared", "TF_GPU_THREAD_COUNT": "8"}
    found = ask({"intra_threads": 3, "inter_threads": 5}, **threads)
    assert found["silent"] == {}, "what TensorFlow chooses itself is not reported"
    assert found["devices"] == ["/CPU:0", "/CPU:1"]
    assert found["reported"] == {"intra_op_threads": "3", "inter_op_threads": "5"}
    assert found["gpu"] == {
        "intra_op_threads": "3",
        "inter_op_threads": "5",
        "gpu_threads": "gpu_shared 8",
        "gpu_memory": "512 MiB",
        "tf32": "off",
        "deterministic": "on",
    }
    # TensorFlow's own op for the clock refuses to run beside deterministic ones.
    assert (found["clock"], found["later"]) == (["PyFunc"], True)
    assert found["tf32"] == [True, False]
    # Each GPU gets a limit or may grow, never both.
    assert found["asked"] == [
        ["gpu a", "limit", [512]],
        ["gpu b", "limit", [512]],
        ["gpu a", "growth", True],
        ["gpu b", "growth", True],
    ]
