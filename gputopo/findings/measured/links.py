"""The PCIe link of each GPU by its copies: degraded under load, or narrow; the rules of slow copies."""

from collections.abc import Iterable, Iterator

from gputopo.copies import link_names
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
from gputopo.findings.rule import Case, Fault, Rule, Threshold, check, copies_of, present
from gputopo.reference import LinkExpectation, expected_link, expected_of, fitting_links
from gputopo.values.bandwidth import HOST_KINDS, Conditions, Kind, Pair
from gputopo.values.grouping import maxima
from gputopo.values.machine import Gpu, Machine
from gputopo.values.rates import host_link_rates, pair_copies
from gputopo.values.subject import MACHINE

PEERS_SHARE = Threshold(
    "copies with the host far below same-model GPUs",
    0.6,
    "of the best of the peers",
    (
        "Half of the lanes, or one PCIe generation less, is 0.5; a far NUMA node costs a third (a P100: "
        "gearshifft, pull request 82)"
    ),
)
HALF_SHARE = Threshold(
    "copies at half the rate of same-model GPUs",
    0.45,
    "of the best of the peers: info for GeForce, RTX and Quadro cards",
    "not measured on hardware: many boards give one card 16 lanes and the next 8. The rest is for noise",
)
ALIKE_SHARE = Threshold(
    "copies in both directions at once, or in GPU memory, below same-model GPUs",
    0.8,
    "of the best of the peers",
    (
        "GPUs of one node of an H800 machine reached 34 GB/s and one 50; without a fault they repeat "
        "within 2%, and the memory of equal cards within 8% (357 and 385 GB/s of GTX 1080 Ti)"
    ),
)
DIRECTION_SHARE = Threshold(
    "copies of one direction below the other",
    0.8,
    "of the faster direction",
    (
        "0.87 to 0.97 in all published outputs that links.csv is based on; a P100 with memory on the "
        "other socket had 0.67 (gearshifft, pull request 82)"
    ),
)
MIN_GPUS = Threshold("GPUs in pairs before their links count as narrow", 3, "GPUs")
FASTER_TIMES = Threshold(
    "partners faster with other GPUs",
    1.5,
    "times",
    "not measured on hardware: the next wider class of link carries twice as much",
)

LOW_OVER_THE_LINK = Case(
    "copies over the link",
    "copies with the host below the expected rate of the observed link",
    severity="warning",
    remedy=(
        "Check what else limits copies: another program on the bus, an IOMMU that translates, memory of "
        "another NUMA node, few memory channels, a CPU power-saving state, PCIe errors (sudo dmesg)."
    ),
)
LOW_IN_GPU_MEMORY = Case(
    "copies in GPU memory",
    "copies in GPU memory below the expected rate",
    severity="warning",
    remedy=(
        "Check that nothing else uses the GPU and that its memory clock is up (nvidia-smi -q -d "
        "CLOCK,PERFORMANCE). ECC, or sharing the GPU by a hypervisor, lowers the rate."
    ),
)
LOW_FOR_THE_MODEL = Case(
    "widest link of the model",
    "copies with the host below the widest PCIe link of the model; its slot is unknown",
    severity="info",
    remedy=(
        "Compare with the slot (board manual; nvidia-smi -q under load: GPU Link Info). If it has no "
        "more lanes, nothing needs to be done."
    ),
)
LOW_FOR_ANY_LINK = Case(
    "no link has this rate",
    "copies with the host at a rate that no PCIe link has; its slot is unknown",
    severity="info",
    remedy=(
        "Copy with the memory of each NUMA node in turn: numactl --cpunodebind=0 --membind=0 PROGRAM, "
        "then with 1 and so on (numactl --hardware lists the nodes). The fastest is the node of the GPU. "
        "If all are equally slow, look for another program on the bus and an IOMMU that translates."
    ),
)
LOW_IN_BOTH_DIRECTIONS = Case(
    "both directions",
    "copies with the host in both directions at once below same-model GPUs",
    severity="info",
    remedy=(
        "Measure again with host memory of the GPU's own NUMA node (gputopo bandwidth --numa NODE), and "
        "compare the PCIe switches and root ports above the GPUs (gputopo inspect)."
    ),
)
LOW_BESIDE_PEERS = Case(
    "same-model GPUs",
    "copies with the host far below same-model GPUs",
    severity="warning",
    remedy=(
        "Compare generation and lanes of the links under load (gputopo inspect --watch). If the slot has "
        "as many lanes as the peers' slots, reseat card and riser, and look for PCIe errors (sudo "
        "dmesg)."
    ),
)
LOW_NVLINKS_OF_A_GPU = Case(
    "NVLinks of a GPU",
    "direct copies of one GPU over NVLink slower than on its peers",
    severity="warning",
    remedy=(
        "Compare its NVLinks and their errors with a peer's (nvidia-smi nvlink -s and -e), and look for "
        "Xid 74 (sudo dmesg). Reset the GPU or restart the machine; if it persists, have GPU and board "
        "tested."
    ),
)
LOW_PAIRS_OVER_NVLINK = Case(
    "pairs",
    "copies between GPUs below the expected rate of NVLinks",
    severity="warning",
    remedy=(
        "See nvidia-smi nvlink -s and -e for NVLinks that are down or have errors, and Xid 74 (sudo dmesg)."
    ),
)
LOW_PAIRS_OVER_PCIE = Case(
    "pairs over PCIe",
    "direct copies between GPUs below the expected rate of their PCIe links",
    severity="warning",
    remedy=(
        "Compare generation and lanes under load (gputopo inspect --watch), and look for ACS, an IOMMU "
        "that translates, and a shared uplink between the two (gputopo inspect)."
    ),
)
LOW_STAGED_PAIRS = Case(
    "pairs staged",
    "copies between GPUs through host memory below the expected rate",
    severity="warning",
    remedy=(
        "Compare generation and lanes under load (gputopo inspect --watch). Copy with the memory of each "
        "NUMA node in turn: numactl --cpunodebind=0 --membind=0 PROGRAM, then with 1 and so on."
    ),
)
BELOW_EXPECTED = Rule(
    "bandwidth.below_expected",
    "copies below the expected rate of the observed link or memory",
    remedy=(
        "Check what else limits copies: another program on the bus, an IOMMU that translates, memory of "
        "another NUMA node, few memory channels, a CPU power-saving state, PCIe errors (sudo dmesg)."
    ),
    severities=("warning", "info"),
    thresholds=(PEERS_SHARE, HALF_SHARE, ALIKE_SHARE, DIRECTION_SHARE),
    cases=(
        LOW_OVER_THE_LINK,
        LOW_IN_GPU_MEMORY,
        LOW_FOR_THE_MODEL,
        LOW_FOR_ANY_LINK,
        LOW_IN_BOTH_DIRECTIONS,
        LOW_BESIDE_PEERS,
        LOW_NVLINKS_OF_A_GPU,
        LOW_PAIRS_OVER_NVLINK,
        LOW_PAIRS_OVER_PCIE,
        LOW_STAGED_PAIRS,
    ),
)

NO_LINK_HAS_THE_RATE = (
    "no PCIe link has this rate; host memory may be on another NUMA node, or the path in use"
)
BETWEEN_GPUS: tuple[Kind, ...] = ("p2p_staged", "p2p_direct")


@check(GENERATION_DEGRADED, WIDTH_DEGRADED, LINK_FLAPPING)
def degraded(machine: Machine) -> Iterator[Fault]:
    """Find links that were slower or narrower during copies than card and slot support."""
    for gpu in present(machine):
        if not (seen := _seen(gpu, machine)):
            continue
        best, lanes = _best(seen, "pcie_gen"), _best(seen, "pcie_width")
        rates: dict[str, object] = {"generation": best, "width": lanes}
        changes = max(conditions.link_changes for conditions in seen)
        slow = generation_fault(gpu, best, "during copies", rates | _loss(gpu, best, lanes))
        narrow = width_fault(gpu, lanes, " during copies", rates | {"width_max": gpu.pcie.width_max})
        yield from filter(None, (slow, narrow))
        if changes >= COPY_FLAPS.value:
            says = f"PCIe link changed {changes} times within one measurement"
            yield LINK_FLAPPING.fault(gpu, says, rates | {"link_changes": changes})


def host_rates(machine: Machine) -> dict[int, dict[str, float]]:
    """Return for each GPU the best copy from the host and to it, by kind."""
    rates: dict[int, dict[str, float]] = {}
    samples = copies_of(machine).copies
    for kind in HOST_KINDS:
        for gpu, rate in host_link_rates(samples, kind, machine).items():
            rates.setdefault(gpu, {})[kind] = rate
    return rates


def _seen(gpu: Gpu, machine: Machine) -> list[Conditions]:
    """Return the readings of a GPU during copies over its link."""
    return [
        conditions
        for sample in copies_of(machine).copies
        if sample.kind not in ("d2d_local", "host_memory")
        for conditions in sample.conditions
        if conditions.gpu == gpu.index and conditions.readings
    ]


def _best(seen: list[Conditions], fact: str) -> int | None:
    return max((value for conditions in seen if (value := getattr(conditions, fact))), default=None)


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
    return not _seen(gpu, machine)


def narrow_links(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies are as fast as few lanes, where no source has the link (published outputs)."""
    copies, slower = host_rates(machine), _slower_than_partners(machine)
    for gpu in present(machine):
        rates = copies.get(gpu.index) or slower.get(gpu.index)
        fits = _narrow_fits(rates.values(), gpu) if rates and link_is_unknown(gpu, machine) else ()
        if rates and fits:
            row = expected_of(gpu)
            card = f"; x{row.pcie_width} card" if row and row.pcie_width else ""
            evidence: dict[str, object] = {f"{kind}_gb_per_s": round(rate, 3) for kind, rate in rates.items()}
            evidence["fits"] = [link.name for link in fits]
            yield SLOT_NARROW.fault(gpu, f"copies as fast as a {link_names(fits)} link{card}", evidence)


def common_fits(rates: Iterable[float], *gpus: Gpu) -> tuple[LinkExpectation, ...]:
    """Return the links that all rates in GB/s fit: none where the directions are not those of one link."""
    first, *others = (fitting_links(rate, gpus) for rate in rates)
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
        evidence = {"fastest_gb_per_s": fastest, "fits": [link.name for link in fits]}
        yield SLOT_NARROW.fault(MACHINE, says, evidence)


def _slower_than_partners(machine: Machine) -> dict[int, dict[str, float]]:
    """Return the fastest copy of GPUs that are slow with partners which are fast with others.

    Then it is the GPU's own link that limits: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(machine)
    best = maxima((gpu, fastest) for pair, fastest in copies.items() for gpu in pair)
    return {
        gpu: {"fastest_copy": fastest_copy}
        for gpu, fastest_copy in best.items()
        if any(
            gpu in pair and sum(best[end] for end in pair) - fastest_copy > FASTER_TIMES.value * fastest_copy
            for pair in copies
        )
    }


def _between_gpus(machine: Machine) -> dict[Pair, float]:
    every = copies_of(machine).copies
    copies = (pair_copies(every, kind) for kind in BETWEEN_GPUS)
    return maxima((pair, sample.rate) for samples in copies for pair, sample in samples.items())
