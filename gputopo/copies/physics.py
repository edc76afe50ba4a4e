"""Checks every number before it is shown or used: it must be physically possible and consistent.

- The rate of a copy within a GPU counts every byte read and written, so it is never above the memory's
  rate. A higher rate is the L2 cache's (`cache`), and so is the rate of a copy that fits into the cache and
  is faster than larger copies. Any other copy that fits is valid, but is not used as the rate at full
  clocks.
- A copy with the host is never faster than the widest link of the model: PCIe, NVLink-C2C to a Grace CPU,
  or NVLink to a POWER CPU. A copy between GPUs is never faster than all NVLinks of the model, or PCIe
  (`above_link`).
- Both directions at once carry at most twice the rate of the faster single direction, and over NVLinks more
  than one direction. A copy that runs with others is not faster than by itself (`inconsistent`). Any other
  low number is valid: both directions through one host memory may be slow, or one direction while links
  save power.
- A number that one tool reports several times is one sample of several `runs`, with their median.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import median_low
from typing import Literal, NamedTuple

from msgspec.structs import replace

from gputopo.reference import GpuExpectation, expected_nvlink, expected_of, known_gpus, pcie_max
from gputopo.values.bandwidth import (
    Bandwidth,
    CollectiveRate,
    CopyRate,
    Expectation,
    Invalid,
    Kind,
    Latency,
    Method,
    Run,
    Sample,
    identity,
)
from gputopo.values.ends import End
from gputopo.values.grouping import grouped, maxima
from gputopo.values.machine import Gpu, Machine

# Tolerance for both directions at once over one direction: up to 2.02 times on separate links (published
# outputs of p2pBandwidthLatencyTest). Not measured; chosen because it is well beyond noise.
AT_ONCE_NOISE = 1.10
# Over NVLinks, each direction has its own lanes, so the sum of both directions is at least this multiple of
# one. It is 1.87 to 1.98 in published outputs (A100, H100, H200, H800). Not measured; chosen far below these.
AT_ONCE_NVLINK = 1.3
# A copy with others that is this many times faster than by itself is not noise: it is a sum of both
# directions, which is twice as fast (nvbandwidth 0.2 prints 301 to 328 GB/s if one direction has 172). Not
# measured; chosen between the two.
AT_ONCE_SUM = 1.5
# NVLinks of these generations also connect a GPU to an IBM POWER CPU (AC922, S822LC).
_POWER_GENERATIONS = (1, 2)

HostLink = Literal["PCIe", "NVLink-C2C", "NVLink to the CPU", "NVLink or NVLink-C2C"]


class RateLimit(NamedTuple):
    """The highest possible rate, in GB/s, and what has this limit."""

    gb_per_s: float
    source: str


def checked(bandwidth: Bandwidth, machine: Machine) -> Bandwidth:
    """Return the bandwidth with `invalid` set for each impossible number, and several runs as one sample.

    Idempotent: checking the result again with the same machine does not change it.
    """
    gpus = machine.by_index
    joined = one_of_each_run([_with(sample, _beyond(sample, gpus)) for sample in bandwidth.samples])
    valid = [sample for sample in joined if isinstance(sample, CopyRate) and sample.invalid is None]
    cached, contradicted = _faster_than_larger(valid, gpus), [*_contradicted(valid, gpus)]
    samples = []
    for sample in joined:
        reason: Invalid | None = "inconsistent" if sample in contradicted else sample.invalid
        samples.append(_with(sample, "cache" if sample in cached else reason))
    if samples == [*bandwidth.samples]:
        return bandwidth
    return replace(bandwidth, samples=tuple(samples))


def _beyond(sample: Sample, gpus: Mapping[int, Gpu]) -> Invalid | None:
    """Return why a rate is impossible for its link or memory; None if it is possible."""
    if not isinstance(sample, CopyRate):
        return None
    limit = limit_of(sample, gpus)
    if limit is None or sample.rate <= limit.gb_per_s:
        return None
    return "cache" if sample.kind == "d2d_local" else "above_link"


def memory_limit(gpu: Gpu | None) -> RateLimit:
    """Return the memory rate of the fastest board with the GPU's name, or of any GPU if it is unknown."""
    row = _row(gpu)
    if row is not None and row.memory_gb_per_s is not None:
        return RateLimit(row.memory_max_gb_per_s or row.memory_gb_per_s, f"the memory of {row.name}")
    fastest = max(known_gpus(), key=lambda model: model.memory_gb_per_s or 0.0)
    return RateLimit(fastest.memory_gb_per_s or inf, f"any known memory ({fastest.name})")


def fits_cache(sample: CopyRate, gpu: Gpu | None) -> bool:
    """Return whether the model's L2 cache is at least as large as a copy within the GPU, and can serve it."""
    row = _row(gpu)
    return bool(row and row.l2_mib and sample.bytes and sample.bytes <= row.l2_mib * 2**20)


def l2_mib(gpu: Gpu | None) -> float | None:
    """Return the L2 cache size of a GPU's model in MiB, or None if unknown."""
    row = _row(gpu)
    return row.l2_mib if row else None


def pcie_limit(gpu: Gpu | None) -> RateLimit:
    """Return the data rate of the model's widest PCIe link, or of Gen6 x16 if unknown."""
    row = _row(gpu)
    if row is None or row.pcie_generation is None:
        return RateLimit(pcie_max(gpu), "Gen6 x16, the widest PCIe link")
    return RateLimit(pcie_max(gpu), f"Gen{row.pcie_generation} x{row.pcie_width}, the link of {row.name}")


def host_limit(gpu: Gpu | None) -> RateLimit:
    """Return the highest rate between a GPU and host memory in one direction."""
    row, pcie = _row(gpu), pcie_limit(gpu)
    if row is None or row.c2c_gb_per_s is not None:
        models = [row] if row else known_gpus()
        return RateLimit(max(model.c2c_gb_per_s or 0.0 for model in models), "NVLink-C2C")
    if row.nvlinks and not row.nvlink_by_bridge and row.nvlink_generation in _POWER_GENERATIONS:
        return max(pcie, _nvlink_limit(row))
    return pcie


def host_link(sample: CopyRate, gpu: Gpu | None) -> HostLink:
    """Return the link of a copy with the host: from the model, or because PCIe cannot carry the rate."""
    row = _row(gpu)
    if row is not None and row.c2c_gb_per_s is not None:
        return "NVLink-C2C"
    if sample.rate <= sample.directions * pcie_limit(gpu).gb_per_s:
        return "PCIe"
    return "NVLink or NVLink-C2C" if row is None else "NVLink to the CPU"


def pair_limit(gpu: Gpu | None) -> RateLimit:
    """Return the highest rate from a GPU to another in one direction, over NVLink or PCIe."""
    row, pcie = _row(gpu), pcie_limit(gpu)
    if row is not None and row.nvlinks is None and row.name.startswith("GeForce"):
        return pcie
    if row is None or row.nvlinks is None:  # for some models, the table has no bridges
        return _widest_nvlinks()
    return max(pcie, _nvlink_limit(row))


def on_path_of(sample: CopyRate, samples: Iterable[CopyRate]) -> list[CopyRate]:
    """Return the other large copies on a sample's path, in both directions."""
    path = _path(sample)
    if path is None:
        return []
    return [other for other in samples if other.is_large and other != sample and _path(other) == path]


def limit_of(sample: CopyRate, gpus: Mapping[int, Gpu]) -> RateLimit | None:
    """Return the highest possible rate of a sample, in the sample's unit, or None for kinds without one."""
    ends = [gpu for gpu in sample.gpu_ends if gpu is not None]
    if sample.kind == "d2d_local":
        return memory_limit(gpus.get(ends[0])) if ends else None
    if not ends:
        return None
    between = sample.kind.startswith("p2p") or len(ends) > 1
    limits = [(pair_limit if between and sample.is_direct else host_limit)(gpus.get(index)) for index in ends]
    lowest = min(limits, key=lambda limit: limit.gb_per_s)
    directions = sample.directions
    return RateLimit(
        directions * lowest.gb_per_s,
        f"both directions of {lowest.source}" if directions > 1 else lowest.source,
    )


def _row(gpu: Gpu | None) -> GpuExpectation | None:
    return expected_of(gpu) if gpu else None


def gpu_at(index: int | None, gpus: Mapping[int, Gpu]) -> Gpu | None:
    """Return the GPU at an end, or None if the end is not a known GPU."""
    return None if index is None else gpus.get(index)


def _nvlink_limit(row: GpuExpectation) -> RateLimit:
    link = expected_nvlink(row.nvlink_generation, row.chip)
    if link is None or not row.nvlinks:
        return RateLimit(0.0, "no NVLink")
    return RateLimit(row.nvlinks * link.link_gb_per_s, f"{row.nvlinks} NVLinks of {row.name}")


@functools.cache
def _widest_nvlinks() -> RateLimit:
    return max(map(_nvlink_limit, known_gpus()), key=lambda limit: limit.gb_per_s)


def larger_copies(sample: CopyRate, samples: Iterable[CopyRate], gpu: Gpu | None) -> list[CopyRate]:
    """Return the valid copies within the GPU of a sample that its L2 cache cannot serve."""
    return [
        copy
        for copy in samples
        if copy.kind == "d2d_local"
        and copy.source == sample.source
        and copy.is_large
        and not fits_cache(copy, gpu)
    ]


def _faster_than_larger(samples: Sequence[CopyRate], gpus: Mapping[int, Gpu]) -> list[CopyRate]:
    """Return the copies that fit in the L2 cache and are faster than all larger ones: it served a part."""
    faster = []
    for sample in samples:
        gpu = gpu_at(sample.source.gpu, gpus)
        if sample.kind == "d2d_local" and sample.is_large and fits_cache(sample, gpu):
            larger = max((copy.rate for copy in larger_copies(sample, samples, gpu)), default=inf)
            if sample.rate > AT_ONCE_NOISE * larger:
                faster.append(sample)
    return faster


def _with(sample: Sample, invalid: Invalid | None) -> Sample:
    return sample if sample.invalid == invalid else replace(sample, invalid=invalid)


# Contradictions


class _Path(NamedTuple):
    """A path in both directions: its two ends in order, the copy method, and the host memory."""

    ends: tuple[End, End]
    staged: bool | None
    method: Method | None
    pinned: bool | None
    numa_node: int | None


def _contradicted(samples: Sequence[CopyRate], gpus: Mapping[int, Gpu]) -> Iterator[CopyRate]:
    """Yield the samples that contradict other samples of the same path.

    These are: both directions at once above twice the faster single direction; over NVLinks, where each
    direction has its own lanes, both directions that are about as fast as one; and copies with others that
    are far faster than the same copy by itself.
    """
    paths = grouped(
        (path, sample)
        for sample in samples
        if (path := _path(sample)) and sample.is_large and sample.runs_agree
    )
    for path, copies in paths.items():
        alone = maxima(
            (copy.source, copy.rate) for copy in copies if copy.kind != "bidirectional" and copy.group is None
        )
        fastest = max(alone.values(), default=inf)
        pcie = max(pcie_limit(gpu_at(end.gpu, gpus)).gb_per_s for end in path.ends)
        over_nvlink = path.staged is False and alone and fastest > pcie
        lowest = AT_ONCE_NVLINK * fastest if over_nvlink else 0.0
        for copy in copies:
            if copy.kind == "bidirectional":
                if not lowest <= copy.rate <= AT_ONCE_NOISE * 2 * fastest:
                    yield copy
            elif copy.group is not None and copy.rate > AT_ONCE_SUM * alone.get(copy.source, inf):
                yield copy


def _path(sample: CopyRate) -> _Path | None:
    """Return the path of a copy between two GPUs or with the host, or None for others."""
    if sample.host_gpu is not None:
        staged = None
    elif sample.pair is not None and (sample.kind != "bidirectional" or sample.path):
        staged = not sample.is_direct
    else:
        return None
    low, high = sorted(sample.ends)
    method = None if sample.is_by_copy_engine else sample.method
    return _Path((low, high), staged, method, sample.pinned, sample.numa_node)


# Copies for which no tool has two tests in one run, if the driver chooses the method.
_PRINTED_ONCE: tuple[Kind, ...] = ("h2d", "d2h", "d2d_local")


def one_of_each_run(samples: Sequence[Sample]) -> list[Sample]:
    """Join the samples of several runs with one key, at the position of the first."""
    key_of = identity()
    by_key = grouped(
        (key_of(sample), sample)
        for sample in samples
        if sample.invalid is None and not isinstance(sample, CollectiveRate)
    )
    joined: list[Sample] = []
    for sample in samples:
        same = by_key.get(key_of(sample), ()) if sample.invalid is None else ()
        if len(same) < 2 or not _are_runs(same):
            joined.append(sample)
        elif sample is same[0]:
            joined.append(_joined(same))
    return joined


def _are_runs(samples: Sequence[Sample]) -> bool:
    """Return whether samples with one key come from several runs.

    If the samples do not say their run, this is true only for copies that no tool tests twice in one run.
    Between GPUs, p2pBandwidthLatencyTest has two tests: writing and reading, or with and without P2P if all
    are staged. nvbandwidth also has two tests by copy engine.
    """
    named = {sample.run for sample in samples} | {run.name for sample in samples for run in sample.runs}
    first = samples[0]
    if isinstance(first, CopyRate) and first.kind in _PRINTED_ONCE and first.method in ("driver", None):
        return True
    return len(named) > 1


def _joined(samples: Sequence[Sample]) -> Sample:
    """Return one sample for all runs: the lower median of the fastest sample in each run."""
    in_us = isinstance(samples[0], Latency)
    values = [(sample, sample.value) for sample in samples]
    runs = {run for sample in samples for run in sample.runs if run.name is not None}
    unnamed = [run for sample in samples for run in sample.runs if run.name is None]
    single = grouped((sample.run, value) for sample, value in values if value is not None and not sample.runs)
    if len(single) == 1 and None in single:
        unnamed += [Run(name=None, value=value) for value in single.pop(None)]
    runs |= {Run(name=name, value=(min if in_us else max)(of_run)) for name, of_run in single.items()}
    ordered = sorted((*runs, *unnamed), key=lambda run: (run.name or "", run.value))
    middle = median_low(run.value for run in ordered) if ordered else 0.0
    first = min(values, key=lambda pair: (pair[0].run or "", pair[1] or 0.0))[0]
    first = replace(first, run=None, runs=tuple(ordered), spread_percent=None, conditions=())
    if isinstance(first, Latency):
        return replace(first, median_us=middle, repeats_us=())
    return replace(first, median_gb_per_s=middle, repeats_gb_per_s=(), expectation=Expectation())
