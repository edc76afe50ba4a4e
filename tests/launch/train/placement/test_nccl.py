"""The test of NCCL, on CPU devices: TensorFlow takes its collective there and quietly adds in a ring."""

from typing import Any

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

CODE = """
import json
import tensorflow as tf
from gputopo.launch.models import build_model
from gputopo.values.run.spec import Exchange
from gputopo.launch.train import set_up_devices
from gputopo.launch.train.placement import place
from gputopo.values.errors import GputopoError
from tests.launch.train.worker_process import trivial_spec

wrap, ops, told = tf.compat.v1.wrap_function, set(), {}

def wrapped(build, signature):
    graph = wrap(build, signature)
    ops.update(op.type for op in graph.graph.get_operations())
    return graph

tf.compat.v1.wrap_function = wrapped

def placed(name):
    ops.clear()
    phases = told[name] = []
    spec = trivial_spec(towers=2, variable_update="replicated", ps_device=None, all_reduce=name,
        exchange=Exchange(transfer="fp16"))
    emit = lambda event: phases.append([event.phase, sorted(ops & {"Cast", "CollectiveReduceV2"})])
    place(build_model(spec.model, spec), spec, emit)

set_up_devices(trivial_spec(towers=2))
placed("nccl")
placed("copy")
try:
    placed("nccl_op")
except GputopoError as error:
    told["error"] = [error.what, error.hint, error.exit_code]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    found: dict[str, Any] = answer_of("-c", CODE)
    return found


def test_it_is_a_phase_of_its_own_which_no_other_reduction_has(told: dict[str, Any]) -> None:
    assert [phase for phase, _ in told["nccl"]] == ["NCCL test", "building"]
    assert told["copy"] == []


def test_gpus_have_compiled_what_is_not_of_nccl_before_it_begins(told: dict[str, Any]) -> None:
    before, after = (ops for _, ops in told["nccl"])
    assert before == ["Cast"]
    assert after == ["Cast", "CollectiveReduceV2"]


def test_an_error_of_tensorflow_in_it_is_one_of_the_hardware_with_a_remedy(told: dict[str, Any]) -> None:
    assert [phase for phase, _ in told["nccl_op"]] == ["NCCL test"]
    what, hint, code = told["error"]
    assert what.startswith("the reduction 'nccl_op' failed: No OpKernel was registered to support Op 'Nccl")
    assert hint.startswith("use --all-reduce copy; ")
    assert code == 3
