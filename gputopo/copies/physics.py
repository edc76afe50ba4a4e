"""The check of every number before it is shown or used: what physics forbids, and what contradicts itself.

- A copy within a GPU counts every byte read and written, so that it never outruns the memory: a higher rate
  is of the L2 cache (`cache`), and so is that of a copy that fits into the cache and outruns larger ones.
  Any other that fits stays valid: a slow one is slow. As the rate at full clocks it does not count.
- A copy with the host never outruns the widest link that the model has: PCIe, NVLink-C2C to a Grace CPU, or
  NVLink to a POWER CPU. Between GPUs it never outruns all NVLinks of the model, or PCIe (`above_link`).
- Both directions at once carry at most twice what the faster one carries alone, over NVLinks also more than
  one; a copy among others is no faster than alone (`inconsistent`). Any other low number stays valid: it is
  low, as both directions through one host memory may be, or one direction while links save power.
- A number that one tool gave several times is one sample of several `runs`, with their median.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import median_low
from typing import Literal, NamedTuple

import msgspec

from gputopo.reference.copied_links import pcie_max
from gputopo.reference.expectations import GpuExpectation, expected_gpu, expected_nvlink, known_gpus
from gputopo.values.bandwidth import Bandwidth, Invalid, Kind, Method, Run, Sample, identity
from gputopo.values.ends import End
from gputopo.values.grouping import grouped, maxima
from gputopo.values.machine import Gpu, Machine

# Both directions at once over one alone: up to 2.02 on links of their own (published outputs of
# p2pBandwidthLatencyTest). Not measured; chosen because it is well beyond noise.
AT_ONCE_NOISE = 1.10
# Over NVLinks, where each direction has its own lanes, both at once are no sum below this share of one: they
# have 1.87 to 1.98 in published outputs (A100, H100, H200, H800). Ours, far below.
AT_ONCE_NVLINK = 1.3
# A copy among others that beats the same copy alone by this much is no noise: a sum of both directions is
# twice as fast (nvbandwidth 0.2 prints 301 to 328 GB/s where one direction has 172). Ours, between the two.
AT_ONCE_SUM = 1.5
# NVLinks of these generations also connect a GPU to an IBM POWER CPU (AC922, S822LC).
_POWER_GENERATIONS = (1, 2)

HostLink = Literal["PCIe", "NVLink-C2C", "NVLink to the CPU", "NVLink or NVLink-C2C"]


class RateLimit(NamedTuple):
    """The highest rate that is possible, in GB/s, and whose it is."""

    gb_per_s: float
    source: str


def checked(bandwidth: Bandwidth, machine: Machine) -> Bandwidth:
    """Return the bandwidth with `invalid` set where a number cannot be, and several runs as one sample.

    Idempotent: what it returned, checked again with the same machine, is the same.
    """
    gpus = machine.by_index
    bare = [msgspec.structs.replace(one, invalid=None) if one.invalid else one for one in bandwidth.samples]
    limited: list[Sample] = []
    for one in bare:
        limit = limit_of(one, gpus)
        beyond = limit is not None and one.rate > limit.gb_per_s
        why: Invalid = "cache" if one.kind == "d2d_local" else "above_link"
        limited.append(_with(one, why if beyond else None))
    joined = one_of_each_run(limited)
    valid = [one for one in joined if one.invalid is None]
    cached, contradicted = _faster_than_larger(valid, gpus), [*_contradicted(valid, gpus)]
    samples = tuple(
        _with(one, "cache" if one in cached else "inconsistent" if one in contradicted else None)
        for one in joined
    )
    return bandwidth if samples == bandwidth.samples else msgspec.structs.replace(bandwidth, samples=samples)


def memory_limit(gpu: Gpu | None) -> RateLimit:
    """Return the published memory rate of a GPU, of the fastest board of its name; else of any known GPU."""
    row = _row(gpu)
    if row is not None and row.memory_gb_per_s is not None:
        return RateLimit(row.memory_max_gb_per_s or row.memory_gb_per_s, f"the memory of {row.name}")
    fastest = max(known_gpus(), key=lambda one: one.memory_gb_per_s or 0.0)
    return RateLimit(fastest.memory_gb_per_s or inf, f"any known memory ({fastest.name})")


def fits_cache(sample: Sample, gpu: Gpu | None) -> bool:
    """Return whether the L2 cache of the model is as large as a copy within the GPU, and can serve it."""
    row = _row(gpu)
    return bool(row and row.l2_mib and sample.bytes and sample.bytes <= row.l2_mib * 2**20)


def l2_mib(gpu: Gpu | None) -> float | None:
    """Return the size of the L2 cache of a GPU's model, None where unknown."""
    row = _row(gpu)
    return row.l2_mib if row else None


def pcie_limit(gpu: Gpu | None) -> RateLimit:
    """Return the data rate of the widest PCIe link of the model; of 16 lanes of generation 6 if unknown."""
    row = _row(gpu)
    if row is None or row.pcie_generation is None:
        return RateLimit(pcie_max(gpu), "Gen6 x16, the widest PCIe link")
    return RateLimit(pcie_max(gpu), f"Gen{row.pcie_generation} x{row.pcie_width}, the link of {row.name}")


def host_limit(gpu: Gpu | None) -> RateLimit:
    """Return the highest rate between a GPU and host memory in one direction."""
    row, pcie = _row(gpu), pcie_limit(gpu)
    if row is None or row.c2c_gb_per_s is not None:
        rates = [row] if row else [one for one in known_gpus() if one.c2c_gb_per_s]
        return RateLimit(max(one.c2c_gb_per_s or 0.0 for one in rates), "NVLink-C2C")
    if row.nvlinks and not row.nvlink_by_bridge and row.nvlink_generation in _POWER_GENERATIONS:
        return max(pcie, _nvlink_limit(row), key=lambda one: one.gb_per_s)
    return pcie


def host_link(sample: Sample, gpu: Gpu | None) -> HostLink:
    """Return the kind of link that a copy with the host went over: by the model, or as no PCIe carries it."""
    row = _row(gpu)
    if row is not None and row.c2c_gb_per_s is not None:
        return "NVLink-C2C"
    if sample.rate <= sample.directions * pcie_limit(gpu).gb_per_s:
        return "PCIe"
    return "NVLink or NVLink-C2C" if row is None else "NVLink to the CPU"


def pair_limit(gpu: Gpu | None) -> RateLimit:
    """Return the highest rate between a GPU and another one in one direction, over NVLink or PCIe."""
    row, pcie = _row(gpu), pcie_limit(gpu)
    if row is not None and row.nvlinks is None and row.name.startswith("GeForce"):
        return pcie
    if row is None or row.nvlinks is None:  # of some models the bridges are not in the table
        return _widest_nvlinks()
    return max(pcie, _nvlink_limit(row), key=lambda one: one.gb_per_s)


def on_path_of(sample: Sample, samples: Iterable[Sample]) -> list[Sample]:
    """Return the large copies on the path of a sample in both directions, but not itself."""
    path = _path(sample)
    return [
        one for one in samples if path is not None and _path(one) == path and one != sample and one.is_large
    ]


def limit_of(sample: Sample, gpus: Mapping[int, Gpu]) -> RateLimit | None:
    """Return the highest possible rate of a sample, as the sample counts it; None for kinds without one."""
    ends = [gpu for gpu in sample.gpu_ends if gpu is not None]
    if sample.kind == "d2d_local":
        return memory_limit(gpus.get(ends[0])) if ends else None
    if not ends or sample.kind not in ("h2d", "d2h", "bidirectional", "p2p_direct", "p2p_staged"):
        return None
    between = sample.kind.startswith("p2p") or len(ends) > 1
    limits = [(pair_limit if between and sample.is_direct else host_limit)(gpus.get(index)) for index in ends]
    lowest = min(limits, key=lambda one: one.gb_per_s)
    both = sample.directions
    return RateLimit(
        both * lowest.gb_per_s, f"both directions of {lowest.source}" if both > 1 else lowest.source
    )


def gpu_at(index: int | None, gpus: Mapping[int, Gpu]) -> Gpu | None:
    """Return the GPU of an end, None if it is no GPU or an unknown one."""
    return None if index is None else gpus.get(index)


def _row(gpu: Gpu | None) -> GpuExpectation | None:
    return expected_gpu(gpu.name, gpu.pci_device_id) if gpu else None


def _nvlink_limit(row: GpuExpectation) -> RateLimit:
    link = expected_nvlink(row.nvlink_generation, row.chip)
    if link is None or not row.nvlinks:
        return RateLimit(0.0, "no NVLink")
    return RateLimit(row.nvlinks * link.link_gb_per_s, f"{row.nvlinks} NVLinks of {row.name}")


@functools.cache
def _widest_nvlinks() -> RateLimit:
    return max(map(_nvlink_limit, known_gpus()), key=lambda one: one.gb_per_s)


def larger_copies(sample: Sample, samples: Iterable[Sample], gpu: Gpu | None) -> list[Sample]:
    """Return the valid copies within the GPU of a sample that its L2 cache cannot serve."""
    return [
        one
        for one in samples
        if one.kind == "d2d_local"
        and one.source == sample.source
        and one.is_large
        and not fits_cache(one, gpu)
    ]


def _faster_than_larger(samples: Sequence[Sample], gpus: Mapping[int, Gpu]) -> list[Sample]:
    """Return the copies that the L2 cache can serve and that outrun all larger ones: it served a part."""
    found = []
    for one in samples:
        gpu = gpu_at(one.source.gpu, gpus)
        if one.kind == "d2d_local" and one.is_large and fits_cache(one, gpu):
            larger = max((copy.rate for copy in larger_copies(one, samples, gpu)), default=inf)
            if one.rate > AT_ONCE_NOISE * larger:
                found.append(one)
    return found


def _with(sample: Sample, invalid: Invalid | None) -> Sample:
    return sample if invalid is None else msgspec.structs.replace(sample, invalid=invalid)


# Contradictions


class _Path(NamedTuple):
    """A path in both directions: its two ends in order, how its bytes are moved, which host memory."""

    ends: tuple[End, End]
    staged: bool | None
    method: Method | None
    pinned: bool | None
    numa_node: int | None


def _contradicted(samples: Sequence[Sample], gpus: Mapping[int, Gpu]) -> Iterator[Sample]:
    """Yield the samples that cannot be, since others of the same path are as they are.

    Both directions at once above twice the faster one alone; over NVLinks, where each direction has its own
    lanes, also those that are about as fast as one alone. Copies among others that are far faster than in the
    same direction alone.
    """
    paths = grouped(
        (path, one) for one in samples if (path := _path(one)) and one.is_large and one.runs_agree
    )
    for path, found in paths.items():
        both = [one for one in found if one.kind == "bidirectional"]
        one_way = [one for one in found if one.kind != "bidirectional"]
        alone = maxima((one.source, one.rate) for one in one_way if one.group is None)
        fastest = max(alone.values(), default=inf)
        pcie = max(pcie_limit(gpu_at(end.gpu, gpus)).gb_per_s for end in path.ends)
        over_nvlink = path.staged is False and alone and fastest > pcie
        lowest = AT_ONCE_NVLINK * fastest if over_nvlink else 0.0
        yield from (one for one in both if not lowest <= one.rate <= AT_ONCE_NOISE * 2 * fastest)
        among = (one for one in one_way if one.group is not None)
        yield from (one for one in among if one.rate > AT_ONCE_SUM * alone.get(one.source, inf))


def _path(sample: Sample) -> _Path | None:
    """Return the path of a copy between two GPUs, or with the host; None for others."""
    if sample.kind in ("h2d", "d2h", "bidirectional") and sample.host_gpu is not None:
        staged = None
    elif sample.pair is not None and (
        sample.kind in ("p2p_direct", "p2p_staged") or (sample.kind == "bidirectional" and sample.path)
    ):
        staged = not sample.is_direct
    else:
        return None
    low, high = sorted(sample.ends)
    method = None if sample.is_by_copy_engine else sample.method
    return _Path((low, high), staged, method, sample.pinned, sample.numa_node)


# Copies of which no tool has two tests in one run, where the driver chooses the method.
_PRINTED_ONCE: tuple[Kind, ...] = ("h2d", "d2h", "d2d_local")


def one_of_each_run(samples: Sequence[Sample]) -> list[Sample]:
    """Join the samples of one key that are of several runs, at the place of the first of them."""
    of = identity()
    by_key = grouped((of(one), one) for one in samples if one.invalid is None and not one.is_collective)
    joined: list[Sample] = []
    for one in samples:
        own = by_key.get(of(one), ()) if one.invalid is None else ()
        if len(own) < 2 or not _are_runs(own):
            joined.append(one)
        elif one is own[0]:
            joined.append(_joined(own))
    return joined


def _are_runs(samples: Sequence[Sample]) -> bool:
    """Return whether samples of one key are of several runs.

    Where no run is named, only copies of which no tool has two tests in one run. Of those between GPUs
    p2pBandwidthLatencyTest has one by writing and one by reading, or with P2P and without where all are
    staged; nvbandwidth has those by copy engine twice as well.
    """
    named = {one.run for one in samples} | {run.name for one in samples for run in one.runs}
    printed_once = samples[0].kind in _PRINTED_ONCE and samples[0].method in ("driver", None)
    return len(named) > 1 or printed_once


def _joined(samples: Sequence[Sample]) -> Sample:
    """Return one sample of all runs: the lower median of the fastest of each run."""
    in_us = samples[0].kind == "latency"
    values = [(one, one.median_us if in_us else one.median_gb_per_s) for one in samples]
    runs = {run for one in samples for run in one.runs if run.name is not None}
    unnamed = [run for one in samples for run in one.runs if run.name is None]
    own = grouped((one.run, value) for one, value in values if value is not None and not one.runs)
    if len(own) == 1 and None in own:
        unnamed += [Run(name=None, value=value) for value in own.pop(None)]
    runs |= {Run(name=name, value=(min if in_us else max)(found)) for name, found in own.items()}
    ordered = sorted((*runs, *unnamed), key=lambda run: (run.name or "", run.value))
    middle = median_low(run.value for run in ordered) if ordered else None
    first = min(values, key=lambda one: (one[0].run or "", one[1] or 0.0))[0]
    return msgspec.structs.replace(
        first,
        median_us=middle if in_us else None,
        median_gb_per_s=None if in_us else middle,
        run=None,
        runs=tuple(ordered),
        repeats_gb_per_s=(),
        repeats_us=(),
        spread_percent=None,
        conditions=(),
        expected_gb_per_s=None,
        expected_low_gb_per_s=None,
        expected_source=None,
    )
