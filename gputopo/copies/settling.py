"""Clock ramp-up: which repeats are used, and which low numbers do not mean a slow GPU.

An idle card lowers its memory clock and its PCIe generation, and its next copies are slow. A GTX 1070 copied
85 GB/s within its memory, and 195 GB/s a minute later (published outputs of p2pBandwidthLatencyTest and
bandwidthTest, which do not warm up the card).
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.copies.physics import fits_cache
from gputopo.reference import expected_gpu
from gputopo.values.bandwidth import AGREE_SHARE, Bandwidth, Sample
from gputopo.values.grouping import grouped
from gputopo.values.machine import Gpu, Machine

# A repeat that is this many median deviations from the median is not noise: 3 sigma, 1.4826 * 3. Not
# measured.
DEVIATIONS = 4.5
# One high value among low ones may be a clock error; two that agree are not.
FEWEST_LATER = 2
# In published outputs, GPUs reach 0.43 to 0.88 of their rate during ramp-up. Afterwards, repeats are within 2
# %.
RAMP_UP_SHARE = 0.90
# If nothing was measured at full clocks, a number must be far below the memory's published rate: the lowest
# rate observed at full clocks is 0.73 of it (GTX 1080 Ti).
RAMP_UP_OF_PUBLISHED = 0.60
# bandwidthTest and p2pBandwidthLatencyTest have one size each. More sizes for one card are a sweep.
FEWEST_SWEPT = 3
# These tools measure without warm-up, so their numbers may come from clock ramp-up.
TOOLS_WITHOUT_WARM_UP = ("bandwidthTest", "p2pBandwidthLatencyTest")


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Which repeats are used. `discarded` are the first repeats, taken during clock ramp-up."""

    counted: tuple[float, ...]
    discarded: tuple[float, ...] = ()
    more: bool = False  # whether further repeats are needed
    settled: bool = False  # whether enough of the used repeats agree


class RampUp(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose low numbers were taken during clock ramp-up."""

    gpu: int
    low_gb_per_s: tuple[float, ...]
    full_gb_per_s: float
    full_from: str  # the source of that number, in words
    sure: bool  # the same GPU reached `full_gb_per_s`; otherwise GPUs of the same model did, or should


def settle(values: Sequence[float], wanted: int = 5, max_repeats: int = 15) -> Settled:
    """Judge the repeats of one number, in the order they were taken; higher is faster.

    Discards the leading values that are well below the value on which the later ones agree. More repeats are
    needed while fewer than `wanted` of the rest are within `AGREE_SHARE` of their median, up to `max_repeats`
    in total. Raises ValueError if `wanted` is not positive or above `max_repeats`.
    """
    if not 1 <= wanted <= max_repeats:
        raise ValueError(f"{wanted} repeats are wanted of at most {max_repeats}")
    first = _first_counted(values)
    counted = tuple(values[first:])
    middle = median(counted) if counted else 0.0
    agreeing = sum(abs(value - middle) <= AGREE_SHARE * middle for value in counted)
    return Settled(
        counted=counted,
        discarded=tuple(values[:first]),
        more=agreeing < wanted and len(values) < max_repeats,
        settled=agreeing >= wanted,
    )


def ramp_ups(bandwidth: Bandwidth, machine: Machine) -> tuple[RampUp, ...]:
    """Return the GPUs whose copies within their own memory were measured during clock ramp-up.

    Judges only tools that do not warm up. gputopo's own numbers have settled, so a low one is real.
    """
    if not any(tool in bandwidth.source for tool in TOOLS_WITHOUT_WARM_UP):
        return ()
    gpus = machine.by_index
    copies = _local_copies(bandwidth.samples)
    rates = {gpu: [sample.rate for sample in own] for gpu, own in copies.items()}
    # A copy that the L2 cache can serve shows no rate at full clocks, even if it is not above the memory's
    # rate.
    full = {
        gpu: max((sample.rate for sample in own if not fits_cache(sample, gpus.get(gpu))), default=0.0)
        for gpu, own in copies.items()
    }
    found = (_ramp_up(gpu, rates, full, gpus) for gpu in sorted(rates))
    return tuple(one for one in found if one is not None)


def ramp_up_samples(bandwidth: Bandwidth, machine: Machine) -> frozenset[int]:
    """Return the positions of the samples from clock ramp-up (`ramp_ups`), which do not describe the GPU."""
    low = {one.gpu: one.low_gb_per_s for one in ramp_ups(bandwidth, machine)}
    return frozenset(
        place
        for place, sample in enumerate(bandwidth.samples)
        if sample.kind == "d2d_local"
        and sample.is_large
        and (gpu := sample.source.gpu) is not None
        and sample.median_gb_per_s in low.get(gpu, ())
    )


def _first_counted(values: Sequence[float]) -> int:
    """Return how many leading values were taken during clock ramp-up: the most that the rule allows."""
    for first in range(len(values) - FEWEST_LATER, 0, -1):
        later = values[first:]
        middle = median(later)
        deviation = median(abs(value - middle) for value in later)
        floor = middle - max(AGREE_SHARE * middle, DEVIATIONS * deviation)
        if all(value < floor for value in values[:first]):
            return first
    return 0


def _local_copies(samples: Iterable[Sample]) -> dict[int, Sequence[Sample]]:
    found = grouped(
        (gpu, one)
        for one in samples
        if one.kind == "d2d_local" and (gpu := one.source.gpu) is not None and one.is_large
    )
    return {gpu: _of_one_size(own) for gpu, own in found.items()}


def _of_one_size(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return only the largest size of a sweep: smaller copies are slower because of their size."""
    sizes = {sample.bytes for sample in samples if sample.bytes is not None}
    if len(sizes) < FEWEST_SWEPT:
        return samples
    return [sample for sample in samples if sample.bytes == max(sizes)]


def _ramp_up(
    gpu: int, rates: Mapping[int, Sequence[float]], full_rates: Mapping[int, float], gpus: Mapping[int, Gpu]
) -> RampUp | None:
    names = {index: one.name for index, one in gpus.items()}
    own, name = rates[gpu], names.get(gpu)
    top = full_rates[gpu]
    peers = [full_rates[other] for other in rates if other != gpu and name and names.get(other) == name]
    reached = max(peers, default=0.0)
    row = expected_gpu(name)
    published = (row.memory_gb_per_s if row else None) or 0.0
    sure = top >= RAMP_UP_SHARE * reached and top >= RAMP_UP_OF_PUBLISHED * published
    if sure:
        full, whose = top, "the same GPU"
    elif reached > top and reached >= RAMP_UP_OF_PUBLISHED * published:
        full, whose = reached, "a GPU of the same model"
    else:
        full, whose = published, "the published rate of its memory, read and written"
    limit = RAMP_UP_OF_PUBLISHED if full == published else RAMP_UP_SHARE
    low = tuple(one for one in own if one < limit * full)
    return RampUp(gpu=gpu, low_gb_per_s=low, full_gb_per_s=full, full_from=whose, sure=sure) if low else None
