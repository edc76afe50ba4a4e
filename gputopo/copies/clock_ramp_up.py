"""Clock ramp-up in the output of other tools: which low numbers do not mean a slow GPU.

An idle card lowers its memory clock and its PCIe generation, and its next copies are slow. A GTX 1070 copied
85 GB/s within its memory, and 195 GB/s a minute later (published outputs of p2pBandwidthLatencyTest and
bandwidthTest, which do not warm up the card).
"""

from collections.abc import Sequence

import msgspec

from gputopo.copies.physics import fits_cache
from gputopo.reference import expected_gpu
from gputopo.values.bandwidth import Bandwidth, CopyRate
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine

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


class RampUp(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose low numbers were taken during clock ramp-up."""

    gpu: int
    low_gb_per_s: tuple[float, ...]
    full_gb_per_s: float
    full_from: str  # the source of that number, in words
    sure: bool  # the same GPU reached `full_gb_per_s`; otherwise GPUs of the same model did, or should


def ramp_ups(bandwidth: Bandwidth, machine: Machine) -> tuple[RampUp, ...]:
    """Return the GPUs whose copies within their own memory were measured during clock ramp-up.

    Judges only tools that do not warm up. gputopo's own numbers have settled, so a low one is real.
    """
    if not any(tool in bandwidth.source for tool in TOOLS_WITHOUT_WARM_UP):
        return ()
    gpus = machine.by_index
    copies = grouped(
        (gpu, sample)
        for sample in bandwidth.copies
        if sample.kind == "d2d_local" and sample.is_large and (gpu := sample.source.gpu) is not None
    )
    rates: dict[int, list[float]] = {}
    full: dict[int, float] = {}  # the rate of each GPU at full clocks
    for gpu, samples in copies.items():
        sizes = {sample.bytes for sample in samples if sample.bytes is not None}
        if len(sizes) >= FEWEST_SWEPT:  # in a sweep, smaller copies are slower because of their size
            samples = [sample for sample in samples if sample.bytes == max(sizes)]
        rates[gpu] = [sample.rate for sample in samples]
        # A copy that the L2 cache can serve shows no rate at full clocks, even if it is not above the
        # memory's rate.
        from_memory = (sample.rate for sample in samples if not fits_cache(sample, gpus.get(gpu)))
        full[gpu] = max(from_memory, default=0.0)
    names = {index: gpu.name for index, gpu in gpus.items()}
    ramps = []
    for gpu in sorted(rates):
        name = names.get(gpu)
        peers = [full[other] for other in rates if other != gpu and name and names.get(other) == name]
        ramp = _ramp_up(gpu, rates[gpu], full[gpu], max(peers, default=0.0), name)
        ramps += [ramp] if ramp is not None else []
    return tuple(ramps)


def steady_copies(bandwidth: Bandwidth, machine: Machine) -> tuple[CopyRate, ...]:
    """Return the copies without those of clock ramp-up (`ramp_ups`), which do not describe the GPU."""
    low: dict[int | None, tuple[float, ...]] = {
        ramp.gpu: ramp.low_gb_per_s for ramp in ramp_ups(bandwidth, machine)
    }
    return tuple(
        copy
        for copy in bandwidth.copies
        if not (copy.kind == "d2d_local" and copy.is_large)
        or copy.median_gb_per_s not in low.get(copy.source.gpu, ())
    )


def _ramp_up(
    gpu: int, rates: Sequence[float], top: float, top_of_peers: float, name: str | None
) -> RampUp | None:
    """Return a GPU's low rates, if any. `top`: its highest rate; `top_of_peers`: of GPUs of its model."""
    model = expected_gpu(name)
    published = (model.memory_gb_per_s if model else None) or 0.0
    sure = top >= RAMP_UP_SHARE * top_of_peers and top >= RAMP_UP_OF_PUBLISHED * published
    if sure:
        full, whose = top, "the same GPU"
    elif top_of_peers > top and top_of_peers >= RAMP_UP_OF_PUBLISHED * published:
        full, whose = top_of_peers, "a GPU of the same model"
    else:
        full, whose = published, "the published rate of its memory, read and written"
    limit = RAMP_UP_OF_PUBLISHED if full == published else RAMP_UP_SHARE
    low = tuple(rate for rate in rates if rate < limit * full)
    return RampUp(gpu=gpu, low_gb_per_s=low, full_gb_per_s=full, full_from=whose, sure=sure) if low else None
