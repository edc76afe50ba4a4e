"""What this machine's TensorFlow cannot compute is refused before training, in words."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.train.numerics_cases import Found, run_cases

pytestmark = pytest.mark.tensorflow

SERVER = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}


def case(compute: str, data_format: str) -> dict[str, Any]:
    spec = {**SERVER, "batch_size": 2, "precision": {"compute": compute}, "data_format": data_format}
    return {"model": "tiny", "steps": 1, "spec": spec}


def cases() -> dict[str, dict[str, Any]]:
    # The types with channels last are in test_precision.
    return {f"{compute}-NCHW": case(compute, "NCHW") for compute in ("fp32", "bf16", "fp16")}


@pytest.fixture(scope="module")
def with_onednn(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_cases(tmp_path_factory.mktemp("kernels"), 2, cases())


def test_float32_is_computed_with_channels_first_too(with_onednn: Found) -> None:
    assert "losses" in with_onednn["fp32-NCHW"]


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_a_short_type_with_channels_first_is_computed_or_refused_in_words(
    with_onednn: Found, compute: str
) -> None:
    found = with_onednn[f"{compute}-NCHW"]
    if not isinstance(found, str):
        pytest.skip(f"this processor has kernels for {compute} with channels first")
    what, hint = found.splitlines()
    assert what == (
        f"/CPU:0 cannot compute in {compute} with --data-format NCHW: "
        "TensorFlow has no kernels for it on this CPU"
    )
    assert "--data-format NHWC" in hint


def test_channels_first_without_onednn_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    from tests.launch.train.worker_process import run_fresh_worker, trivial_spec

    code, events, _ = run_fresh_worker(tmp_path, trivial_spec(data_format="NCHW"), TF_ENABLE_ONEDNN_OPTS="0")
    assert code == 2
    (failed,) = events
    assert "TF_ENABLE_ONEDNN_OPTS=0" in failed.cause  # type: ignore[union-attr]
    assert "NHWC" in failed.remedy  # type: ignore[union-attr]


ASK_KERNELS = """
import json
import tensorflow as tf
from gputopo.values.errors import GputopoError
from gputopo.launch.models.kernels import require_kernels
from tests.launch.specs import cpu_spec
from gputopo.launch.spec.run_spec import Precision

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
answers = {}
for compute in ("fp32", "bf16", "fp16"):
    for xla in (False, True):
        try:
            require_kernels(cpu_spec(data_format="NCHW", precision=Precision(compute=compute, xla=xla)))
            answers[f"{compute}-{xla}"] = None
        except GputopoError as error:
            answers[f"{compute}-{xla}"] = [error.what, error.hint]
print(json.dumps(answers))
"""


def test_without_onednn_no_type_is_computed_with_channels_first_but_by_xla() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK_KERNELS],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
        },
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    for compute in ("fp32", "bf16", "fp16"):
        what, hint = answers[f"{compute}-False"]
        assert what.startswith(f"/CPU:0 cannot compute in {compute} with --data-format NCHW")
        assert "--xla" in hint
        assert answers[f"{compute}-True"] is None
