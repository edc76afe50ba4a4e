"""The samples of a session that can be judged: large copies, one number a path, with its noise; of a soak."""

from collections.abc import Sequence
from statistics import median, median_low

import msgspec

from gputopo.values.bandwidth import COLLECTIVES, Kind, Run, Sample

# 1.4826 median deviations are one standard deviation of normal noise.
DEVIATION = 1.4826

# Copies of which no tool has two tests in one run, where the driver chooses the method.
_PRINTED_ONCE: tuple[Kind, ...] = ("h2d", "d2h", "d2d_local")


def noise_share(repeats: tuple[float, ...]) -> float:
    """Return one standard deviation of repeats as a share of their median; 0 where there are under three."""
    if len(repeats) < 3:
        return 0.0
    middle = median(repeats)
    deviation = DEVIATION * median(abs(repeat - middle) for repeat in repeats)
    return deviation / middle if middle > 0 else 0.0


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
