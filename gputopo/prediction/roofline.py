"""Seconds in which one GPU trains one batch, from its datasheet: arithmetic, memory traffic, kernel launches.

Nothing overlaps in this model. The products of the forward and backward passes run at a share of the peak
rate, features are written and read again at the memory rate, and each variable takes a fixed time. The
constants are fitted on the published figures of one GPU, for all networks together (`tests.fits.one_gpu`).
"""

import functools
from importlib import resources

import msgspec

from gputopo.reference import GpuExpectation
from gputopo.workload import Workload

# A multiply-accumulate is two operations. The backward pass has twice the products of the forward pass.
OPERATIONS = 6
_NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
# Without tensor cores, products in 16 bits are computed in fp32, because TensorFlow asks cuDNN for that
# (TF_FP16_CONV_USE_FP32_COMPUTE). Half of the moves are of the converted numbers: a GTX 1080 Ti is 1.2 to 1.3
# times as fast. Native 16-bit products are not used even if they are faster (compute capability 6.0 and 7.5).
_CONVERTED_BYTES = 3
_HALF_RATE = ("Volta", "Turing")  # 64 fp32 cores per SM; A100 as well
_WITH_TF32 = ("Ampere", "Ada", "Hopper", "Blackwell")


class PrecisionCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a step costs in one kind of arithmetic.

    - `peak_share`: share of the peak rate that products reach. It can be above 1, because fast algorithms
      (Winograd) need fewer products than are counted;
    - `moves`: how often each feature that training keeps is moved: written, read, and its gradient;
    - `operations`: operations of elementwise kernels for each feature. With tensor cores they are no longer
      hidden: from V100 to B200 they explain the time that memory and tensor cores do not.
    """

    peak_share: float
    moves: float
    operations: float = 0.0


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of the roofline: for fp32 cores, TF32, and 16 bits with tensor cores.

    `kepler_share`: `peak_share` of Kepler, for which cuDNN has no fast kernels. `us_variable`: microseconds
    for each variable.
    """

    cores: PrecisionCosts
    tf32: PrecisionCosts
    half: PrecisionCosts
    kepler_share: float
    us_variable: float


class RooflineFile(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.roofline/1"):
    """The constants, and the published figures of one GPU that they are fitted to."""

    source: str
    constants: Roofline
    figures: tuple[tuple[str, str, int, str, float], ...]  # GPU, model, batch, precision, images/sec


@functools.cache
def roofline_file() -> RooflineFile:
    """Return `gputopo/reference/data/roofline.json`, which `python -m tests.fits.programs` writes."""
    data = resources.files("gputopo.reference.data").joinpath("roofline.json").read_bytes()
    return msgspec.json.decode(data, type=RooflineFile)


def step_seconds(gpu: GpuExpectation, workload: Workload, batch: int, precision: str) -> float | None:
    """Return the seconds of one step, None if the datasheet does not have a required rate."""
    constants, memory = roofline_file().constants, _memory_gb_per_s(gpu)
    if gpu.fp32_tflops is None or memory is None:
        return None
    costs, peak, number = constants.cores, gpu.fp32_tflops, _NUMBER_BYTES[precision]
    share = constants.kepler_share if gpu.architecture == "Kepler" else costs.peak_share
    if gpu.tensor_tflops is not None and (precision == "fp16" or gpu.architecture in _WITH_TF32):
        costs = constants.tf32 if precision == "fp32" else constants.half
        share, peak = costs.peak_share, gpu.tensor_tflops
        if precision == "fp32":  # TF32 at half of the rate of FP16
            peak = max(gpu.fp32_tflops, peak / 2)
    elif precision != "fp32":
        number = _CONVERTED_BYTES
    # Half of the cores of these chips are counted in the peak rate; the other half issue as many operations.
    issued = gpu.fp32_tflops * (2 if gpu.architecture in _HALF_RATE or "A100" in gpu.name else 1)
    features = workload.feature_bytes / 4
    seconds = OPERATIONS * workload.multiply_accumulates / (peak * share * 1e12)
    seconds += features * costs.operations / (issued * 1e12)
    seconds += features * number * costs.moves / (memory * 1e9)
    variables = sum(len(block.variables) for block in workload.blocks)
    return batch * seconds + 1e-6 * constants.us_variable * variables


def _memory_gb_per_s(gpu: GpuExpectation) -> float | None:
    if gpu.memory_gb_per_s is not None or gpu.max_memory_mhz is None or gpu.memory_bus_bits is None:
        return gpu.memory_gb_per_s
    return gpu.max_memory_mhz * 2 * gpu.memory_bus_bits / 8 / 1000
