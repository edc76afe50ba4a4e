"""Seconds in which one GPU trains one batch, by its datasheet: arithmetic, memory traffic, kernel launches.

Without overlap: the products of forward and backward at a share of the peak rate, the features that are
written and read again at the memory rate, and a fixed time for each variable. The constants are fitted on the
published figures of one GPU (`gputopo.prediction.one_gpu.published`), all networks together. Pure.
"""

from typing import NamedTuple

from gputopo.reference.expectations import GpuExpectation
from gputopo.workload.workloads import Workload

# Shares of the peak rate that products in convolutions reach. Above 1: fast algorithms (Winograd) need fewer
# products than are counted; TF32 is taken at half of the rate of FP16.
CORES_SHARE = 1.45
TENSOR_SHARE = 0.68
TF32_SHARE = 1.27
# cuDNN has no fast kernels for it: K80 against Maxwell and Pascal GPUs in the same benchmarks.
KEPLER_SHARE = 0.3
# How often each feature that training keeps is moved: written, read and its gradient, by several kernels.
MOVES_FP32, MOVES_FP16 = 18.4, 15.0
SECONDS_PER_VARIABLE = 60e-6
# A multiply-accumulate is two operations; backward has twice the products of forward.
OPERATIONS = 6
_NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_WITH_TF32 = ("Ampere", "Ada", "Hopper", "Blackwell")


class Clocks(NamedTuple):
    """Share of the expected clocks that a GPU reaches under load."""

    core: float = 1.0
    memory: float = 1.0


FULL_CLOCKS = Clocks()


def step_seconds(
    gpu: GpuExpectation, workload: Workload, batch: int, precision: str, clocks: Clocks = FULL_CLOCKS
) -> float | None:
    """Return the seconds of one step, None where the datasheet lacks a rate."""
    peak = _peak(gpu, precision)
    memory = _memory_gb_per_s(gpu)
    if peak is None or memory is None:
        return None
    half = precision != "fp32"
    moved = workload.feature_bytes / 4 * _NUMBER_BYTES[precision] * (MOVES_FP16 if half else MOVES_FP32)
    arithmetic = OPERATIONS * workload.multiply_accumulates / (peak * 1e12 * clocks.core)
    variables = sum(len(block.variables) for block in workload.blocks)
    return batch * (arithmetic + moved / (memory * 1e9 * clocks.memory)) + SECONDS_PER_VARIABLE * variables


def _peak(gpu: GpuExpectation, precision: str) -> float | None:
    """Return the rate that products reach, in 10^12 operations a second, before the factor of the network."""
    if gpu.fp32_tflops is None:
        return None
    tf32 = gpu.architecture in _WITH_TF32
    if gpu.tensor_tflops is not None and (precision == "fp16" or (precision == "bf16" and tf32)):
        return gpu.tensor_tflops * TENSOR_SHARE
    if gpu.tensor_tflops is not None and tf32:
        return max(gpu.fp32_tflops, gpu.tensor_tflops / 2) * TF32_SHARE
    return gpu.fp32_tflops * (KEPLER_SHARE if gpu.architecture == "Kepler" else CORES_SHARE)


def _memory_gb_per_s(gpu: GpuExpectation) -> float | None:
    if gpu.memory_gb_per_s is not None or gpu.max_memory_mhz is None or gpu.memory_bus_bits is None:
        return gpu.memory_gb_per_s
    return gpu.max_memory_mhz * 2 * gpu.memory_bus_bits / 8 / 1000
