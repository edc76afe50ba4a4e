"""Without a GPU: TensorFlow has a kernel for GPUs for every op that is placed on a tower's device.

Soft placement is off, so one op without such a kernel would stop every run on GPUs.
"""

from typing import Any

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    parts: dict[str, Any] = answer_of("-m", "tests.launch.train.gpu_kernels_process")
    if not parts["gpu_build"]:
        pytest.skip("this TensorFlow is a build without any GPU kernel")
    return parts


def test_every_op_of_a_tower_can_run_on_a_gpu(found: dict[str, Any]) -> None:
    assert found["core"]["nodes"] > 1000
    assert found["core"]["without"] == []
    assert found["core"]["nowhere"] == []


def test_the_mark_of_the_weights_waits_for_all_of_them_and_for_no_kernel_of_the_gpu(
    found: dict[str, Any],
) -> None:
    """Its op on the GPU has a kernel on the host, and no layer waits for it."""
    assert found["marks"] == {
        "device": "/device:CPU:1",
        "on host": True,
        "waits for others": 0,
        "gates": 0,
        "after the start": True,
    }


def test_every_op_of_numerics_can_run_on_a_gpu(found: dict[str, Any]) -> None:
    numerics = found["numerics"]
    assert numerics["nodes"] > 250
    assert numerics["short"] == 6, "two convolutions of three towers"
    assert numerics["branches"] > 15, "the updates are inside branches"
    assert numerics["without"] == []
    assert numerics["nowhere"] == [], "decay, clipping and updates are on their variable's device"


def test_every_op_of_keras_models_methods_and_strategies_can_run_on_a_gpu(found: dict[str, Any]) -> None:
    trainers = found["trainers"]
    assert trainers["nodes"] > 1500
    assert trainers["without"] == []
    assert trainers["nowhere"] == []
