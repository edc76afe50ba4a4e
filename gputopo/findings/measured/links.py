"""The PCIe link of each GPU by its copies: degraded under load, or narrow; the rules of slow copies."""

from collections.abc import Iterable, Iterator

from gputopo.copies.expected import link_name, link_names, links_for
from gputopo.copies.sharing import HOST_KINDS
from gputopo.findings.pcie import (
    COPY_FLAPS,
    GENERATION_DEGRADED,
    LINK_FLAPPING,
    NARROW_LANES,
    SLOT_NARROW,
    WIDTH_DEGRADED,
    generation_fault,
    width_fault,
)
from gputopo.findings.rule import Fault, check, copies_of, present, rule_of, threshold
from gputopo.reference.expectations import LinkExpectation, expected_link, expected_of
from gputopo.values.bandwidth import COLLECTIVES, Conditions, Kind, Pair, Sample
from gputopo.values.grouping import maxima
from gputopo.values.machine import Gpu, Machine
from gputopo.values.rates import host_link_rates, pair_copies
from gputopo.values.subject import MACHINE

PEERS_SHARE = threshold("measured.links.PEERS_SHARE")
HALF_SHARE = threshold("measured.links.HALF_SHARE")
ALIKE_SHARE = threshold("measured.links.ALIKE_SHARE")
DIRECTION_SHARE = threshold("measured.links.DIRECTION_SHARE")
PCIE_MAX_GB_PER_S = threshold("measured.links.PCIE_MAX_GB_PER_S")
MIN_GPUS = threshold("measured.links.MIN_GPUS")
FASTER_TIMES = threshold("measured.links.FASTER_TIMES")

BELOW_EXPECTED = rule_of("bandwidth.below_expected", PEERS_SHARE, HALF_SHARE, ALIKE_SHARE)
DIRECTION_DIFFERS = rule_of("bandwidth.direction_differs", DIRECTION_SHARE, PCIE_MAX_GB_PER_S)

NO_LINK_HAS_THE_RATE = (
    "no PCIe link has this rate; host memory may be on another NUMA node, or the path in use"
)
BETWEEN_GPUS: tuple[Kind, ...] = ("p2p_staged", "p2p_direct")


@check(GENERATION_DEGRADED, WIDTH_DEGRADED, LINK_FLAPPING)
def degraded(machine: Machine) -> Iterator[Fault]:
    """Find links that were slower or narrower during copies than card and slot support."""
    for gpu, seen in _under_load(machine):
        best, lanes = _best(seen, "pcie_gen"), _best(seen, "pcie_width")
        rates: dict[str, object] = {"generation": best, "width": lanes}
        changes = max(one.link_changes for one in seen)
        slow = generation_fault(gpu, best, "during copies", rates | _loss(gpu, best, lanes))
        narrow = width_fault(gpu, lanes, " during copies", rates | {"width_max": gpu.pcie.width_max})
        yield from filter(None, (slow, narrow))
        if changes >= COPY_FLAPS.value:
            says = f"PCIe link changed {changes} times within one measurement"
            yield LINK_FLAPPING.fault(gpu, says, rates | {"link_changes": changes})


def host_rates(machine: Machine) -> dict[int, dict[str, float]]:
    """Return for each GPU the best copy from the host and to it, by kind."""
    found: dict[int, dict[str, float]] = {}
    for kind in HOST_KINDS:
        for gpu, rate in host_link_rates(copies_of(machine).samples, kind, machine).items():
            found.setdefault(gpu, {})[kind] = rate
    return found


def _under_load(machine: Machine) -> Iterator[tuple[Gpu, list[Conditions]]]:
    samples = _over_links(machine)
    for gpu in present(machine):
        if seen := _seen(gpu, samples):
            yield gpu, seen


def _over_links(machine: Machine) -> list[Sample]:
    return [
        one
        for one in copies_of(machine).samples
        if one.conditions and one.kind not in ("d2d_local", "host_memory", "latency", *COLLECTIVES)
    ]


def _seen(gpu: Gpu, samples: Iterable[Sample]) -> list[Conditions]:
    return [one for sample in samples for one in sample.conditions if one.gpu == gpu.index and one.readings]


def _best(seen: list[Conditions], fact: str) -> int | None:
    return max((value for one in seen if (value := getattr(one, fact))), default=None)


def _loss(gpu: Gpu, best: int | None, lanes: int | None) -> dict[str, object]:
    top = gpu.pcie.gen_max
    now, could = expected_link(best, lanes), expected_link(top, lanes)
    if now is None or could is None:
        return {"generation_max": top}
    return {
        "generation_max": top,
        "copy_gb_per_s_now": now.copy_to_device_gb_per_s,
        "copy_gb_per_s_possible": could.copy_to_device_gb_per_s,
    }


def link_is_unknown(gpu: Gpu, machine: Machine) -> bool:
    """Return whether no source, and no reading during copies, has the lanes of a GPU's link."""
    if gpu.pcie.width_now is not None or gpu.pcie.width_max is not None:
        return False
    return not _seen(gpu, _over_links(machine))


def narrow_links(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies are as fast as few lanes, where no source has the link (published outputs)."""
    copies, slower = host_rates(machine), _slower_than_partners(machine)
    for gpu in present(machine):
        own = copies.get(gpu.index) or slower.get(gpu.index)
        fits = _narrow_fits(own.values(), gpu) if own and link_is_unknown(gpu, machine) else ()
        if own and fits:
            row = expected_of(gpu)
            card = f"; x{row.pcie_width} card" if row and row.pcie_width else ""
            evidence: dict[str, object] = {f"{kind}_gb_per_s": round(rate, 3) for kind, rate in own.items()}
            evidence["fits"] = list(map(link_name, fits))
            yield SLOT_NARROW.fault(gpu, f"copies as fast as a {link_names(fits)} link{card}", evidence)


def common_fits(rates: Iterable[float], *gpus: Gpu) -> tuple[LinkExpectation, ...]:
    """Return the links that all rates in GB/s fit: none where the directions are not those of one link."""
    first, *others = (links_for(rate, *gpus) for rate in rates)
    return tuple(link for link in first if all(link in other for other in others))


def _narrow_fits(rates: Iterable[float], *gpus: Gpu) -> tuple[LinkExpectation, ...]:
    """Return the links that copies at these rates fit; none if a wide one is among them."""
    fits = common_fits(rates, *gpus)
    return () if any(link.width > NARROW_LANES.value for link in fits) else fits


def narrow_pairs(machine: Machine) -> Iterator[Fault]:
    """Where only copies between GPUs are known: if none is faster than a narrow link, links are narrow.

    One wide link may be among them: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(machine)
    gpus = {gpu for pair in copies for gpu in pair}
    measured = [gpu for gpu in present(machine) if gpu.index in gpus]
    if host_rates(machine) or _slower_than_partners(machine) or len(gpus) < MIN_GPUS.value:
        return
    fastest = max(copies.values())
    fits = _narrow_fits([fastest], *measured)
    if fits and all(link_is_unknown(gpu, machine) for gpu in measured):
        says = (
            f"no two of {len(gpus)} GPUs copy faster than {fastest:.2f} GB/s, the rate of a "
            f"{link_names(fits)} link: all of them, or all but one, have such links"
        )
        evidence = {"fastest_gb_per_s": fastest, "fits": list(map(link_name, fits))}
        yield SLOT_NARROW.fault(MACHINE, says, evidence)


def _slower_than_partners(machine: Machine) -> dict[int, dict[str, float]]:
    """Return the fastest copy of GPUs that are slow with partners which are fast with others.

    Then it is the GPU's own link that limits: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(machine)
    best = maxima((gpu, fastest) for pair, fastest in copies.items() for gpu in pair)
    return {
        gpu: {"fastest_copy": own}
        for gpu, own in best.items()
        if any(
            gpu in pair and sum(best[end] for end in pair) - own > FASTER_TIMES.value * own for pair in copies
        )
    }


def _between_gpus(machine: Machine) -> dict[Pair, float]:
    copies = (pair_copies(copies_of(machine).samples, kind) for kind in BETWEEN_GPUS)
    return maxima((pair, sample.rate) for each in copies for pair, sample in each.items())
