"""The speed of one GPU by its datasheet."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction import OneGpuJob
from gputopo.reference import GpuExpectation, expected_gpu, known_gpus
from gputopo.workload import require_workload, workload_names
from tests import there

RATED = [gpu for gpu in known_gpus() if gpu.fp32_tflops and (gpu.memory_gb_per_s or gpu.max_memory_mhz)]


def speed(
    gpu: str | GpuExpectation, model: str = "resnet50", batch: int = 64, precision: str = "fp32"
) -> float:
    """Return the images/sec."""
    row = there(expected_gpu(gpu) if isinstance(gpu, str) else gpu)
    return there(OneGpuJob(require_workload(model), batch, precision).speed(row))


def test_every_gpu_with_reference_rates_has_a_speed_for_every_model_and_precision() -> None:
    assert len(RATED) >= 130
    jobs = [(name, precision) for name in workload_names() for precision in ("fp32", "fp16", "bf16")]
    for number, gpu in enumerate(RATED):
        name, precision = jobs[number % len(jobs)]
        assert speed(gpu, name, precision=precision) > 0
    for name, precision in jobs:
        assert speed(RATED[0], name, precision=precision) > 0


def test_a_gpu_without_a_peak_rate_has_none() -> None:
    bare = GpuExpectation(name="RTX 9090", architecture="Ada", source="invented")
    assert OneGpuJob(require_workload("resnet50"), 64, "fp32").speed(bare) is None


@given(st.sampled_from(RATED), st.sampled_from(workload_names()), st.integers(1, 4096), st.floats(1.0, 8.0))
def test_a_faster_gpu_never_takes_longer(gpu: GpuExpectation, name: str, batch: int, times: float) -> None:
    faster = msgspec.structs.replace(gpu, fp32_tflops=there(gpu.fp32_tflops) * times)
    for precision in ("fp32", "fp16"):
        before, after = (speed(row, name, batch, precision) for row in (gpu, faster))
        assert after >= before * (1 - 1e-9)
