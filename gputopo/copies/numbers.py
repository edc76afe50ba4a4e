"""The samples of a session that can be judged: large copies, one number a path, with its noise; of a soak."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, median_low
from typing import TypeVar

import msgspec

from gputopo.values.bandwidth import COLLECTIVES, READING, Kind, Path, Run, Sample, Soak, gpu_of, node_of
from gputopo.values.machine import Machine
from gputopo.values.machine import Sample as TimedSample

# From this size on the cost of starting a copy (some 10 us) is under 3 % of its time even on 16 lanes of
# generation 5. bandwidthTest copies 32 MiB, p2pBandwidthLatencyTest 40 MB, nvbandwidth 512 MiB.
LARGE_BYTES = 16 * 1024 * 1024
# Repeats of one copy on a sound machine lie within 1 to 2 % of each other; this is well beyond. Ours.
AGREE_SHARE = 0.05
# A rate below this share of what is expected of it is never "as expected". Not measured; chosen because sound
# copies of published outputs reach 0.83 of it and more, except between CPU sockets.
LOW_SHARE = 0.70
# 1.4826 median deviations are one standard deviation of normal noise.
DEVIATION = 1.4826

# Copies of which no tool has two tests in one run, where the driver chooses the method.
_PRINTED_ONCE: tuple[Kind, ...] = ("h2d", "d2h", "d2d_local")
Pair = tuple[int, int]
Key = TypeVar("Key")


def judged(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Return the samples that ran alone and whose copies were large enough to show the link.

    Copies within a GPU share nothing: a group of them is only the table of a tool. Of several runs that
    disagree only one that is below its limit in every run.
    """
    return (
        sample
        for sample in samples
        if (sample.group is None or sample.kind == "d2d_local")
        and is_large(sample)
        and (runs_agree(sample) or max(run.value for run in sample.runs) < floor_of(sample))
    )


def floor_of(sample: Sample) -> float:
    """Return the rate in GB/s below which a sample is lower than expected; 0 where nothing is expected."""
    return max(sample.expected_low_gb_per_s or 0.0, LOW_SHARE * (sample.expected_gb_per_s or 0.0))


def is_large(sample: Sample) -> bool:
    """Return whether a sample is a valid rate of copies that are large, or of a size that is unknown."""
    return (
        sample.invalid is None
        and bool(sample.median_gb_per_s)
        and (sample.bytes is None or sample.bytes >= LARGE_BYTES)
    )


def runs_agree(sample: Sample) -> bool:
    """Return whether all runs of a tool gave about the same number: within noise of their median."""
    middle = median(run.value for run in sample.runs) if sample.runs else 0.0
    return all(abs(run.value - middle) <= AGREE_SHARE * middle for run in sample.runs)


def by_copy_engine(sample: Sample) -> bool:
    """Return whether a copy was made as programs make it: not by a kernel, nor read by the destination."""
    return sample.method not in (*READING, "kernel_write")


def host_copies(samples: Iterable[Sample], kind: Kind, machine: Machine) -> dict[int, Sample]:
    """Return the fastest pinned copy of each GPU from (h2d) or to (d2h) the memory of its own node.

    Where several were taken (sizes, runs, NUMA nodes where the GPU's node is unknown), the
    fastest shows what the link carries.
    """
    found: dict[int, Sample] = {}
    for sample in judged(samples):
        gpu = gpu_of(sample.destination if kind == "h2d" else sample.source)
        if gpu is None or sample.kind != kind or sample.pinned is False or not by_copy_engine(sample):
            continue
        if not is_far(sample, gpu, machine):
            _keep_faster(found, gpu, sample)
    return found


def pair_copies(samples: Iterable[Sample], kind: Kind, path: Path | None = None) -> dict[Pair, Sample]:
    """Return the fastest copy of each ordered pair of GPUs; `path` counts for `bidirectional` only.

    Those read by the destination's copy engine where no pair has others.
    """
    written, read = dict[Pair, Sample](), dict[Pair, Sample]()
    for sample in judged(samples):
        pair = pair_of(sample)
        if pair is None or sample.kind != kind or (kind == "bidirectional" and sample.path != path):
            continue
        if by_copy_engine(sample):
            _keep_faster(written, pair, sample)
        elif sample.method == "copy_engine_read":
            _keep_faster(read, pair, sample)
    return written or read


def pair_of(sample: Sample) -> Pair | None:
    """Return source and destination where both are GPUs and differ."""
    source, destination = gpu_of(sample.source), gpu_of(sample.destination)
    return None if source is None or destination is None or source == destination else (source, destination)


def host_gpu(sample: Sample) -> int | None:
    """Return the one GPU of a copy from or to the host."""
    source, destination = gpu_of(sample.source), gpu_of(sample.destination)
    if (source is None) == (destination is None):
        return None
    return source if destination is None else destination


def is_far(sample: Sample, gpu: int, machine: Machine) -> bool:
    """Return whether the host memory of a copy is known to lie on another node than the GPU."""
    near = next((one.numa_node for one in machine.gpus if one.index == gpu), None)
    node = memory_node(sample)
    return near is not None and node is not None and near >= 0 and node != near


def memory_node(sample: Sample) -> int | None:
    """Return the node of the host memory of a copy, None where it was not bound or is unknown."""
    if sample.numa_node is not None:
        return sample.numa_node
    node = node_of(sample.source)
    return node if node is not None else node_of(sample.destination)


def rate(sample: Sample) -> float:
    """Return the rate of a judged sample in GB/s."""
    return sample.median_gb_per_s or 0.0


def rates(samples: Mapping[int, Sample]) -> dict[int, float]:
    """Return the rates in GB/s of samples by GPU."""
    return {gpu: rate(sample) for gpu, sample in samples.items()}


def noise_share(repeats: tuple[float, ...]) -> float:
    """Return one standard deviation of repeats as a share of their median; 0 where there are under three."""
    if len(repeats) < 3:
        return 0.0
    middle = median(repeats)
    deviation = DEVIATION * median(abs(repeat - middle) for repeat in repeats)
    return deviation / middle if middle > 0 else 0.0


def _keep_faster(found: dict[Key, Sample], key: Key, sample: Sample) -> None:
    if key not in found or rate(sample) > rate(found[key]):
        found[key] = sample


# Ours: fewer have no first and last quarter to compare.
MIN_INTERVALS = 4


def copied_bytes(soak: Soak) -> dict[int, int]:
    """Return the bytes that each GPU received and sent."""
    total: dict[int, int] = {}
    for interval in soak.intervals:
        for gpu, count in interval.copied_bytes.items():
            total[gpu] = total.get(gpu, 0) + count
    return total


def ends(soak: Soak, gpu: int, kind: Kind, *, receives: bool = False) -> tuple[float, float] | None:
    """Return the rate of a GPU's copies of a kind in the first and the last quarter of its intervals.

    Of a GPU with several others the median pair of those that it sends to, or `receives` from, so that one
    slow GPU is not that of all; None where no copy ran in MIN_INTERVALS intervals.
    """
    series: dict[tuple[str, str], list[float]] = {}
    for interval in soak.intervals:
        for one in interval.rates:
            if one.kind == kind and gpu == gpu_of(one.destination if receives else one.source):
                series.setdefault((one.source, one.destination), []).append(one.gb_per_s)
    found = [rates for rates in series.values() if len(rates) >= MIN_INTERVALS]
    if not found:
        return None
    quarters = [(rates[: len(rates) // 4], rates[-(len(rates) // 4) :]) for rates in found]
    return (
        statistics.median_high(median(first) for first, _ in quarters),
        statistics.median_high(median(last) for _, last in quarters),
    )


def temperatures(samples: Sequence[TimedSample], gpu: int) -> list[int]:
    """Return the temperatures of a GPU over the samples."""
    facts = (one for sample in samples for one in sample.gpus if one["index"] == gpu)
    return [one["temperature_c.gpu"] for one in facts if one.get("temperature_c.gpu") is not None]


def one_of_each_run(samples: Sequence[Sample]) -> list[Sample]:
    """Join the samples of one key that are of several runs, at the place of the first of them."""
    by_key: dict[tuple[object, ...], list[Sample]] = {}
    for one in samples:
        if one.invalid is None and one.kind not in COLLECTIVES:
            by_key.setdefault(_run_key(one), []).append(one)
    joined: list[Sample] = []
    for one in samples:
        own = by_key.get(_run_key(one), ()) if one.invalid is None else ()
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
    own: dict[str | None, list[float]] = {}
    for one, value in values:
        if value is not None and not one.runs:
            own.setdefault(one.run, []).append(value)
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


def _run_key(sample: Sample) -> tuple[object, ...]:
    return (
        sample.kind,
        sample.source,
        sample.destination,
        sample.bytes,
        sample.pinned,
        sample.method,
        sample.path,
        sample.group,
        sample.with_reverse,
        sample.numa_node,
    )
