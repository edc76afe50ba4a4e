"""A saved session against one of now: only what changed beyond the noise of both."""

import math
from collections.abc import Collection, Iterable, Iterator

from gputopo.findings.difference import machine_difference, paired_gpus
from gputopo.findings.measured.direct import DEVIATIONS, noise_share
from gputopo.values.bandwidth import (
    Bandwidth,
    CollectiveRate,
    Conditions,
    CopyLatency,
    CopyRate,
    Failure,
    Latency,
    Rate,
    Sample,
    TransferLatency,
    TransferRate,
    identity,
    with_new_indices,
)
from gputopo.values.difference import BandwidthDifference, Changed, Difference
from gputopo.values.ends import gpus_in
from gputopo.values.grouping import best
from gputopo.values.machine import Machine

Key = tuple[object, ...]
_what = identity("bytes", "nccl")
# Large copies of one machine repeat from day to day within 1 to 2 %, small ones and latencies within some
# 10 % (launch cost, clocks of an idle host). No change below that is reported, however steady the repeats.
# Not measured on hardware.
MIN_CHANGE = 0.03
MIN_CHANGE_SMALL = 0.15


def bandwidth_difference(
    old: Bandwidth, new: Bandwidth, old_machine: Machine | None = None, new_machine: Machine | None = None
) -> BandwidthDifference:
    """Compare two sessions. With both machines GPUs that are renumbered, gone or new are recognised.

    The worst losses stand first, then the gains.
    """
    new_index: dict[int, int] = {}
    missing: set[int] = set()
    added: set[int] = set()
    rest: Difference | None = None
    if old_machine is not None and new_machine is not None:
        rest = machine_difference(old_machine, new_machine)
        pairs = paired_gpus(old_machine, new_machine)
        new_index = {was.index: now.index for was, now in pairs}
        both = [(was.index, now.index) for was, now in pairs if not (was.lost or now.lost)]
        missing = {gpu.index for gpu in old_machine.gpus if not gpu.lost} - {was for was, _ in both}
        added = {gpu.index for gpu in new_machine.gpus if not gpu.lost} - {now for _, now in both}
    others = bool(missing or added)
    of_both = [sample for sample in old.samples if not _is_of(sample, missing, others)]
    of_both_now = [sample for sample in new.samples if not _is_of(sample, added, others)]
    before = _by_key(with_new_indices(sample, new_index) for sample in of_both)
    after = _by_key(of_both_now)
    shared = [key for key in after if key in before]
    changes = [change for key in shared if (change := _change(before[key], after[key]))]
    failed_before = {
        _failed(with_new_indices(failure, new_index))
        for failure in old.failures
        if not _is_of(failure, missing, others)
    }
    fails_now = {_failed(sample) for sample in new.failures}
    return BandwidthDifference(
        changes=tuple(sorted(changes, key=lambda sample: (sample.better, -abs(sample.percent)))),
        compared=len(shared),
        appeared=tuple(dict.fromkeys(_words(sample) for key, sample in after.items() if key not in before)),
        gone=tuple(dict.fromkeys(_words(sample) for key, sample in before.items() if key not in after)),
        failing=tuple(sorted(fails_now - failed_before)),
        working=tuple(sorted(failed_before - fails_now)),
        machine=rest,
        missing_gpus=tuple(sorted(missing)),
        new_gpus=tuple(sorted(added)),
        not_compared=len(old.samples) - len(of_both) + len(new.samples) - len(of_both_now),
    )


def _is_of(measured: Sample | Failure, gpus: Collection[int], others: bool) -> bool:
    """Return whether a number is of one of these GPUs, or of a group that they were in.

    Tests of other programs copy with all GPUs at once and do not name them: where the two sessions had not
    the same GPUs (`others`), such numbers are not compared.
    """
    group = measured.group or ""
    if others and "all" in group and "gpus:" not in group:
        return True
    return not gpus_in(group).union(measured.gpus).isdisjoint(gpus)


def _by_key(samples: Iterable[Sample]) -> dict[Key, Sample]:
    """Return the valid samples by what they are of; of several sizes of large copies, the largest.

    Several runs that disagree are no number to compare.
    """
    return best(
        (
            ((_what(sample), _size(sample)), sample)
            for sample in samples
            if sample.invalid is None and sample.runs_agree and _results(sample)
        ),
        lambda sample: sample.bytes or 0,
    )


def _size(sample: Sample) -> int | None:
    """Return the size that numbers must have in common; None for large copies: they show the same rate."""
    return None if isinstance(sample, Rate) and sample.is_large else sample.bytes


def _results(sample: Sample) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Return the results of a sample, each with its repeats, by unit; the first one shows the most."""
    results = {}
    if isinstance(sample, Rate) and sample.rate:
        results["GB/s"] = sample.rate, sample.repeats_gb_per_s
    if isinstance(sample, CollectiveRate | Latency) and sample.median_us:
        results["us"] = sample.median_us, sample.repeats_us
    return results


def _change(was: Sample, now: Sample) -> Changed | None:
    results, results_now = _results(was), _results(now)
    unit = next((unit for unit in results if unit in results_now), None)
    if unit is None:
        return None
    (before, repeats), (after, repeats_now) = results[unit], results_now[unit]
    latency = unit == "us"
    floor = MIN_CHANGE_SMALL if latency or _size(now) is not None else MIN_CHANGE
    noise = max(floor, DEVIATIONS.value * math.hypot(noise_share(repeats), noise_share(repeats_now)))
    # A share of the smaller one: half and twice are as far apart in both directions.
    if abs(after - before) <= noise * min(before, after):
        return None
    return Changed(
        what=_words(now),
        was=before,
        is_=after,
        percent=round(100 * (after / before - 1), 1),
        noise_percent=round(100 * noise, 1),
        better=(after < before) if latency else (after > before),
        microseconds=latency,
        conditions=tuple(_conditions(was, now)),
    )


def _conditions(was: Sample, now: Sample) -> Iterator[str]:
    for before in was.conditions:
        after = next((later for later in now.conditions if later.gpu == before.gpu), None)
        if after is None or not before.readings or not after.readings:
            continue
        for name, was_value, now_value in (
            ("PCIe generation", before.pcie_gen, after.pcie_gen),
            ("PCIe lanes", before.pcie_width, after.pcie_width),
            ("P-state", before.pstate, after.pstate),
            ("clocks throttled by", _throttle_reasons(before), _throttle_reasons(after)),
            ("memory clock", before.memory_mhz, after.memory_mhz),
        ):
            if was_value is not None and now_value is not None and was_value != now_value:
                yield f"GPU {before.gpu}: {name} {now_value}, was {was_value}"


def _throttle_reasons(conditions: Conditions) -> str | None:
    if conditions.throttle_reasons is None:
        return None
    return ", ".join(sorted(conditions.throttle_reasons)) or "nothing"


def _failed(failure: Failure) -> str:
    how = ", ".join(word for word in (failure.method, failure.path) if word)
    copy = f"{failure.kind} {failure.way}{f' ({how})' if how else ''}"
    return f"{copy}: {failure.reason}"


def _words(sample: Sample) -> str:
    size = _size(sample)
    details = [
        *_details(sample),
        None if size is None else f"{size} bytes",
        f"at once: {sample.group}" if sample.group else None,
    ]
    how = ", ".join(filter(None, details))
    return f"{sample.kind} {sample.way}{f' ({how})' if how else ''}"


def _details(sample: Sample) -> tuple[str | None, ...]:
    """Return how a sample was measured, other than its ends and size."""
    match sample:
        case CopyRate() | CopyLatency():
            memory = {True: "pinned", False: "pageable", None: None}[sample.pinned]
            method = None if sample.method in ("copy_engine", "driver") else sample.method
            node = None if sample.numa_node is None else f"node {sample.numa_node}"
            return memory, method, sample.path, node
        case CollectiveRate():
            in_place = "in place" if sample.in_place else None
            root = None if sample.root is None else f"root {sample.root}"
            words = filter(None, (sample.data_type, sample.reduction, in_place, root))
            return sample.algorithm, sample.model, " ".join(words)
        case TransferRate() | TransferLatency():
            streams = f"{sample.streams} stream{'s' * (sample.streams != 1)}" if sample.streams else None
            return (" ".join(filter(None, (sample.tool, sample.transport, streams))),)
