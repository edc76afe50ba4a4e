"""Clock ramp-up: which repeats count, and which low numbers do not mean a slow GPU.

An idle card has lowered its memory clock and its PCIe generation. The first copies after that are slow: a
GTX 1070 copied 85 GB/s inside itself, and 195 GB/s a minute later (published outputs of
p2pBandwidthLatencyTest and bandwidthTest; neither warms the card up).
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.copies.numbers import is_large, rate
from gputopo.reference.expectations import expected_gpu
from gputopo.values.bandwidth import Bandwidth, Sample, gpu_of
from gputopo.values.machine import Machine

# Repeats of one copy on a sound machine lie within 1 to 2 % of each other; this is well beyond. Ours.
AGREE_SHARE = 0.05
# A repeat as far from the median as this many median deviations is no noise (3 sigma, 1.4826 * 3). Ours.
DEVIATIONS = 4.5
# One high value among low ones may be a slip of the clock; two that agree are not.
FEWEST_LATER = 2
# Published GPUs reach 0.43 to 0.88 of their rate during ramp-up; after it they repeat within 2 %.
WAKING_SHARE = 0.90
# A waking card without anything awake to compare with must be far below its memory's rate: the least
# that a card awake was seen to copy is 0.73 of it (GTX 1080 Ti).
WAKING_OF_PUBLISHED = 0.60
# bandwidthTest and p2pBandwidthLatencyTest have one size each; more sizes of one card are a sweep.
FEWEST_SWEPT = 3
# These start to measure at once, and their numbers may be of cards that wake up.
TOOLS_WITHOUT_WARM_UP = ("bandwidthTest", "p2pBandwidthLatencyTest")


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Which repeats count. `discarded` came first and were taken during clock ramp-up.

    `more`: whether further repeats are needed; `settled`: whether enough of those that count agree.
    """

    counted: tuple[float, ...]
    discarded: tuple[float, ...] = ()
    more: bool = False
    settled: bool = False


class Waking(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose low numbers were taken during clock ramp-up.

    `sure`: the same GPU reached `awake_gb_per_s`; else only GPUs of the same model did, or should.
    `awake_from`: whose number that is, in words.
    """

    gpu: int
    low_gb_per_s: tuple[float, ...]
    awake_gb_per_s: float
    awake_from: str
    sure: bool


def settle(values: Sequence[float], wanted: int = 5, most: int = 15) -> Settled:
    """Judge the repeats of one number, in the order they were taken; higher is faster.

    The leading values that lie well below all that the later ones agree on are discarded. More are needed
    while fewer than `wanted` of the rest are within `AGREE_SHARE` of their median, up to `most` in all.
    Raises ValueError if `wanted` is not positive or above `most`.
    """
    if not 1 <= wanted <= most:
        raise ValueError(f"{wanted} repeats are wanted of at most {most}")
    first = _first_awake(values)
    counted = tuple(values[first:])
    middle = median(counted) if counted else 0.0
    agreeing = sum(abs(value - middle) <= AGREE_SHARE * middle for value in counted)
    return Settled(
        counted=counted,
        discarded=tuple(values[:first]),
        more=agreeing < wanted and len(values) < most,
        settled=agreeing >= wanted,
    )


def waking(bandwidth: Bandwidth, machine: Machine) -> tuple[Waking, ...]:
    """Return the GPUs whose copies within their own memory were measured during clock ramp-up.

    Only tools that do not warm up are judged: gputopo's own numbers are settled, and a low one means it.
    """
    if not any(tool in bandwidth.source for tool in TOOLS_WITHOUT_WARM_UP):
        return ()
    rates = _local_rates(bandwidth.samples)
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    found = (_waking(gpu, rates, names) for gpu in sorted(rates))
    return tuple(one for one in found if one is not None)


def waking_samples(bandwidth: Bandwidth, machine: Machine) -> frozenset[int]:
    """Return the positions of those samples that `waking` recognises: they do not describe the GPU."""
    low = {one.gpu: one.low_gb_per_s for one in waking(bandwidth, machine)}
    return frozenset(
        place
        for place, sample in enumerate(bandwidth.samples)
        if sample.kind == "d2d_local"
        and is_large(sample)
        and (gpu := gpu_of(sample.source)) is not None
        and sample.median_gb_per_s in low.get(gpu, ())
    )


def _first_awake(values: Sequence[float]) -> int:
    """Return how many leading values were taken during clock ramp-up: the most for which the rule holds."""
    for first in range(len(values) - FEWEST_LATER, 0, -1):
        later = values[first:]
        middle = median(later)
        deviation = median(abs(value - middle) for value in later)
        floor = middle - max(AGREE_SHARE * middle, DEVIATIONS * deviation)
        if all(value < floor for value in values[:first]):
            return first
    return 0


def _local_rates(samples: Iterable[Sample]) -> dict[int, list[float]]:
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        gpu = gpu_of(sample.source)
        if sample.kind == "d2d_local" and gpu is not None and is_large(sample):
            found.setdefault(gpu, []).append(sample)
    return {gpu: [rate(sample) for sample in _of_one_size(own)] for gpu, own in found.items()}


def _of_one_size(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Of a sweep over sizes give the largest only: its smaller copies are slower by their size."""
    sizes = {sample.bytes for sample in samples if sample.bytes is not None}
    if len(sizes) < FEWEST_SWEPT:
        return samples
    return [sample for sample in samples if sample.bytes == max(sizes)]


def _waking(gpu: int, rates: Mapping[int, Sequence[float]], names: Mapping[int, str | None]) -> Waking | None:
    own, name = rates[gpu], names.get(gpu)
    top = max(own)
    peers = [max(rates[other]) for other in rates if other != gpu and name and names.get(other) == name]
    reached = max(peers, default=0.0)
    row = expected_gpu(name)
    published = (row.memory_gb_per_s if row else None) or 0.0
    sure = top >= WAKING_SHARE * reached and top >= WAKING_OF_PUBLISHED * published
    if sure:
        awake, whose = top, "the same GPU"
    elif reached > top and reached >= WAKING_OF_PUBLISHED * published:
        awake, whose = reached, "a GPU of the same model"
    else:
        awake, whose = published, "the published rate of its memory, read and written"
    limit = WAKING_OF_PUBLISHED if awake == published else WAKING_SHARE
    low = tuple(one for one in own if one < limit * awake)
    return (
        Waking(gpu=gpu, low_gb_per_s=low, awake_gb_per_s=awake, awake_from=whose, sure=sure) if low else None
    )
