"""Measured copies of each GPU: its link degraded under load, narrow, below the expected rate or its peers."""

from collections.abc import Iterator
from statistics import median

from gputopo.copies.expected import link_name, links_for, with_expectations
from gputopo.copies.numbers import Pair, host_copies, host_gpu, judged, pair_copies, rate
from gputopo.copies.settling import ramp_up_samples
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
from gputopo.findings.rule import Case, Fault, Finding, Rule, Threshold, by_model, check, present, roughly
from gputopo.reference.expectations import LinkExpectation, expected_gpu, expected_link
from gputopo.values.bandwidth import Bandwidth, Conditions, Kind, Sample, gpu_of
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import MACHINE

PEERS_SHARE = Threshold(
    "copies with the host far below same-model GPUs",
    0.45,
    "of the median of the peers",
    "Many boards give one card 16 lanes and the next 8, and a far NUMA node costs a third (a P100: "
    "gearshifft, pull request 82); one H100 of four was at 0.25 (NVIDIA/nvbandwidth issue 6). The rest is "
    "for noise. Ours",
)
DIRECTION_SHARE = Threshold(
    "copies of one direction below the other",
    0.80,
    "of the faster direction",
    "0.87 to 0.97 in all published outputs that links.csv is based on; a P100 with memory on the other "
    "socket had 0.67 (gearshifft, pull request 82)",
)
PCIE_MAX_GB_PER_S = Threshold(
    "highest rate of a PCIe link",
    121.0,
    "GB/s",
    "links.csv: generation 6, 16 lanes. A higher rate is of another link: a GH200 without a fault writes to "
    "its Grace memory at 0.8 of the rate of its reads (NVIDIA/nvbandwidth issue 23)",
)
MIN_GPUS = Threshold("GPUs in pairs before their links count as narrow", 3, "GPUs", "Ours")
FASTER_TIMES = Threshold(
    "partners faster with other GPUs",
    1.5,
    "times",
    "The next wider class of link carries twice as much. Ours",
)

_COPY_CASES = {
    "copies over the link": Case(
        "copies with the host below the expected rate of the observed link",
        "Check what else limits copies: another program on the bus, an IOMMU that translates, memory of "
        "another NUMA node, few memory channels, a CPU power-saving state, PCIe errors (sudo dmesg).",
        "warning",
    ),
    "copies in GPU memory": Case(
        "copies in GPU memory below the expected rate",
        "Check that nothing else uses the GPU and that its memory clock is up (nvidia-smi -q -d "
        "CLOCK,PERFORMANCE). ECC and a GPU shared by a hypervisor cost some of it.",
        "warning",
    ),
    "same-model GPUs": Case(
        "copies with the host far below same-model GPUs",
        "Measure again, and not as the first GPU: its clocks may have been ramping up. If it persists, "
        "compare the links under load (gputopo inspect --watch), reseat card and riser, and look for PCIe "
        "errors (sudo dmesg).",
        "warning",
    ),
    "pairs": Case(
        "copies between GPUs below the expected rate of NVLinks or PCIe links",
        "For NVLinks see nvidia-smi nvlink -s and -e. Over PCIe look for ACS, an IOMMU that translates, and "
        "a shared uplink between the two.",
        "warning",
    ),
}
BELOW_EXPECTED = Rule(
    "bandwidth.below_expected",
    title="copies below the expected rate of the observed link or memory",
    remedy=_COPY_CASES["copies over the link"].remedy,
    thresholds=(PEERS_SHARE,),
    cases=_COPY_CASES,
)
DIRECTION_DIFFERS = Rule(
    "bandwidth.direction_differs",
    title="copies to and from the host differ in rate",
    remedy="Measure again with memory of the GPU's own node (--numa NODE). If it persists, look for PCIe "
    "errors (sudo dmesg), the BIOS settings for relaxed ordering and payload size, and an IOMMU that "
    "translates.",
    thresholds=(DIRECTION_SHARE, PCIE_MAX_GB_PER_S),
)

_WORDS = {"h2d": "from the host", "d2h": "to the host", "bidirectional": "from and to the host at once"}


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


@check(SLOT_NARROW)
def narrow_links(machine: Machine) -> Iterator[Fault | Finding]:
    """Find links of few lanes by their copies, where no source has the link (published outputs)."""
    if machine.bandwidth is None:
        return
    yield from _narrow_faults(machine.bandwidth, machine)
    by_themselves = host_rates(machine.bandwidth, machine) or _slower_than_partners(machine.bandwidth)
    if not by_themselves and (all_pairs := _narrow_pairs(machine.bandwidth, machine)):
        yield all_pairs


@check(BELOW_EXPECTED)
def below_expected(machine: Machine) -> Iterator[Fault]:
    """Find copies below the expected rate of the observed link, or of the GPU's memory."""
    if machine.bandwidth is None:
        return
    ramping = ramp_up_samples(machine.bandwidth, machine)
    steady = tuple(one for place, one in enumerate(machine.bandwidth.samples) if place not in ramping)
    samples = with_expectations(Bandwidth(source=machine.bandwidth.source, samples=steady), machine).samples
    by_kind: dict[Kind, dict[int, Sample]] = {
        kind: host_copies(samples, kind, machine) for kind in HOST_KINDS
    }
    for kind, index, other in _others(samples):
        best = by_kind.setdefault(kind, {})
        if index not in best or rate(other) > rate(best[index]):
            best[index] = other
    for kind, of_gpu in by_kind.items():
        case = _COPY_CASES["copies in GPU memory" if kind == "d2d_local" else "copies over the link"]
        for gpu in present(machine):
            sample = of_gpu.get(gpu.index)
            if sample is not None and rate(sample) < (sample.expected_low_gb_per_s or 0.0):
                says = _below(kind, sample)
                yield BELOW_EXPECTED.fault(gpu, says, _evidence(sample), remedy=case.remedy, part=kind)


@check(BELOW_EXPECTED)
def slower_than_peers(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose best copy with the host is far below that of GPUs of the same model.

    Where copies with the host were not measured, by those between GPUs that go through its memory. Where the
    link is known, `below_expected` and the PCIe rules judge by it; a GPU as slow as few lanes has
    `pcie.slot_narrow` already.
    """
    if machine.bandwidth is None:
        return
    narrow = {fault.gpu.index for fault in _narrow_faults(machine.bandwidth, machine)}
    best = {index: max(own.values()) for index, own in host_rates(machine.bandwidth, machine).items()}
    path = "with the host" if best else "through the host"
    best = best or _staged(machine.bandwidth)
    for group in by_model(machine):
        for gpu in group:
            peers = {str(other.index): best[other.index] for other in group if other.index in best}
            own = peers.pop(str(gpu.index), None)
            if own is None or not peers or gpu.index in narrow or not _link_is_unknown(gpu, machine):
                continue
            usual = median(peers.values())
            if own < PEERS_SHARE.value * usual:
                yield BELOW_EXPECTED.fault(
                    gpu,
                    f"copies {path} reach about {roughly(own / usual)} of those of same-model GPUs",
                    {"gb_per_s": own, "peers_gb_per_s": peers},
                    remedy=_COPY_CASES["same-model GPUs"].remedy,
                )


@check(DIRECTION_DIFFERS)
def directions(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies to and from the host differ by more than those of PCIe links without a fault."""
    if machine.bandwidth is None:
        return
    copies = host_rates(machine.bandwidth, machine)
    for gpu in present(machine):
        own = copies.get(gpu.index, {})
        if len(own) < 2 or max(own.values()) > PCIE_MAX_GB_PER_S.value:
            continue
        slower, faster = sorted(own, key=lambda kind: own[kind])
        share = own[slower] / own[faster]
        if share < DIRECTION_SHARE.value:
            says = f"copies {_WORDS[slower]} reach about {roughly(share)} of those {_WORDS[faster]}"
            yield DIRECTION_DIFFERS.fault(
                gpu, says, {f"{kind}_gb_per_s": round(own[kind], 3) for kind in own}
            )


def host_rates(bandwidth: Bandwidth, machine: Machine) -> dict[int, dict[str, float]]:
    """Return for each GPU the best copy from the host and to it, by kind."""
    found: dict[int, dict[str, float]] = {}
    for kind in HOST_KINDS:
        for gpu, sample in host_copies(bandwidth.samples, kind, machine).items():
            found.setdefault(gpu, {})[kind] = rate(sample)
    return found


def _under_load(machine: Machine) -> Iterator[tuple[Gpu, list[Conditions]]]:
    """Yield the conditions of those copies of each GPU that used its PCIe link."""
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    for gpu in present(machine):
        seen = [
            one
            for sample in samples
            if sample.kind not in ("d2d_local", "host_memory", "latency", "allreduce")
            for one in sample.conditions
            if one.gpu == gpu.index and one.readings
        ]
        if seen:
            yield gpu, seen


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


def _link_is_unknown(gpu: Gpu, machine: Machine) -> bool:
    """Return whether no source, and no reading during copies, has the lanes of a GPU's link."""
    seen = any(other.index == gpu.index for other, _ in _under_load(machine))
    return gpu.pcie.width_now is None and gpu.pcie.width_max is None and not seen


def _narrow_faults(bandwidth: Bandwidth, machine: Machine) -> list[Fault]:
    """Return the GPUs whose copies are as fast as few lanes, where no source has the link."""
    copies, slower = host_rates(bandwidth, machine), _slower_than_partners(bandwidth)
    faults = []
    for gpu in present(machine):
        own = copies.get(gpu.index) or slower.get(gpu.index)
        fits = _narrow_fits(max(own.values()), gpu) if own and _link_is_unknown(gpu, machine) else ()
        if own and fits:
            row = expected_gpu(gpu.name, gpu.pci_device_id)
            card = f"; x{row.pcie_width} card" if row and row.pcie_width else ""
            evidence: dict[str, object] = {f"{kind}_gb_per_s": round(rate, 3) for kind, rate in own.items()}
            evidence["fits"] = list(map(link_name, fits))
            faults.append(SLOT_NARROW.fault(gpu, f"copies as fast as a {_names(fits)} link{card}", evidence))
    return faults


def _narrow_fits(gb_per_s: float, gpu: Gpu | None) -> tuple[LinkExpectation, ...]:
    """Return the links that copies at this rate fit; none if a wide one is among them."""
    fits = tuple(links_for(gb_per_s, gpu))
    return () if any(link.width > NARROW_LANES.value for link in fits) else fits


def _names(fits: tuple[LinkExpectation, ...]) -> str:
    first, *others = map(link_name, fits)
    return first + (f" (or {', '.join(others)})" if others else "")


def _narrow_pairs(bandwidth: Bandwidth, machine: Machine) -> Finding | None:
    """Where only copies between GPUs are known: if none is faster than a narrow link, links are narrow.

    One wide link may be among them: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(bandwidth)
    gpus = {gpu for pair in copies for gpu in pair}
    measured = [gpu for gpu in present(machine) if gpu.index in gpus]
    if len(gpus) < MIN_GPUS.value or any(not _link_is_unknown(gpu, machine) for gpu in measured):
        return None
    fastest = max(copies.values())
    fits = _narrow_fits(fastest, None)
    if not fits:
        return None
    return SLOT_NARROW.finding(
        MACHINE,
        f"no two of {len(gpus)} GPUs copy faster than {fastest:.2f} GB/s, the rate of a {_names(fits)} link: "
        "all of them, or all but one, have such links",
        {"fastest_gb_per_s": fastest, "fits": list(map(link_name, fits))},
    )


def _slower_than_partners(bandwidth: Bandwidth) -> dict[int, dict[str, float]]:
    """Return the fastest copy of GPUs that are slow with partners which are fast with others.

    Then it is the GPU's own link that limits: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(bandwidth)
    best = _best_of_each(copies)
    return {
        gpu: {"fastest_copy": own}
        for gpu, own in best.items()
        if any(
            gpu in pair and sum(best[end] for end in pair) - own > FASTER_TIMES.value * own for pair in copies
        )
    }


def _between_gpus(bandwidth: Bandwidth) -> dict[Pair, float]:
    found: dict[Pair, float] = {}
    kinds: tuple[Kind, ...] = ("p2p_staged", "p2p_direct")
    for kind in kinds:
        for pair, sample in pair_copies(bandwidth.samples, kind).items():
            found[pair] = max(rate(sample), found.get(pair, 0.0))
    return found


def _staged(bandwidth: Bandwidth) -> dict[int, float]:
    """Return each GPU's fastest copy through host memory; direct ones may use an NVLink bridge."""
    copies = pair_copies(bandwidth.samples, "p2p_staged")
    return _best_of_each({pair: rate(sample) for pair, sample in copies.items()})


def _best_of_each(copies: dict[Pair, float]) -> dict[int, float]:
    best: dict[int, float] = {}
    for pair, fastest in copies.items():
        for gpu in pair:
            best[gpu] = max(fastest, best.get(gpu, 0.0))
    return best


def _others(samples: tuple[Sample, ...]) -> Iterator[tuple[Kind, int, Sample]]:
    """Yield copies in GPU memory and of both directions at once: what host_copies does not return."""
    for sample in judged(samples):
        index = gpu_of(sample.source) if sample.kind == "d2d_local" else host_gpu(sample)
        if index is not None and sample.kind in ("d2d_local", "bidirectional"):
            yield sample.kind, index, sample


def _below(kind: Kind, sample: Sample) -> str:
    what = "copies in GPU memory" if kind == "d2d_local" else f"copies {_WORDS[kind]}"
    share = rate(sample) / (sample.expected_gb_per_s or rate(sample))
    return f"{what} reach about {roughly(share)} of the expected rate: {sample.expected_source}"


def _evidence(sample: Sample) -> dict[str, object]:
    return {
        "gb_per_s": round(rate(sample), 3),
        "expected_gb_per_s": sample.expected_gb_per_s,
        "expected_low_gb_per_s": sample.expected_low_gb_per_s,
        "source": sample.expected_source,
    }
