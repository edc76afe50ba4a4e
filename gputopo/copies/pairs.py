"""Measured pairs: the NVLinks of GPU pairs, and the ends (GPUs or hosts) that explain slow pairs."""

from collections.abc import Collection, Iterable, Sequence
from math import ceil
from typing import Generic, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from gputopo.reference import GpuExpectation, NvLinkExpectation, expected_nvlink, expected_of, pcie_max
from gputopo.values.bandwidth import Bandwidth, CopyRate, Pair
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.rates import pair_copies

# The fastest rate of several copies that should be equal. Not measured; chosen so that one copy in ten may be
# faster, and a single high number has no influence.
FASTEST_SHARE = 0.9


class PairNvLinks(NamedTuple):
    """The number of NVLinks between two GPUs, their reference data, and the source of the number.

    `by`: "source" (a source reports it), "model" (all pairs of the model have it) or "rate" (from the pair's
    rate).
    """

    links: int
    row: NvLinkExpectation
    by: Literal["source", "model", "rate"]


def fastest(rates: Iterable[float]) -> float:
    """Return the rate that nine of ten copies do not exceed."""
    ordered = sorted(rates)
    return ordered[ceil(FASTEST_SHARE * len(ordered)) - 1]


def direct_copies(samples: Sequence[CopyRate]) -> tuple[dict[Pair, CopyRate], str]:
    """Return the direct copies of each pair, and their name: single copies, if there are any.

    Otherwise both directions at once, as their sum or as one direction while the other runs. Otherwise copies
    by kernels.
    """
    if alone := pair_copies(samples, "p2p_direct"):
        return alone, "direct"
    if exchanges := pair_copies(samples, "bidirectional", "direct"):
        return exchanges, "direct bidirectional"
    one_of_two = (replace(copy, group=None) for copy in samples if copy.with_reverse)
    if copies := pair_copies(one_of_two, "p2p_direct"):
        return copies, "direct bidirectional"
    by_kernels = (replace(copy, method=None) for copy in samples if not copy.is_by_copy_engine)
    return pair_copies(by_kernels, "p2p_direct"), "direct kernel"


def direct_rates(samples: Sequence[CopyRate]) -> dict[Pair, float]:
    """Return the rates of direct copies in one direction, or half of both at once if only that is known."""
    copies, _ = direct_copies(samples)
    rates = {pair: copy.one_way_rate for pair, copy in copies.items()}
    return {(b, a): rate for (a, b), rate in rates.items()} | rates


class NvLinks:
    """The NVLinks of all pairs of a machine, as reported, or as derived from direct copies."""

    def __init__(self, bandwidth: Bandwidth, machine: Machine) -> None:
        self._machine = machine
        self._gpus = machine.by_index
        self._models = {
            index: row
            for index, gpu in self._gpus.items()
            if (row := expected_of(gpu)) is not None and not gpu.mig.mode
        }
        self._rates = direct_rates(bandwidth.copies)
        self._by_model = grouped(
            (self._models[a].name, rate)
            for (a, b), rate in self._rates.items()
            if a in self._models and self._models[a] == self._models.get(b)
        )

    def between(self, a: int, b: int) -> PairNvLinks | None:
        """Return the NVLinks of a pair, or None if it has none or the number is unknown."""
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
            peers = sum(other == model for other in self._models.values()) - 1
            counts = [count for count in model.pair_nvlinks if count == total or count * peers <= total]
            links = _min_links(counts, max(measured, fastest(self._by_model[model.name])), row)
            return PairNvLinks(links, row, "model") if links else None
        if measured <= pcie_max(self._gpus[a]):
            return None
        links = _min_links(model.pair_nvlinks, measured, row)
        return PairNvLinks(links, row, "rate") if links else None

    def reference(self, a: int, b: int) -> NvLinkExpectation | None:
        """Return the row of the NVLink version that both GPUs have."""
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
    """Return whether a module's pairs have different numbers of NVLinks: eight P100 or V100, or in POWER.

    In POWER servers, the path through the CPUs may also be faster than PCIe: 20 to 29 GB/s (IBM S822LC and
    AC922).
    """
    return model.is_module and not is_uniform(model)


def is_uniform(model: GpuExpectation) -> bool:
    """Return whether all pairs have the same number of NVLinks: with switches, or four modules in a mesh.

    Other modules (eight P100 or V100) have none, one or two. Cards have none without a bridge.
    """
    return model.is_module and model.nvlinks in model.pair_nvlinks


def _min_links(counts: Iterable[int], gb_per_s: float, row: NvLinkExpectation) -> int | None:
    """Return the lowest number of NVLinks of a healthy machine that carries a rate."""
    return next((count for count in counts if gb_per_s <= count * row.link_gb_per_s), None)


# An end explains its slow copies in one direction if more than half of its copies are slow, and at least this
# number. With fewer, the pair may be slow. Not measured; chosen because a slow end slows all its copies.
MIN_PARTNERS = 2
SLOW_SHARE = 0.5
End = TypeVar("End", int, str)  # a GPU by its index, or a host by its name


class SlowEnds(NamedTuple, Generic[End]):
    """Ends that are slow as source or destination, each with its slow copies, and the other slow pairs."""

    out: dict[End, list[tuple[End, End]]]
    into: dict[End, list[tuple[End, End]]]
    pairs: list[tuple[End, End]]

    @property
    def blamed(self) -> list[End]:
        """Return the ends that are slow in one or both directions."""
        return sorted(self.out.keys() | self.into.keys())


def slow_ends(slow: Collection[tuple[End, End]], measured: Collection[tuple[End, End]]) -> SlowEnds[End]:
    """Return the fewest ends that explain the slow copies among the measured ones (source, destination).

    The end with the largest share of slow copies explains them first. The other ends are judged by the rest.
    """
    explained: tuple[dict[End, list[tuple[End, End]]], dict[End, list[tuple[End, End]]]] = ({}, {})
    unexplained, left = set(measured), set(slow)

    def slow_share(side: int, end: End) -> float:
        """Return the share of slow copies out of (0) or into (1) an end, or 0 if only one is slow."""
        copies = [pair for pair in unexplained if pair[side] == end]
        count = sum(pair in left for pair in copies)
        return count / len(copies) if count >= MIN_PARTNERS else 0.0

    while left:
        ends = sorted({(side, end) for pair in left for side, end in enumerate(pair)})
        side, worst = max(ends, key=lambda place: slow_share(*place))
        if slow_share(side, worst) <= SLOW_SHARE:
            break
        explained[side][worst] = sorted(pair for pair in left if pair[side] == worst)
        unexplained = {pair for pair in unexplained if pair[side] != worst}
        left &= unexplained
    return SlowEnds(*explained, sorted(left))
