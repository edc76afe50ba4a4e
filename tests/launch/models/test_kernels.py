"""What this machine's TensorFlow cannot compute is refused before training, in words."""

from pathlib import Path
from typing import Any

import pytest

from gputopo.values import schema
from gputopo.values.run.events import Device, Event, RankFailed, read_events
from tests.launch.forks import answer_of
from tests.launch.train.worker_process import run_worker, trivial_spec

pytestmark = pytest.mark.tensorflow

WITHOUT_ONEDNN = """
import json, os, sys
import tensorflow as tf
from gputopo.values.errors import GputopoError
from gputopo.launch.train import worker
from gputopo.launch.train.placement import require_kernels
from tests.launch.specs import cpu_spec
from gputopo.values.run.spec import Precision

code = worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))])
cpu = tf.config.list_physical_devices("CPU")[0]  # nothing was made: its devices may be set
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
answers = {}
for compute in ("fp32", "bf16", "fp16"):
    for xla in (False, True):
        try:
            require_kernels(cpu_spec(data_format="NCHW", precision=Precision(compute=compute, xla=xla)))
            answers[f"{compute}-{xla}"] = None
        except GputopoError as error:
            answers[f"{compute}-{xla}"] = [error.what, error.hint]
print(json.dumps([code, answers]))
"""


@pytest.fixture(scope="module")
def without_onednn(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[Event], dict[str, Any]]:
    """The worker's exit code and events for a run with channels first; what each type is answered."""
    folder = tmp_path_factory.mktemp("without")
    file, events = folder / "spec.json", folder / "events.jsonl"
    schema.write(file, trivial_spec(data_format="NCHW"))
    events.write_bytes(b"")
    more = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    code, answers = answer_of("-c", WITHOUT_ONEDNN, str(file), str(events), more=more)
    with events.open("rb") as stream:
        return code, list(read_events(stream, origin="events.jsonl")), answers


def test_channels_first_without_onednn_is_refused_before_anything_is_made(
    without_onednn: tuple[int, list[Event], dict[str, Any]],
) -> None:
    code, events, _ = without_onednn
    assert code == 2
    (failed,) = events
    assert "TF_ENABLE_ONEDNN_OPTS=0" in failed.cause  # type: ignore[union-attr]
    assert "NHWC" in failed.remedy  # type: ignore[union-attr]


def test_without_onednn_no_type_is_computed_with_channels_first_but_by_xla(
    without_onednn: tuple[int, list[Event], dict[str, Any]],
) -> None:
    _, _, answers = without_onednn
    for compute in ("fp32", "bf16", "fp16"):
        what, hint = answers[f"{compute}-False"]
        assert what.startswith(f"/CPU:0 cannot compute in {compute} with --data-format NCHW")
        assert "--xla" in hint
        assert answers[f"{compute}-True"] is None


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
for precision, fails_at in ((Precision(), 9), (Precision(xla=True), 9), (Precision(), 2)):
    taken.clear()
    try:
        require_kernels(cpu_spec(backend="gpu", devices=gpus, data_format="NCHW", precision=precision))
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


def test_each_gpu_takes_a_step_first_and_one_that_cannot_has_its_name_and_the_reason() -> None:
    plain, xla, failed = answer_of("-c", FIRST_STEP, NO_KERNEL)
    each = [["device:CPU:0"], ["device:CPU:1"]]
    assert plain == [each, None]
    assert xla == [each, None], "TensorFlow's own kernels are used beside those of XLA"
    taken, (what, hint, code) = failed
    assert (taken, code) == (each, 3)
    assert what.startswith("GPU 1 (RTX 5090) cannot compute with this TensorFlow: 'cuLaunchKernel(")
    assert "CUDA_ERROR_INVALID_HANDLE" in what
    assert "no kernels for this GPU" in hint


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
