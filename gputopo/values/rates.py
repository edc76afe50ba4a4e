"""The samples of a session that can be judged: large copies, one rate per path; and the speeds of pairs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from gputopo.values.bandwidth import (
    KERNELS,
    Bandwidth,
    CopyRate,
    Kind,
    Pair,
    Path,
    gb,
)
from gputopo.values.ends import End
from gputopo.values.grouping import best, grouped
from gputopo.values.machine import Machine


def judged(samples: Iterable[CopyRate]) -> Iterator[CopyRate]:
    """Return the samples that ran by themselves with copies large enough for the rate of the link.

    Copies within a GPU share nothing: their group is only a table of the tool. If several runs disagree, the
    sample is included only if it is below its limit in every run.
    """
    return (
        sample
        for sample in samples
        if (sample.group is None or sample.kind == "d2d_local")
        and sample.is_large
        and (sample.runs_agree or max(sample.run_values) < sample.expectation.floor_gb_per_s)
    )


def host_copies(samples: Iterable[CopyRate], kind: Kind, machine: Machine) -> dict[int, CopyRate]:
    """Return the fastest pinned copy of each GPU from (h2d) or to (d2h) the memory of its own NUMA node.

    If there are several (sizes, runs, or NUMA nodes because the GPU's node is unknown), the fastest one shows
    the rate of the link.
    """
    return best(
        (
            (gpu, sample)
            for sample in judged(samples)
            if sample.kind == kind and sample.pinned is not False and sample.is_by_copy_engine
            if (gpu := sample.host_gpu) is not None and not is_far(sample, gpu, machine)
        ),
        lambda sample: sample.rate,
    )


def host_link_rates(samples: Iterable[CopyRate], kind: Kind, machine: Machine) -> dict[int, float]:
    """Return the rates in GB/s of `host_copies` by GPU."""
    return {gpu: sample.rate for gpu, sample in host_copies(samples, kind, machine).items()}


def pair_copies(samples: Iterable[CopyRate], kind: Kind, path: Path | None = None) -> dict[Pair, CopyRate]:
    """Return the fastest copy of each ordered pair of GPUs. `path` is used for `bidirectional` only.

    Copies that the destination's copy engine reads are used only if no pair has others.
    """
    copies = [
        (pair, sample)
        for sample in judged(samples)
        if (pair := sample.pair) and sample.kind == kind and (kind != "bidirectional" or sample.path == path)
    ]
    written = [(pair, sample) for pair, sample in copies if sample.is_by_copy_engine]
    read = [(pair, sample) for pair, sample in copies if sample.method == "copy_engine_read"]
    return best(written or read, lambda sample: sample.rate)


def ends_of_groups(samples: Iterable[CopyRate]) -> dict[str | None, set[End]]:
    """Return the ends of the copies of each group: two ends if one GPU copied with the host, or one pair."""
    by_group = grouped((sample.group, end) for sample in samples for end in sample.ends)
    return {group: set(ends) for group, ends in by_group.items()}


def is_far(sample: CopyRate, gpu: int, machine: Machine) -> bool:
    """Return whether the host memory of a copy is known to be on another NUMA node than the GPU."""
    near = next((other_gpu.numa_node for other_gpu in machine.gpus if other_gpu.index == gpu), None)
    nodes = (sample.numa_node, sample.source.node, sample.destination.node)
    known = [node for node in nodes if node is not None]
    return near is not None and near >= 0 and known[:1] not in ([], [near])


# Pairs within 10 % are equally fast. Not measured; chosen because a pair that is measured twice differs by a
# few percent, and the smallest step between two kinds of link (one generation, one NVLink of three) is a
# third.
SAME_SPEED = 1.10
# Direct copies are called slower than staged ones from 3 % on, as in the finding
# p2p.direct_slower_than_staged: published pairs that were measured twice differ by less.
CLEARLY_SLOWER = 1.03

_PATHS: tuple[Path | None, ...] = ("direct", "staged", None)


class PairSpeed(NamedTuple):
    """The rate of a pair in its slower direction by the faster path; `direct`, `staged`: by each path.

    `both`: the sum of both directions at once if nothing else was measured; one direction has at least half
    of it. `runs`: the rates of several runs that disagree; `gb_per_s` is their median.
    """

    gb_per_s: float
    path: Path | None  # None: unknown
    direct: float | None
    staged: float | None
    both: float | None = None
    runs: tuple[float, ...] = ()

    @property
    def says(self) -> str:
        """Return `measured 11.3 GB/s, direct`, with the rate of direct copies if these are clearly slower."""
        if self.both is not None:
            words = f"measured {gb(self.both)} GB/s both directions"
        else:
            words = f"measured {gb(self.gb_per_s)} GB/s"
        if self.runs:
            words += f" ({gb(min(self.runs))} to {gb(max(self.runs))} in {len(self.runs)} runs)"
        if self.path is not None:
            words += f", {self.path}"
        if self.path == "staged" and self.direct is not None and self.direct_is_slower:
            direct = self.direct if self.both is None else 2 * self.direct
            return f"{words}; direct is slower: {gb(direct)} GB/s"
        return words

    @property
    def direct_is_slower(self) -> bool:
        """Whether copying through the host is clearly faster than copying directly."""
        return (
            self.direct is not None and self.staged is not None and self.staged > self.direct * CLEARLY_SLOWER
        )


def pair_speeds(bandwidth: Bandwidth | None) -> dict[Pair, PairSpeed]:
    """Return the speed of every pair that was measured in both directions, low index first.

    It is the rate of the slower direction, each by the faster of direct and staged. If a direction was not
    measured by itself, it is half of the sum of both at once. Only valid copies that ran by themselves are
    used; of several, the fastest large one. Copies by kernels are used only if no pair has a copy by the
    driver.
    """
    samples = bandwidth.copies if bandwidth else ()
    ways = grouped(((a, b), (path, sample)) for (a, b, path), sample in single_paths(samples).items())
    one_way = {pair: _speed_of(dict(copies)) for pair, copies in ways.items()}
    at_once = {pair: _speed_of(copies) for pair, copies in _both_at_once(samples).items()}
    speeds: dict[Pair, PairSpeed] = {}
    for a, b in sorted({(min(pair), max(pair)) for pair in (*one_way, *at_once)}):
        if (a, b) in one_way and (b, a) in one_way:
            speeds[a, b] = min(one_way[a, b], one_way[b, a], key=lambda speed: speed.gb_per_s)
        elif (a, b) in at_once:
            speeds[a, b] = at_once[a, b]
    return speeds


def _speed_of(copies: Mapping[Path | None, CopyRate]) -> PairSpeed:
    """Return the speed by the faster path, in one direction."""
    rates = {path: sample.one_way_rate for path, sample in copies.items()}
    path = max((path for path in _PATHS if path in rates), key=lambda path: rates[path])
    fastest = copies[path]
    runs = () if fastest.runs_agree else tuple(fastest.run_values)
    at_once = fastest.rate if fastest.directions > 1 else None
    return PairSpeed(rates[path], path, rates.get("direct"), rates.get("staged"), at_once, runs)


def single_paths(samples: Sequence[CopyRate]) -> dict[tuple[int, int, Path], CopyRate]:
    """Return the sample to use for each direction and path: source, destination, path."""
    ways: list[tuple[tuple[int, int, Path], CopyRate]] = [
        ((*pair, "direct" if sample.kind == "p2p_direct" else "staged"), sample)
        for pair, sample in _between_gpus(samples)
        if sample.kind != "bidirectional"
    ]
    return best(ways, _rank)


def _both_at_once(samples: Sequence[CopyRate]) -> dict[Pair, dict[Path | None, CopyRate]]:
    """Return the copies of each pair in both directions at once, low index first, by path.

    If there are two rates, one for each GPU given first, it is the lower one.
    """
    copies = [
        ((pair, sample.path), sample)
        for pair, sample in _between_gpus(samples)
        if sample.kind == "bidirectional"
    ]
    by_pair = grouped(((min(pair), max(pair)), sample) for (pair, _), sample in best(copies, _rank).items())
    return {
        pair: best(((sample.path, sample) for sample in ways), lambda sample: -sample.rate)
        for pair, ways in by_pair.items()
    }


def _between_gpus(samples: Sequence[CopyRate]) -> list[tuple[Pair, CopyRate]]:
    """Return valid copies between two GPUs that ran by themselves; by kernels only without others."""
    copies = [
        (pair, sample)
        for sample in samples
        if sample.group is None
        and sample.invalid is None
        and (pair := sample.pair) is not None
        and 0.0 < sample.rate < inf
    ]
    by_engine = [(pair, sample) for pair, sample in copies if sample.method not in KERNELS]
    return [(pair, sample) for pair, sample in copies if sample.is_by_copy_engine] or by_engine or copies


def _rank(sample: CopyRate) -> tuple[bool, float]:
    return sample.is_large, sample.rate
