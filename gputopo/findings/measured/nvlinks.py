"""Measured copies over NVLink: slow between one GPU and its peers, of one pair, or everywhere."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies.expected import with_expectations
from gputopo.copies.numbers import Pair, noise_share, rate
from gputopo.copies.pair_speeds import NvLinks, SlowEnds, direct_copies, fastest, is_hybrid, slow_ends
from gputopo.copies.physics import over_nvlink as faster_than_pcie
from gputopo.findings.measured.direct import DEVIATIONS, Slow, slower_directly
from gputopo.findings.measured.links import BELOW_EXPECTED, CUBE_MESH_SHARE
from gputopo.findings.measured.pairs import MIN_PEERS, PAIR_SHARE, PAIR_SLOWER, behind_peers, below
from gputopo.findings.rule import Fault, Finding, by_model, check, roughly
from gputopo.reference.expectations import GpuExpectation, expected_gpu
from gputopo.values.bandwidth import Sample
from gputopo.values.machine import Gpu, Machine

# Eight P100 or V100 are one hybrid cube mesh, in which each GPU has as many NVLinks; of fewer GPUs the rest
# may be in other jobs.
CUBE_MESH_GPUS = 8
# The share of slow pairs in a class above which they are a class of their own, with fewer NVLinks or none. By
# rate: of P100 and V100, where one pair of six may be slow. Unknown number: one GPU of four may be. Ours.
SLOW_BY_RATE = 1 / 3
SLOW_UNKNOWN = 1 / 2


class _Class(NamedTuple):
    """Pairs that have as many NVLinks, 0 where unknown, and which share of them can be slow."""

    links: int
    slow_share: float = 1.0

    @property
    def name(self) -> str:
        return f"NV{self.links}" if self.links else "NVLink"


@check(BELOW_EXPECTED, PAIR_SLOWER)
def over_nvlink(machine: Machine) -> Iterator[Fault | Finding]:
    """Find GPUs whose copies over NVLink are slow with most peers, and pairs that are slow by themselves.

    Compared: all pairs with as many NVLinks, and each with the expected rate. A GPU explains its slow pairs.
    """
    if machine.bandwidth is None:
        return
    copies, word = direct_copies(with_expectations(machine.bandwidth, machine).samples)
    nvlinks, fast = NvLinks(machine.bandwidth, machine), faster_than_pcie(machine.bandwidth.samples, machine)
    hybrid = {gpu.index for gpu in machine.gpus if (row := _model(gpu)) and is_hybrid(row)}
    classes: dict[_Class, dict[Pair, Sample]] = {}
    for (a, b), sample in copies.items():
        known = nvlinks.between(a, b)
        if known is not None:
            mixed = known.by == "rate" and a in hybrid
            of = _Class(known.links, SLOW_BY_RATE) if mixed else _Class(known.links)
        elif (min(a, b), max(a, b)) in fast and a not in hybrid:
            of = _Class(0, SLOW_UNKNOWN)
        else:
            continue
        classes.setdefault(of, {})[a, b] = sample
    for of, of_class in classes.items():
        yield from _of_class(of, of_class, word, machine)
    yield from _in_cube_mesh(nvlinks, machine)


def _of_class(
    of: _Class, copies: Mapping[Pair, Sample], word: str, machine: Machine
) -> Iterator[Fault | Finding]:
    rates = {pair: rate(sample) for pair, sample in copies.items()}
    usual = fastest(rates)
    comparable = len({frozenset(pair) for pair in copies}) >= MIN_PEERS.value
    behind = {pair for pair, sample in copies.items() if comparable and _is_behind(sample, usual)}
    if len(behind) > of.slow_share * len(copies):
        behind = set()
    low = {pair for pair, one in copies.items() if rates[pair] < (one.expected_low_gb_per_s or 0)}
    if low == set(rates):
        yield from below(_against_expected(copies, low), copies, word, machine, of.name)
        low = behind
    ends = slow_ends(behind | low, rates)
    yield from _of_gpus(of, ends, rates, word, machine)
    pairs = set(ends.pairs) - slower_directly(machine)
    slower = [Slow(pair, rates[pair], usual) for pair in pairs & behind]
    yield from behind_peers(slower, word, machine, of.name)
    yield from below(_against_expected(copies, pairs - behind), copies, word, machine, of.name)


def _is_behind(sample: Sample, usual: float) -> bool:
    noise = noise_share(sample.repeats_gb_per_s) * DEVIATIONS.value
    return rate(sample) * (1 + noise) < PAIR_SHARE.value * usual


def _against_expected(copies: Mapping[Pair, Sample], pairs: set[Pair]) -> list[Slow]:
    return [
        Slow(pair, rate(sample), sample.expected_gb_per_s)
        for pair, sample in copies.items()
        if pair in pairs and sample.expected_gb_per_s
    ]


def _of_gpus(
    of: _Class, ends: SlowEnds, rates: Mapping[Pair, float], word: str, machine: Machine
) -> Iterator[Fault]:
    usual = fastest(rates)
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    for index in ends.gpus:
        out, into = ends.out.get(index, []), ends.into.get(index, [])
        slow = sorted({*out, *into})
        own = median(rates[pair] for pair in slow)
        partners = {end for pair in slow for end in pair} - {index}
        direction = "" if out and into else " from it" if out else " to it"
        part = max(1, round(of.links * own / usual))
        links = f", about {part} of {of.links} NVLinks" if of.links > 1 else ""
        yield BELOW_EXPECTED.fault(
            gpus.get(index) or Gpu(index=index),
            f"{word} copies{direction} with {_of(len(partners), index, rates)} reach about "
            f"{roughly(own / usual)} of those of other pairs: {own:.0f} against {usual:.0f} GB/s{links}",
            {
                "gb_per_s": own,
                "peers_gb_per_s": usual,
                "pairs": {f"{a}>{b}": rates[a, b] for a, b in slow},
            },
            remedy=BELOW_EXPECTED.cases["NVLinks of a GPU"].remedy,
            part="nvlinks",
        )


def _of(partners: int, index: int, rates: Mapping[Pair, float]) -> str:
    peers = {end for pair in rates if index in pair for end in pair} - {index}
    return "every peer" if len(peers) == partners else f"{partners} of {len(peers)} peers"


def _in_cube_mesh(nvlinks: NvLinks, machine: Machine) -> Iterator[Fault]:
    """Find GPUs with far fewer NVLinks than their peers, as counted by the rates of their pairs."""
    for group in by_model(machine):
        row = _model(group[0])
        if len(group) != CUBE_MESH_GPUS or row is None or not is_hybrid(row):
            continue
        totals = {gpu.index: _total(gpu, group, nvlinks) for gpu in group}
        usual = median(totals.values())
        for gpu in group:
            if totals[gpu.index] < CUBE_MESH_SHARE.value * usual:
                yield BELOW_EXPECTED.fault(
                    gpu,
                    f"direct copies are as fast as {totals[gpu.index]} NVLinks together, those of peers as "
                    f"{usual:g}",
                    {
                        "nvlinks": totals[gpu.index],
                        "peers": {str(index): count for index, count in totals.items()},
                    },
                    remedy=BELOW_EXPECTED.cases["NVLinks of a GPU"].remedy,
                    part="nvlinks",
                )


def _total(gpu: Gpu, group: Sequence[Gpu], nvlinks: NvLinks) -> int:
    found = (nvlinks.between(gpu.index, other.index) for other in group if other is not gpu)
    return sum(one.links for one in found if one and one.by == "rate")


def _model(gpu: Gpu) -> GpuExpectation | None:
    return expected_gpu(gpu.name, gpu.pci_device_id)
