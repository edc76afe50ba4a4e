"""What this machine's TensorFlow cannot compute is refused before training, in words."""

from pathlib import Path

import pytest

from gputopo.values.run.events import Device, RankFailed
from tests.launch.forks import answer_of
from tests.launch.train.worker_process import run_worker, trivial_spec

pytestmark = pytest.mark.tensorflow

# GPUs that are not there: the step is taken on CPU devices in their place.
FIRST_STEP = """
import json, sys
import tensorflow as tf
from gputopo.values.errors import GputopoError
from gputopo.launch.train import set_up_devices
from gputopo.launch.train.placement import require_kernels
from gputopo.values.run.spec import Precision
from gputopo.values.run.events import Device
from tests.launch.specs import cpu_spec

set_up_devices(cpu_spec())
gpus = (Device(tower=0, device="/GPU:0", gpu=3), Device(tower=1, device="/GPU:1", gpu=1, gpu_name="RTX 5090"))
wrap, device, taken = tf.compat.v1.wrap_function, tf.device, []
tf.device = lambda name: device(name.replace("GPU", "CPU"))

def wrapped(build, signature):
    graph = wrap(build, signature)
    def step():
        placed = {op.device.rpartition("/")[2] for op in graph.graph.get_operations() if op.type == "Conv2D"}
        taken.append(sorted(placed))
        if len(taken) == fails_at:
            raise tf.errors.InternalError(None, None, sys.argv[1])
        return graph()
    return step

tf.compat.v1.wrap_function = wrapped
answers = []
on_gpus = {"backend": "gpu", "devices": gpus, "data_format": "NCHW"}
for fields, compute, xla, fails_at in (
    (on_gpus, "fp32", False, 9),
    (on_gpus, "fp32", True, 9),
    (on_gpus, "fp32", False, 2),
    ({"data_format": "NCHW"}, "bf16", False, 1),
    ({"data_format": "NHWC"}, "bf16", False, 2),
    ({"data_format": "NCHW"}, "bf16", True, 1),
    ({"data_format": "NHWC"}, "fp32", False, 1),
):
    taken.clear()
    try:
        require_kernels(cpu_spec(**fields, precision=Precision(compute=compute, xla=xla)))
        answers.append([taken[:], None])
    except GputopoError as error:
        answers.append([taken[:], [error.what, error.hint, error.exit_code]])
print(json.dumps(answers))
"""
# tensorflow#99592: no kernel for a GPU of compute capability 12.0.
NO_KERNEL = (
    "{{function_node __wrapped__Mul_device_/job:localhost/replica:0/task:0/device:GPU:1}} "
    "'cuLaunchKernel(function, gridX)' failed with 'CUDA_ERROR_INVALID_HANDLE' [Op:Mul]"
)


def test_a_device_that_cannot_compute_is_refused_with_the_reason_and_a_remedy() -> None:
    plain, xla, failed, *on_cpu = answer_of("-c", FIRST_STEP, NO_KERNEL)
    each = [["device:CPU:0"], ["device:CPU:1"]]
    assert plain == [each, None]
    assert xla == [each, None], "TensorFlow's own kernels are used beside those of XLA"
    taken, (what, hint, code) = failed
    assert (taken, code) == (each, 3)
    assert what.startswith("GPU 1 (RTX 5090) cannot compute with this TensorFlow: 'cuLaunchKernel(")
    assert "CUDA_ERROR_INVALID_HANDLE" in what
    assert "no kernels for this GPU" in hint
    (_, nchw), (_, nhwc), *usual = on_cpu
    assert nchw[0].startswith("/CPU:0 cannot compute in bf16 with --data-format NCHW")
    assert nchw[1].startswith("use --data-format NHWC, or --xla")
    assert nhwc[0].startswith("/CPU:1 cannot compute in bf16 with --data-format NHWC")
    assert nhwc[1].startswith("use --precision fp32, or --xla")
    assert usual == [[[], None], [[], None]], "TensorFlow has these kernels on every machine"


def test_a_forward_pass_refuses_such_a_gpu_too(tmp_path: Path) -> None:
    fails = """
import tensorflow as tf
from gputopo.launch.train.placement import devices, trial_step
def cannot(*given):
    raise tf.errors.InternalError(None, None, "CUDA_ERROR_NO_BINARY_FOR_GPU")
trial_step.try_step = cannot
devices.set_up_devices = lambda spec: None
"""
    gpu = Device(tower=0, device="/CPU:0", gpu=0, gpu_name="RTX 5090")
    spec = trivial_spec(backend="gpu", task="forward", devices=(gpu,))
    code, events, stderr = run_worker(tmp_path, spec, before=fails)
    (failed,) = (event for event in events if isinstance(event, RankFailed))
    assert (code, failed.kind) == (3, "placement"), stderr
    assert failed.cause.endswith("CUDA_ERROR_NO_BINARY_FOR_GPU")
