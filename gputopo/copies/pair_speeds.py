"""Pairs of GPUs as measured: their NVLinks, speeds and classes of speed, GPUs that explain slow pairs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from math import ceil, inf
from typing import Literal, NamedTuple

import msgspec

from gputopo.copies.numbers import (
    AGREE_SHARE,
    Pair,
    by_copy_engine,
    is_large,
    pair_copies,
    pair_of,
    rate,
    runs_agree,
)
from gputopo.reference.expectations import (
    GpuExpectation,
    NvLinkExpectation,
    expected_gpu,
    expected_link,
    expected_nvlink,
)
from gputopo.values.bandwidth import KERNELS, Bandwidth, Path, Sample
from gputopo.values.machine import Gpu, Machine

# Generation 6 with 16 lanes (links.csv): where the model, or its link, is unknown.
MAX_PCIE_GB_PER_S = 121.0
# The rate of the fastest copies of several that should be the same: one in ten may be faster, so that a
# single high number does not count. Ours.
FASTEST_SHARE = 0.9


class PairNvLinks(NamedTuple):
    """How many NVLinks connect two GPUs, their reference data, and how the number is known.

    `by`: "source" that reports it, "model" whose pairs all have it, or "rate" of the pair.
    """

    links: int
    row: NvLinkExpectation
    by: Literal["source", "model", "rate"]


def pcie_max(gpu: Gpu | None) -> float:
    """Return the data rate in GB/s of the widest PCIe link that the model of a GPU supports."""
    row = expected_gpu(gpu.name, gpu.pci_device_id) if gpu else None
    link = expected_link(row.pcie_generation, row.pcie_width) if row else None
    return link.data_rate_gb_per_s if link else MAX_PCIE_GB_PER_S


def fastest(rates: Mapping[Pair, float]) -> float:
    """Return the rate that nine of ten copies do not exceed."""
    ordered = sorted(rates.values())
    return ordered[ceil(FASTEST_SHARE * len(ordered)) - 1]


def direct_copies(samples: Sequence[Sample]) -> tuple[dict[Pair, Sample], str]:
    """Return the direct copies of each pair, and how they are named: each alone, if there are any.

    Else both directions at once, as their sum or as one direction beside the other; else copies by kernels.
    """
    if alone := pair_copies(samples, "p2p_direct"):
        return alone, "direct"
    if both := pair_copies(samples, "bidirectional", "direct"):
        return both, "direct bidirectional"
    beside = (msgspec.structs.replace(one, group=None) for one in samples if one.with_reverse)
    if found := pair_copies(beside, "p2p_direct"):
        return found, "direct bidirectional"
    by_kernels = (msgspec.structs.replace(one, method=None) for one in samples if not by_copy_engine(one))
    return pair_copies(by_kernels, "p2p_direct"), "direct kernel"


def direct_rates(samples: Sequence[Sample]) -> dict[Pair, float]:
    """Return the rates of direct copies in one direction: half of both at once where only those are known."""
    copies, _ = direct_copies(samples)
    found = {pair: rate(one) / (2 if one.kind == "bidirectional" else 1) for pair, one in copies.items()}
    return {(b, a): one for (a, b), one in found.items()} | found


class NvLinks:
    """The NVLinks of all pairs of a machine, as reported or as its direct copies show them."""

    def __init__(self, bandwidth: Bandwidth, machine: Machine) -> None:
        self._machine = machine
        self._gpus = {gpu.index: gpu for gpu in machine.gpus}
        self._models = {
            index: row
            for index, gpu in self._gpus.items()
            if (row := expected_gpu(gpu.name, gpu.pci_device_id)) is not None and not gpu.mig.mode
        }
        self._rates = direct_rates(bandwidth.samples)
        self._by_model: dict[str, dict[Pair, float]] = {}
        for (a, b), one in self._rates.items():
            if a in self._models and self._models[a] == self._models.get(b):
                self._by_model.setdefault(self._models[a].name, {})[a, b] = one

    def between(self, a: int, b: int) -> PairNvLinks | None:
        """Return the NVLinks of a pair; None where it has none, or nothing shows how many."""
        link = self._machine.link(a, b)
        count = link.nvlinks if link is not None else None
        row = self.reference(a, b)
        if row is None or count == 0:
            return None
        if count is not None:
            return PairNvLinks(count, row, "source")
        model = self._models.get(a)
        if model is None or model != self._models.get(b) or (a, b) not in self._rates:
            return None
        measured = max(self._rates[a, b], self._rates.get((b, a), 0.0))
        if is_uniform(model):
            total = model.nvlinks or 0
            peers = sum(one == model for one in self._models.values()) - 1
            counts = [one for one in model.pair_nvlinks if one == total or one * peers <= total]
            links = _min_links(counts, max(measured, fastest(self._by_model[model.name])), row)
            return PairNvLinks(links, row, "model") if links else None
        if measured <= pcie_max(self._gpus[a]):
            return None
        links = _min_links(model.pair_nvlinks, measured, row)
        return PairNvLinks(links, row, "rate") if links else None

    def reference(self, a: int, b: int) -> NvLinkExpectation | None:
        """Return the row of the NVLink version that both have."""
        rows = [self._models[index] for index in (a, b) if index in self._models]
        versions = {
            port.version
            for index in (a, b)
            for port in (self._gpus[index].nvlinks if index in self._gpus else None) or ()
            if port.version
        } or {row.nvlink_generation for row in rows if row.nvlink_generation}
        chips = {row.chip for row in rows}
        if len(versions) != 1:
            return None
        return expected_nvlink(versions.pop(), chips.pop() if len(chips) == 1 else None)


def is_hybrid(model: GpuExpectation) -> bool:
    """Return whether pairs of a module have one NVLink or several or none: eight P100 or V100, or in POWER.

    There the path through the CPUs may be faster than PCIe too: 20 to 29 GB/s (IBM S822LC and AC922).
    """
    return model.is_module and not is_uniform(model)


def is_uniform(model: GpuExpectation) -> bool:
    """Return whether all pairs have the same number of NVLinks: by switches, or four modules in a full mesh.

    Others (eight P100 or V100) have one or two, or none, and cards have none without a bridge.
    """
    return model.is_module and model.nvlinks in model.pair_nvlinks


def _min_links(counts: Iterable[int], gb_per_s: float, row: NvLinkExpectation) -> int | None:
    """Return the lowest number of NVLinks of a sound machine that carries a rate."""
    return next((one for one in counts if gb_per_s <= one * row.link_gb_per_s), None)


# Two pairs count as equally fast within 10 %: a pair measured twice differs by a few percent, and the slowest
# step between two kinds of link (one generation, one NVLink of three) is a third. Ours.
SAME_SPEED = 1.10
# A row of pairs that are each within that of the next is cut where its ends differ by this much. Ours: half
# of what separates one PCIe generation, or one width, from the next.
WIDEST_CLASS = 1.5
# Direct is called slower than staged from 3 % on, as the finding p2p.direct_slower_than_staged does: below,
# published pairs measured twice differ as much.
CLEARLY_SLOWER = 1.03

_PATHS: tuple[Path | None, ...] = ("direct", "staged", None)


class PairSpeed(NamedTuple):
    """What a pair does in its worse direction by the faster path; `direct` and `staged` in that direction.

    `both`: the sum of both directions at once where nothing else was measured, of which one direction has
    half at least. `runs`: the numbers of several runs that disagree, of which `gb_per_s` is the median.
    """

    gb_per_s: float
    path: Path | None  # None: unknown
    direct: float | None
    staged: float | None
    both: float | None = None
    runs: tuple[float, ...] = ()

    @property
    def says(self) -> str:
        """Return `measured 11.3 GB/s, direct`, or what direct copies do where it is clearly slower."""
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


def gb(value: float) -> str:
    """Write GB/s with three figures: `0.73`, `11.3`, `195`."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def pair_speeds(bandwidth: Bandwidth | None) -> dict[Pair, PairSpeed]:
    """Return the speed of every pair that was measured in both directions, low index first.

    Of each direction the better of direct and staged, of the two directions the worse. Where one was not
    measured alone, half of the sum of both at once. Only valid copies that ran alone count, of several the
    fastest large one. Copies by kernels count where the driver's copies of no pair were measured.
    """
    samples = bandwidth.samples if bandwidth else ()
    paths = _standing(samples)
    at_once = both_at_once(samples)
    pairs = {(min(a, b), max(a, b)) for a, b, _ in paths} | at_once.keys()
    found: dict[Pair, PairSpeed] = {}
    for a, b in sorted(pairs):
        each = [_direction(paths, a, b), _direction(paths, b, a)]
        known = [one for one in each if one is not None]
        if len(known) == len(each):
            found[a, b] = min(known, key=lambda one: one.gb_per_s)
        elif (a, b) in at_once:
            found[a, b] = at_once[a, b]
    return found


def speed_classes(speeds: Mapping[Pair, PairSpeed]) -> dict[Pair, int]:
    """Return each pair the number of its class, the fastest 0. Within a class only noise separates pairs."""
    classes: dict[float, int] = {}
    ordered = sorted({speed.gb_per_s for speed in speeds.values()}, reverse=True)
    for number, members in enumerate(_classes(ordered)):
        classes |= dict.fromkeys(members, number)
    return {pair: classes[speed.gb_per_s] for pair, speed in speeds.items()}


def speed_groups(rates: Mapping[Pair, float]) -> list[tuple[int, ...]]:
    """Return the GPUs in groups: every pair within one is faster than every pair of two groups.

    A group of one GPU is one that is slow with every peer. All in one group where the widest gap between the
    rates is within noise or does not divide them so.
    """
    worst = {pair: min(speed, rates.get(pair[::-1], speed)) for pair, speed in rates.items()}
    gaps = [(slow / fast, fast) for slow, fast in pairwise(sorted(worst.values()))]
    share, limit = min(gaps, default=(1.0, 0.0))
    group = {gpu: {gpu} for pair in rates for gpu in pair}
    for a, b in (pair for pair, speed in worst.items() if speed >= limit):
        group[a] |= group[b]
        group.update(dict.fromkeys(group[a], group[a]))
    divided = all((speed >= limit) == (group[a] is group[b]) for (a, b), speed in worst.items())
    if share > 1 - AGREE_SHARE or not divided:
        return [tuple(sorted(group))]
    return sorted({tuple(sorted(gpus)) for gpus in group.values()})


def unmeasured(speeds: Mapping[Pair, PairSpeed], gpus: Sequence[int]) -> list[Pair]:
    """Return the pairs of these GPUs that have no measured speed."""
    return [pair for pair in combinations(sorted(gpus), 2) if pair not in speeds]


def single_paths(samples: Sequence[Sample]) -> list[tuple[int, int, Path, float]]:
    """Return source, destination, path and GB/s of each direction and path, of the sample that counts."""
    return [(*key, rate(sample)) for key, sample in _standing(samples).items()]


def _standing(samples: Sequence[Sample]) -> dict[tuple[int, int, Path], Sample]:
    """Return the sample that counts of each direction and path: source, destination, path."""
    best: dict[tuple[int, int, Path], Sample] = {}
    for sample in _between_gpus(samples):
        path: Path = "direct" if sample.kind == "p2p_direct" else "staged"
        pair = pair_of(sample)
        if sample.kind == "bidirectional" or pair is None:
            continue
        key = (*pair, path)
        best[key] = max(best.get(key, sample), sample, key=_rank)
    return best


def both_at_once(samples: Sequence[Sample]) -> dict[Pair, PairSpeed]:
    """Return what each pair does both directions at once by its faster path, low index first.

    Of two numbers, one for each GPU named first, the lower.
    """
    best: dict[tuple[int, int, Path | None], Sample] = {}
    for sample in _between_gpus(samples):
        pair = pair_of(sample)
        if sample.kind == "bidirectional" and pair is not None:
            key = (*pair, sample.path)
            best[key] = max(sample, best.get(key, sample), key=_rank)
    by_pair: dict[Pair, dict[Path | None, Sample]] = {}
    for (a, b, path), sample in best.items():
        paths = by_pair.setdefault((min(a, b), max(a, b)), {})
        paths[path] = min(paths.get(path, sample), sample, key=rate)
    found: dict[Pair, PairSpeed] = {}
    for pair, paths in by_pair.items():
        halves = {path: rate(sample) / 2 for path, sample in paths.items()}
        fastest = max((path for path in _PATHS if path in halves), key=lambda path: halves[path])
        found[pair] = PairSpeed(
            halves[fastest],
            fastest,
            halves.get("direct"),
            halves.get("staged"),
            rate(paths[fastest]),
            _runs(paths[fastest]),
        )
    return found


def _between_gpus(samples: Sequence[Sample]) -> list[Sample]:
    """Return the valid copies between two GPUs that ran alone: of kernels only where there are no others."""
    found = [
        sample
        for sample in samples
        if sample.kind in ("p2p_direct", "p2p_staged", "bidirectional")
        and sample.group is None
        and sample.invalid is None
        and pair_of(sample) is not None
        and 0.0 < rate(sample) < inf
    ]
    by_engine = [sample for sample in found if sample.method not in KERNELS]
    return [sample for sample in found if by_copy_engine(sample)] or by_engine or found


def _rank(sample: Sample) -> tuple[bool, float]:
    return is_large(sample), rate(sample)


def _runs(sample: Sample) -> tuple[float, ...]:
    return () if runs_agree(sample) else tuple(run.value for run in sample.runs)


def _direction(
    paths: Mapping[tuple[int, int, Path], Sample], source: int, destination: int
) -> PairSpeed | None:
    ends: tuple[Path, Path] = ("direct", "staged")
    own = {path: one for path in ends if (one := paths.get((source, destination, path))) is not None}
    if not own:
        return None
    rates = {path: rate(one) for path, one in own.items()}
    path = max(own, key=lambda one: rates[one])
    return PairSpeed(rates[path], path, rates.get("direct"), rates.get("staged"), runs=_runs(own[path]))


def _classes(falling: Sequence[float]) -> list[Sequence[float]]:
    """Cut speeds, fastest first, at their largest gaps until each part is one class."""
    if len(falling) < 2:
        return [falling] if falling else []
    gaps = [fast / slow for fast, slow in pairwise(falling)]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    if gaps[widest] <= SAME_SPEED and falling[0] / falling[-1] <= WIDEST_CLASS:
        return [falling]
    return [*_classes(falling[: widest + 1]), *_classes(falling[widest + 1 :])]


# A GPU explains its slow copies in one direction where more than half of those with its peers are slow, and
# at least two: with fewer, the pair may be slow. Ours.
MIN_PARTNERS = 2
SLOW_SHARE = 0.5


class SlowEnds(NamedTuple):
    """GPUs that are slow as source or as destination, each with its slow copies, and the other slow pairs."""

    out: dict[int, list[Pair]]
    into: dict[int, list[Pair]]
    pairs: list[Pair]

    @property
    def gpus(self) -> list[int]:
        """Return the GPUs that are slow in one direction or both."""
        return sorted({*self.out, *self.into})


def slow_ends(slow: Collection[Pair], measured: Collection[Pair]) -> SlowEnds:
    """Return the fewest GPUs that explain the slow ones among measured copies (source, destination).

    The end with the largest share of slow copies explains them first; the others are judged by the rest.
    """
    found = SlowEnds({}, {}, [])
    rest, left = set(measured), set(slow)
    while left:
        ends = {(side, gpu) for pair in left for side, gpu in enumerate(pair)}
        side, gpu = max(sorted(ends), key=lambda end: _share(left, rest, end))
        if _share(left, rest, (side, gpu)) <= SLOW_SHARE:
            break
        (found.into if side else found.out)[gpu] = sorted(pair for pair in left if pair[side] == gpu)
        rest = {pair for pair in rest if pair[side] != gpu}
        left &= rest
    found.pairs.extend(sorted(left))
    return found


def _share(slow: Collection[Pair], measured: Collection[Pair], end: tuple[int, int]) -> float:
    """Return the share of slow copies among those out of (0) or into (1) a GPU; 0 where one alone is slow."""
    side, gpu = end
    of_end = [pair for pair in measured if pair[side] == gpu]
    count = sum(pair in slow for pair in of_end)
    return count / len(of_end) if count >= MIN_PARTNERS else 0.0
