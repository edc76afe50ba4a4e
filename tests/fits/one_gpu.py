"""The published figures of one GPU that count, and how far the roofline is from them.

The constants of the cores were fitted to them; those of tensor cores to them and to figures of PyTorch
(`tests/published/one_gpu.csv`), since programs differ by up to half in 16 bits.
"""

import functools
import math
from collections import defaultdict
from statistics import median

from gputopo.captures import bundled_names, read_bundled
from gputopo.prediction import Figure, OneGpuJob
from gputopo.reference import (
    GpuExpectation,
    Published,
    expected_gpu,
    expected_of,
    published_figures,
    published_machines,
)
from gputopo.workload import require_workload
from tests import there

TF32_SINCE = 4  # the minor version of TensorFlow 2
WITH_TF32 = ("Ampere", "Ada", "Hopper", "Blackwell")


@functools.cache
def used_figures() -> tuple[Figure, ...]:
    """Return the published images/sec of one GPU with synthetic data, each once, without `left_out`."""
    return tuple(dict.fromkeys(figure for row, figure in _of_one_gpu() if _why_left_out(row) is None))


def left_out() -> dict[Figure, str]:
    """Return the published figures of one GPU that do not count, with the rule that leaves them out."""
    return {figure: why for row, figure in _of_one_gpu() if (why := _why_left_out(row)) is not None}


@functools.cache
def _of_one_gpu() -> tuple[tuple[Published, Figure], ...]:
    found = []
    for row in published_figures():
        rate = _alone(row)
        if (
            rate is None
            or row.is_suspect
            or row.data != "synthetic"
            or not row.program.startswith("tf_cnn_benchmarks")
        ):
            continue
        if row.data_format == "NHWC":  # not the layout that a GPU is trained in
            continue
        gpu = _gpu_of(row)
        if gpu is not None:
            found.append((row, Figure(gpu.name, row.model, row.batch_per_gpu or 0, row.precision, rate)))
    return tuple(found)


def _gpu_of(row: Published) -> GpuExpectation | None:
    if row.machine in bundled_names():
        return expected_of(read_bundled(row.machine).gpus[row.gpus[0]])
    return expected_gpu(published_machines()[row.machine].gpu)


def _alone(row: Published) -> float | None:
    return row.images_per_sec if len(row.gpus) == 1 else row.single_gpu_images_per_sec


def _why_left_out(row: Published) -> str | None:
    """Return the rule by which a figure of one GPU is no measure of that GPU, None if it is one."""
    gpu = _gpu_of(row)
    if gpu is None or gpu.tensor_tflops is None:
        return None
    if row.precision == "fp32":
        if gpu.architecture not in WITH_TF32:
            return None
        # NVIDIA's build of 1.15 has TF32 as well. https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0
        major, _, minor = (row.version or "").partition(".")
        before = major == "2" and minor.isdigit() and int(minor) < TF32_SINCE
        return f"fp32 without TF32, which TensorFlow has since 2.{TF32_SINCE}" if before else None
    slower = (_alone(row) or 0.0) < _fastest_fp32().get(_job(row), 0.0)
    return "slower in fp16 than in fp32 on the same machine, though it has tensor cores" if slower else None


@functools.cache
def _fastest_fp32() -> dict[object, float]:
    """Return the images/sec of one GPU in fp32 by job, the most of each."""
    found: dict[object, float] = {}
    for row, figure in _of_one_gpu():
        if row.precision == "fp32":
            found[_job(row)] = max(figure.images_per_sec, found.get(_job(row), 0.0))
    return found


def _job(row: Published) -> tuple[object, ...]:
    return row.source, row.machine, row.version, row.model, row.xla


def report() -> str:
    """Return how far the constants are from the published figures, by GPU, each network at its median."""
    errors: dict[str, list[float]] = defaultdict(list)
    by_network: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for one in used_figures():
        gpu = there(expected_gpu(one.gpu))
        rate = OneGpuJob(require_workload(one.model), one.batch, one.precision).speed(gpu)
        if rate is not None:
            by_network[one.model].append((one.gpu, math.log(one.images_per_sec / rate)))
    for shares in by_network.values():
        middle = median(share for _, share in shares)
        for name, share in shares:
            errors[name].append(share - middle)
    lines = [
        f"  {gpu:24}{len(some):4} figures: median {math.expm1(median(map(abs, some))):.1%}"
        for gpu, some in sorted(errors.items())
    ]
    return "\n".join(["one GPU by its datasheet, a factor for each network:", *lines])
