"""Measured copies with the host against GPUs of the same model, and against the widest link of the model.

Only where no source has the link of a GPU: else `links.below_expected` and the PCIe rules judge by it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gputopo.copies.expected import link_name, link_names, links_for, model_link
from gputopo.copies.numbers import by_copy_engine, host_gpu, is_large, pair_copies, rate
from gputopo.copies.pair_speeds import NvLinks, pcie_max
from gputopo.copies.sharing import HOST_KINDS
from gputopo.findings.compare import grouped, maxima
from gputopo.findings.measured.links import (
    BELOW_EXPECTED,
    BETWEEN_GPUS,
    BIDIRECTIONAL_PEERS_SHARE,
    DIRECTION_WORDS,
    HALF_SHARE,
    PEERS_SHARE,
    STAGED_SHARE,
    host_rates,
    link_is_unknown,
    narrow_faults,
    narrow_pairs,
)
from gputopo.findings.rule import Fault, Severity, by_model, check, copies_of, present, roughly
from gputopo.reference.expectations import LinkExpectation, expected_of
from gputopo.values.bandwidth import Bandwidth, Kind
from gputopo.values.machine import Gpu, Machine

# Cards of workstations and home computers, whose boards often have slots of 16 and of 8 lanes.
_BOARD_CARDS = ("GeForce", "TITAN", "Quadro", "RTX", "GTX")
_HALF_LANES = 8

_NO_LINK = "no PCIe link has this rate; host memory may be on another NUMA node, or the path in use"
_WITH_HOST, _THROUGH_HOST, _DIRECT = "with the host", "through the host", "with other GPUs"


class _Low(NamedTuple):
    """A GPU that copies slower than expected; `words` come before the numbers, `more` after them."""

    gpu: Gpu
    gb_per_s: float
    against_gb_per_s: float
    words: str
    more: str
    evidence: dict[str, object]
    severity: Severity

    @property
    def message(self) -> tuple[str, ...]:
        """Everything of the message but its numbers."""
        return self.words, roughly(self.gb_per_s / self.against_gb_per_s), self.more, self.severity


@check(BELOW_EXPECTED)
def slower_than_peers(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies with the host are far below the best of GPUs of the same model.

    Where copies with the host were not measured, by those between GPUs over PCIe. A GPU as slow as few lanes
    has `pcie.slot_narrow`, one that is slow in one direction only `bandwidth.direction_differs`.
    """
    behind = list(_behind_peers(machine))
    yield from _faults(behind, "same-model GPUs", "peers")
    known = {one.gpu.index for one in behind} | _narrow(machine)
    for kind, copies in _bidirectional(copies_of(machine)).items():
        low = _behind_bidirectional(kind, copies, machine)
        yield from _faults((one for one in low if one.gpu.index not in known), "both directions", kind)


@check(BELOW_EXPECTED)
def below_model(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies with the host are below the widest link of their model.

    It is no fault for certain: boards give cards fewer lanes, or have an earlier generation.
    """
    known = {one.gpu.index for one in _behind_peers(machine)}
    known |= _narrow(machine)
    copies, path = _over_pcie(machine)
    if path == _DIRECT or (path == _THROUGH_HOST and narrow_pairs(machine)):
        return
    low = []
    for gpu in present(machine):
        own, link = max(copies.get(gpu.index, {}).values(), default=None), model_link(gpu)
        if own is None or link is None or gpu.index in known or not link_is_unknown(gpu, machine):
            continue
        usual, fits = link.copy_to_device_gb_per_s, links_for(own, gpu)
        limit = link.copy_low_gb_per_s if path == _WITH_HOST else STAGED_SHARE.value * usual
        if own < limit and not _is_usual(fits, gpu):
            words = f"copies {path} reach about {{}} of {link_name(link)}, the widest link of the model"
            more = f": as fast as {link_names(fits)}; its slot is unknown" if fits else f": {_NO_LINK}"
            evidence = {"gb_per_s": own, "expected_gb_per_s": usual, "fits": list(map(link_name, fits))}
            low.append(_Low(gpu, own, usual, words, more, evidence, "info"))
    yield from _faults(low, "widest link of the model", "model")


def _faults(low: Iterable[_Low], case: str, part: str) -> Iterator[Fault]:
    """Return the faults; GPUs whose messages differ in numbers only have the range of them all."""
    low = list(low)
    for one in low:
        rates = sorted(other.gb_per_s for other in low if other.message == one.message)
        span = f"{rates[0]:.1f}" + (f" to {rates[-1]:.1f}" if rates[-1] - rates[0] >= 0.1 else "")
        against = max(other.against_gb_per_s for other in low if other.message == one.message)
        says = f"{one.words.format(one.message[1])}, {span} against {against:.1f} GB/s{one.more}"
        yield BELOW_EXPECTED.fault(one.gpu, says, one.evidence, one.severity, case=case, part=part)


def _narrow(machine: Machine) -> set[int]:
    return {gpu for fault in narrow_faults(machine) for gpu in fault.gpus}


def _groups(machine: Machine) -> Iterator[tuple[list[Gpu], str]]:
    """Yield the GPUs to compare and their name: those of a model; all where no model is known."""
    yield from ((group, "same-model GPUs") for group in by_model(machine))
    if all(gpu.name is None for gpu in machine.gpus):
        yield present(machine), "the other GPUs, whose models are unknown"


def _behind_peers(machine: Machine) -> Iterator[_Low]:
    """Yield the GPUs that are far below the best of their model in every direction that was measured."""
    narrow = _narrow(machine)
    copies, path = _over_pcie(machine)
    for group, words in _groups(machine):
        for gpu in group:
            own = copies.get(gpu.index, {})
            peers = {str(one.index): copies[one.index] for one in group if one.index in copies}
            peers.pop(str(gpu.index), None)
            if not own or not peers or gpu.index in narrow or not link_is_unknown(gpu, machine):
                continue
            best = {kind: max(peer.get(kind, 0.0) for peer in peers.values()) for kind in own}
            shares = {kind: own[kind] / best[kind] for kind in own if best[kind]}
            kind = max(shares, key=shares.__getitem__, default=None)
            if kind is None or shares[kind] >= PEERS_SHARE.value:
                continue
            fits = links_for(max(own.values()), gpu)
            reach = f"copies {path} reach about {{}} of those of {words}"
            more = f": as fast as {link_names(fits)}" if fits else ""
            evidence = {
                "gb_per_s": max(own.values()),
                "peers_gb_per_s": {index: max(peer.values()) for index, peer in peers.items()},
                "fits": list(map(link_name, fits)),
            }
            severity = _severity(gpu, shares[kind], fits, path)
            yield _Low(gpu, own[kind], best[kind], reach, more, evidence, severity)


def _behind_bidirectional(kind: Kind, copies: Mapping[int, float], machine: Machine) -> Iterator[_Low]:
    """Yield the GPUs that are below the best of their model while both directions are used at once."""
    beside = "" if kind == "bidirectional" else " beside the other direction"
    for group, words in _groups(machine):
        best = max((copies[gpu.index] for gpu in group if gpu.index in copies), default=0.0)
        for gpu in group:
            own = copies.get(gpu.index, best)
            if own < BIDIRECTIONAL_PEERS_SHARE.value * best and link_is_unknown(gpu, machine):
                reach = f"copies {DIRECTION_WORDS[kind]}{beside} reach about {{}} of those of {words}"
                yield _Low(gpu, own, best, reach, "", {"gb_per_s": own, "best_gb_per_s": best}, "info")


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
    return "info" if halved or path == _DIRECT or _is_usual(fits, gpu) else "warning"


def _bidirectional(bandwidth: Bandwidth) -> dict[Kind, dict[int, float]]:
    """Return the best copies of each GPU with the host while it alone copies in both directions."""
    gpus = grouped(((one.kind, one.group), host_gpu(one)) for one in bandwidth.samples)
    copies = grouped(
        (one.kind, (gpu, rate(one)))
        for one in bandwidth.samples
        if (gpu := host_gpu(one)) is not None
        and (one.group is None or len({*gpus[one.kind, one.group]}) == 1)
        and (one.kind == "bidirectional" or (one.with_reverse and one.kind in HOST_KINDS))
        and (is_large(one) and one.pinned is not False and by_copy_engine(one))
    )
    return {kind: maxima(rates) for kind, rates in copies.items()}


def _over_pcie(machine: Machine) -> tuple[dict[int, dict[str, float]], str]:
    """Return the best copies of each GPU over its PCIe link, by direction, and how they are named.

    Where none with the host were measured: those between GPUs of one model, staged through the host, else
    direct ones that are not NVLinks'.
    """
    if rates := host_rates(machine):
        return rates, _WITH_HOST
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    staged, direct = (pair_copies(copies_of(machine).samples, kind) for kind in BETWEEN_GPUS)
    nvlinks = NvLinks(copies_of(machine), machine)
    ends = []
    for (a, b), sample in (staged or direct).items():
        one, other = gpus.get(a), gpus.get(b)
        if one is None or other is None or one.name != other.name:
            continue
        if staged or (nvlinks.between(a, b) is None and rate(sample) <= pcie_max(one)):
            ends += [(a, ("out", rate(sample))), (b, ("in", rate(sample)))]
    found = {index: maxima(rates) for index, rates in grouped(ends).items()}
    return found, _THROUGH_HOST if staged else _DIRECT


def _is_usual(fits: Sequence[LinkExpectation], gpu: Gpu) -> bool:
    """Return whether a rate is that of the lanes which servers give this model."""
    row = expected_of(gpu)
    return row is not None and any(
        link.width == row.pcie_width_seen and link.generation == row.pcie_generation for link in fits
    )
