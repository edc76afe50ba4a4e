"""Measured copies of each GPU, judged once: its link with the host, and its memory.

A link by its lanes, else by GPUs of the same model and by the expected rate; the memory by the expected rate,
else by GPUs of the same model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gputopo.copies import link_names, steady_copies, with_expectations
from gputopo.findings.measured.links import (
    ALIKE_SHARE,
    BELOW_EXPECTED,
    DIRECTION_SHARE,
    HALF_SHARE,
    LOW_BESIDE_PEERS,
    LOW_FOR_ANY_LINK,
    LOW_FOR_THE_MODEL,
    LOW_IN_BOTH_DIRECTIONS,
    LOW_IN_GPU_MEMORY,
    LOW_OVER_THE_LINK,
    NO_LINK_HAS_THE_RATE,
    PEERS_SHARE,
    common_fits,
    host_rates,
    link_is_unknown,
    narrow_links,
    narrow_pairs,
)
from gputopo.findings.pcie import SLOT_NARROW
from gputopo.findings.rule import Case, Fault, by_model, check, copies_of, present, roughly
from gputopo.reference import LinkExpectation, expected_of, observed_link
from gputopo.values.bandwidth import HOST_KINDS, Bandwidth, CopyRate, Kind, Samples
from gputopo.values.finding import Severity
from gputopo.values.grouping import best, grouped, maxima
from gputopo.values.machine import Gpu, Machine
from gputopo.values.rates import ends_of_groups, judged, pair_copies

# Cards of workstations and home computers, whose boards often have slots of 16 and of 8 lanes.
_BOARD_CARDS = ("GeForce", "TITAN", "Quadro", "RTX", "GTX")
_HALF_LANES = 8

_DIRECTIONS: dict[str, str] = {
    "h2d": "from the host",
    "d2h": "to the host",
    "bidirectional": "from and to the host at once",
}
_ALONE = tuple(f"copies {_DIRECTIONS[kind]}" for kind in HOST_KINDS)
_IN_MEMORY = "copies in GPU memory"
_WITH_HOST, _THROUGH_HOST = "with the host", "through the host"
_LINK, _MEMORY = "link", "d2d_local"  # parts of a GPU that are judged


@check(SLOT_NARROW, BELOW_EXPECTED)
def slow_gpus(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies with the host, or in their memory, are slow: of each part one fault."""
    steps: tuple[Callable[[Machine], Iterator[Fault]], ...] = (
        narrow_links,
        behind_peers,
        _below_expected,
        _unlike_peers,
    )
    reported: set[tuple[object, str]] = set()
    for step in steps:
        known = set(reported)
        for fault in step(machine):
            key = (fault.gpus, fault.part or _LINK)
            if key not in known:
                reported.add(key)
                yield fault
    yield from narrow_pairs(machine)


def behind_peers(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that are far below the best of their model in every direction that was measured.

    If copies with the host were not measured, copies between GPUs over PCIe are compared. The best counts and
    not what most GPUs reach (`gputopo.findings.compare.majority`), because no fault makes a link faster.
    """
    copies, path = _over_pcie(machine)
    for group, words in _groups(machine):
        for gpu in group:
            rates = copies.get(gpu.index, {})
            peers = {
                str(other.index): copies[other.index]
                for other in group
                if other is not gpu and other.index in copies
            }
            best = {
                kind: max((peer.get(kind, 0.0) for peer in peers.values()), default=0.0) for kind in rates
            }
            shares = {kind: rates[kind] / best[kind] for kind in rates if best[kind]}
            kind = max(shares, key=shares.__getitem__, default=None)
            if kind is None or shares[kind] >= PEERS_SHARE.value or not link_is_unknown(gpu, machine):
                continue
            fits = common_fits(rates.values(), gpu)
            reach = (
                f"copies {path} reach about {roughly(shares[kind])} of the {best[kind]:.1f} GB/s of {words}"
            )
            evidence = {
                "gb_per_s": rates[kind],
                "peers_gb_per_s": {index: peer[kind] for index, peer in peers.items() if kind in peer},
                "fits": [link.name for link in fits],
            }
            yield BELOW_EXPECTED.fault(
                gpu,
                f"{reach}: as fast as {link_names(fits)}" if fits else f"{reach}: {NO_LINK_HAS_THE_RATE}",
                evidence,
                _severity(gpu, shares[kind], fits, path),
                case=LOW_BESIDE_PEERS,
                part=_LINK,
            )


def _below_expected(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies with the host, or in their memory, are below what is expected of them.

    Of an unknown slot it is no fault for certain: boards give cards fewer lanes, or an earlier generation.
    Lanes are not the cause where the directions differ. Both directions at once are no fault of their own
    where one alone is slow.
    """
    copies = copies_of(machine)
    bandwidth = Bandwidth(source=copies.source, samples=Samples(steady_copies(copies, machine)))
    fastest = best(
        (
            ((index, _words(sample)), sample)
            for sample in with_expectations(bandwidth, machine).copies
            if (index := sample.source.gpu if sample.kind == "d2d_local" else sample.host_gpu) is not None
            and sample.expectation.gb_per_s
            and any(judged([msgspec.structs.replace(sample, group=None) if sample.with_reverse else sample]))
        ),
        lambda sample: sample.rate,
    )
    for gpu in present(machine):
        of_gpu = {words: sample for (index, words), sample in fastest.items() if index == gpu.index}
        low = {words: sample for words, sample in of_gpu.items() if sample.is_low}
        if memory := low.pop(_IN_MEMORY, None):
            yield _below(gpu, _IN_MEMORY, memory, LOW_IN_GPU_MEMORY, _MEMORY)
        alone = [sample for words, sample in of_gpu.items() if words in _ALONE]
        slow = [sample for sample in alone if sample in low.values()]
        slower = min(slow or low.values(), key=_share, default=None)
        if slower is None:
            continue
        words = f"copies {_WITH_HOST}" if len(slow) > 1 else _words(slower)
        is_known = observed_link(gpu, slower, machine) is not None
        if is_known or not slow:
            case = LOW_OVER_THE_LINK if slow else LOW_IN_BOTH_DIRECTIONS
            yield _below(gpu, words, slower, case, _LINK, "warning" if is_known or alone else "info")
        elif len(slow) == len(alone):
            rates = [sample.rate for sample in slow]
            fits = common_fits(rates, gpu)
            differ = min(rates) < DIRECTION_SHARE.value * max(rates)
            case = LOW_FOR_THE_MODEL if fits else LOW_FOR_ANY_LINK
            yield _below(gpu, words, slower, case, _LINK, "warning" if differ else "info", fits)


def _words(sample: CopyRate) -> str:
    """Return `copies from the host`: what a copy of a GPU did."""
    if sample.kind == "d2d_local":
        return _IN_MEMORY
    return f"copies {_DIRECTIONS[sample.kind]}{' next to the other direction' * sample.with_reverse}"


def _below(
    gpu: Gpu,
    words: str,
    sample: CopyRate,
    case: Case,
    part: str,
    severity: Severity = "warning",
    fits: Sequence[LinkExpectation] | None = None,
) -> Fault:
    """Return the fault of a slow copy. `fits`: the links that it fits, of an unknown slot."""
    cause = f"{NO_LINK_HAS_THE_RATE}; " if fits == () else ""
    share = roughly(_share(sample))
    expected = sample.expectation
    says = f"{words} reach about {share} of the expected rate: {cause}{expected.source}"
    evidence = {
        "gb_per_s": sample.rate,
        "expected_gb_per_s": expected.gb_per_s,
        "expected_low_gb_per_s": expected.low_gb_per_s,
        "source": expected.source,
        **({"fits": [link.name for link in fits]} if fits else {}),
    }
    return BELOW_EXPECTED.fault(gpu, says, evidence, severity, case=case, part=part)


def _share(sample: CopyRate) -> float:
    return sample.rate / (sample.expectation.gb_per_s or sample.rate)


def _unlike_peers(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that are slower than others of their model, in both directions at once or in their memory."""
    for what, values, case, part in _compared(machine):
        for group, words in _groups(machine):
            known = [gpu for gpu in group if gpu.index in values and not gpu.mig.mode]
            best = max((values[gpu.index] for gpu in known), default=0.0)
            for gpu in known:
                value = values[gpu.index]
                if value >= ALIKE_SHARE.value * best or (part == _LINK and not link_is_unknown(gpu, machine)):
                    continue
                says = f"{what} reach about {roughly(value / best)} of the {best:.1f} GB/s of {words}"
                evidence = {"gb_per_s": value, "best_gb_per_s": best}
                yield BELOW_EXPECTED.fault(gpu, says, evidence, case=case, part=part)


def _compared(machine: Machine) -> Iterator[tuple[str, Mapping[int, float], Case, str]]:
    """Yield what is compared, the GB/s of each GPU, case and part."""
    for kind, rates in _bidirectional(copies_of(machine)).items():
        beside = "" if kind == "bidirectional" else " next to the other direction"
        what = f"copies {_DIRECTIONS[kind]}{beside}"
        yield what, rates, LOW_IN_BOTH_DIRECTIONS, _LINK
    local = maxima(
        (gpu, sample.rate)
        for sample in steady_copies(copies_of(machine), machine)
        if sample.kind == "d2d_local" and sample.is_large and sample.is_by_copy_engine
        if (gpu := sample.source.gpu) is not None
    )
    yield _IN_MEMORY, local, LOW_IN_GPU_MEMORY, _MEMORY


def _groups(machine: Machine) -> Iterator[tuple[list[Gpu], str]]:
    """Yield the GPUs to compare and their name: those of a model; all where no model is known."""
    yield from ((group, "same-model GPUs") for group in by_model(machine))
    if all(gpu.name is None for gpu in machine.gpus):
        yield present(machine), "the other GPUs, whose models are unknown"


def _severity(gpu: Gpu, share: float, fits: Sequence[LinkExpectation], path: str) -> Severity:
    """Return how bad it is to copy at a share of the peers.

    Many boards give one card half of the lanes, not those of modules (SXM), and servers for cards without a
    fan. Cards may be alone below their CPU, which halves copies through the host.
    """
    row = expected_of(gpu)
    board = row is None or row.name.startswith(_BOARD_CARDS)
    by_board = board and any(link.width >= _HALF_LANES for link in fits)
    alone = path == _THROUGH_HOST and not (row and row.is_module)
    halved = share >= HALF_SHARE.value and (by_board or alone)
    return "info" if halved or _is_usual(fits, gpu) else "warning"


def _bidirectional(bandwidth: Bandwidth) -> dict[Kind, dict[int, float]]:
    """Return the best copies of each GPU with the host while it alone copies in both directions."""
    samples = bandwidth.copies
    ends = ends_of_groups(samples)
    copies = grouped(
        (sample.kind, (gpu, sample.rate))
        for sample in samples
        if (gpu := sample.host_gpu) is not None
        and (sample.group is None or len(ends[sample.group]) == 2)
        and (sample.kind == "bidirectional" or (sample.with_reverse and sample.kind in HOST_KINDS))
        and (sample.is_large and sample.pinned is not False and sample.is_by_copy_engine)
    )
    return {kind: maxima(rates) for kind, rates in copies.items()}


def _over_pcie(machine: Machine) -> tuple[dict[int, dict[str, float]], str]:
    """Return the best copies of each GPU over its PCIe link, by direction, and how they are named.

    Where none with the host were measured: those between GPUs of one model, staged through the host.
    """
    if rates := host_rates(machine):
        return rates, _WITH_HOST
    names = {gpu.index: gpu.name or "" for gpu in machine.gpus}
    ends = []
    for (a, b), sample in pair_copies(copies_of(machine).copies, "p2p_staged").items():
        if a in names and names[a] == names.get(b):
            ends += [(a, ("out", sample.rate)), (b, ("in", sample.rate))]
    return {index: maxima(by_direction) for index, by_direction in grouped(ends).items()}, _THROUGH_HOST


def _is_usual(fits: Sequence[LinkExpectation], gpu: Gpu) -> bool:
    """Return whether a rate is that of the lanes which servers give this model."""
    row = expected_of(gpu)
    return row is not None and any(
        link.width == row.pcie_width_seen and link.generation == row.pcie_generation for link in fits
    )
