"""What measured copies tell of each GPU's link: degraded under load, narrow, slower than it should be."""

from collections.abc import Iterator

from gputopo.copies.expected import link_name, links_for, with_expectations
from gputopo.copies.numbers import Pair, host_copies, host_gpu, judged, pair_copies, rate
from gputopo.copies.settling import waking_samples
from gputopo.copies.sharing import HOST_KINDS
from gputopo.findings.fault import Fault, findings_of, present, roughly
from gputopo.findings.finding import Finding, Severity
from gputopo.findings.links import NARROW_LANES
from gputopo.reference.expectations import expected_gpu, expected_link
from gputopo.values.bandwidth import Bandwidth, Conditions, Kind, Sample, gpu_of
from gputopo.values.machine import Gpu, Machine

# Copies to the device and from it: 0.87 to 0.97 of each other in all published outputs that links.csv rests
# on; a P100 whose memory was on the other socket had 0.67 (gearshifft, pull request 82).
DIRECTION_SHARE = 0.80
# The most that a PCIe link carries one way (links.csv: generation 6, 16 lanes). More goes over another link:
# a sound GH200 writes to its Grace's memory at 0.8 of the rate of its reads (NVIDIA/nvbandwidth issue 23).
PCIE_MOST_GB_PER_S = 121.0
# A link that trains anew under load is a bad contact; once may be the card's last step of waking up. Ours.
FLAPS = 2
# Pairs are narrow by their links if none of at least this many GPUs is in a faster pair. Ours.
FEWEST_GPUS = 3
# The next wider class of link carries twice as much. A GPU whose partners are this much faster with others is
# limited by its own link. Ours.
FASTER_TIMES = 1.5

_SEAT = (
    "seat card and riser again or try without the riser (a bad contact makes the link fall back), look for "
    "PCIe errors in sudo dmesg, and set the slot's generation in the BIOS by hand"
)
_WIDER = (
    "if the card is in a narrow slot or on a riser, move it to a wider slot, or replace the riser by one "
    "with more lanes; without that keep what it exchanges with the host and its peers small"
)
_WORDS = {"h2d": "from the host", "d2h": "to the host", "bidirectional": "from and to the host at once"}


def degraded(machine: Machine) -> Iterator[Finding]:
    """Find links that were slower or narrower while copies ran than card and slot can do together."""
    slow, narrow, flapping = [], [], []
    for gpu, seen in _under_load(machine):
        best, lanes = _best(seen, "pcie_gen"), _best(seen, "pcie_width")
        rates: dict[str, object] = {"generation": best, "width": lanes}
        due, widest = gpu.pcie.gen_max, gpu.pcie.width_max
        if best and due and best < due:
            says = f"its PCIe link ran at generation {best} of {due} while copies ran over it"
            slow.append(Fault(gpu, says, rates | _loss(best, due, lanes), "warning"))
        if lanes and widest and lanes < widest:
            says = f"its PCIe link had {lanes} of {widest} lanes while copies ran over it"
            narrow.append(Fault(gpu, says, rates | {"width_max": widest}, _narrow_severity(gpu, lanes)))
        changes = max(one.link_changes for one in seen)
        if changes >= FLAPS:
            says = f"its link changed {changes} times within one measurement"
            flapping.append(Fault(gpu, says, rates | {"link_changes": changes}, "warning"))
    yield from findings_of("pcie.generation_degraded", slow, _SEAT, machine)
    yield from findings_of("pcie.width_degraded", narrow, _SEAT, machine)
    yield from findings_of("pcie.link_flapping", flapping, _SEAT, machine)


def narrow_links(machine: Machine) -> Iterator[Finding]:
    """Recognise links of few lanes by their copies, where no source tells the link (published outputs)."""
    if machine.bandwidth is None:
        return
    copies = host_rates(machine.bandwidth, machine)
    slower = _slower_than_partners(machine.bandwidth)
    yield from findings_of("pcie.slot_narrow", narrow_faults(machine), _WIDER, machine)
    if not copies and not slower and (all_pairs := _narrow_pairs(machine.bandwidth, machine)):
        yield all_pairs


def narrow_faults(machine: Machine) -> list[Fault]:
    """Give the GPUs whose copies are as fast as few lanes carry, where no source tells the link."""
    if machine.bandwidth is None:
        return []
    copies = host_rates(machine.bandwidth, machine)
    slower = _slower_than_partners(machine.bandwidth)
    faults = []
    for gpu in present(machine):
        own = copies.get(gpu.index) or slower.get(gpu.index)
        if own and link_is_unknown(gpu, machine) and (fault := _narrow(gpu, own)):
            faults.append(fault)
    return faults


def below_expected(machine: Machine) -> Iterator[Finding]:
    """Find copies that are slower than the link, as it was seen, or the card's memory lets expect."""
    if machine.bandwidth is None:
        return
    asleep = waking_samples(machine.bandwidth, machine)
    awake = tuple(one for place, one in enumerate(machine.bandwidth.samples) if place not in asleep)
    judged_by = with_expectations(Bandwidth(source=machine.bandwidth.source, samples=awake), machine).samples
    by_kind: dict[Kind, dict[int, Sample]] = {}
    for kind in HOST_KINDS:
        by_kind[kind] = host_copies(judged_by, kind, machine)
    for kind, index, other in _others(judged_by):
        best = by_kind.setdefault(kind, {})
        if index not in best or rate(other) > rate(best[index]):
            best[index] = other
    for kind, samples in by_kind.items():
        faults = [
            Fault(gpu, _below(kind, sample), _evidence(sample), "warning")
            for gpu in present(machine)
            if (sample := samples.get(gpu.index)) is not None
            and sample.expected_low_gb_per_s is not None
            and rate(sample) < sample.expected_low_gb_per_s
        ]
        yield from findings_of("bandwidth.below_expected", faults, _remedy(kind), machine)


def directions(machine: Machine) -> Iterator[Finding]:
    """Find GPUs whose copies to and from the host differ by more than those of sound PCIe links do."""
    if machine.bandwidth is None:
        return
    copies = host_rates(machine.bandwidth, machine)
    faults = []
    for gpu in present(machine):
        own = copies.get(gpu.index, {})
        if len(own) < 2:
            continue
        share = min(own.values()) / max(own.values())
        if share < DIRECTION_SHARE and max(own.values()) <= PCIE_MOST_GB_PER_S:
            slower, faster = sorted(own, key=lambda kind: own[kind])
            says = f"copies {_WORDS[slower]} reach about {roughly(share)} of those {_WORDS[faster]}"
            evidence: dict[str, object] = {f"{kind}_gb_per_s": round(own[kind], 3) for kind in own}
            faults.append(Fault(gpu, says, evidence, "warning"))
    yield from findings_of(
        "bandwidth.direction_differs",
        faults,
        "measure again with the memory on the GPU's own node (--numa NODE); if it stays, look for PCIe "
        "errors (sudo dmesg), a BIOS setting of relaxed ordering or payload size, and an IOMMU that "
        "translates",
        machine,
    )


def _under_load(machine: Machine) -> Iterator[tuple[Gpu, list[Conditions]]]:
    """Give the conditions of those copies of each GPU that ran over its PCIe link."""
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
    return max((value for one in seen if (value := getattr(one, fact)) is not None), default=None)


def _loss(best: int, due: int, lanes: int | None) -> dict[str, object]:
    now, could = expected_link(best, lanes), expected_link(due, lanes)
    if now is None or could is None:
        return {"generation_max": due}
    return {
        "generation_max": due,
        "copy_gb_per_s_now": now.copy_to_device_gb_per_s,
        "copy_gb_per_s_possible": could.copy_to_device_gb_per_s,
    }


def _narrow_severity(gpu: Gpu, lanes: int) -> Severity:
    """Sound servers give some models fewer lanes (a Tesla T4 has 8 of 16 in most clouds)."""
    row = expected_gpu(gpu.name, gpu.pci_device_id)
    usual = row.pcie_width_seen if row else None
    return "info" if usual is not None and lanes >= usual else "warning"


def host_rates(bandwidth: Bandwidth, machine: Machine) -> dict[int, dict[str, float]]:
    """Give for each GPU the best copy from the host and to it, by kind."""
    found: dict[int, dict[str, float]] = {}
    for kind in HOST_KINDS:
        for gpu, sample in host_copies(bandwidth.samples, kind, machine).items():
            found.setdefault(gpu, {})[kind] = rate(sample)
    return found


def link_is_unknown(gpu: Gpu, machine: Machine) -> bool:
    """Tell whether no source, and no reading while copies ran, has the lanes of a GPU's link."""
    seen = any(index.index == gpu.index for index, _ in _under_load(machine))
    return gpu.pcie.width_now is None and gpu.pcie.width_max is None and not seen


def _narrow(gpu: Gpu, own: dict[str, float]) -> Fault | None:
    fastest = max(own.values())
    fits = links_for(fastest, gpu)
    if not fits or any(link.width > NARROW_LANES for link in fits):
        return None
    row = expected_gpu(gpu.name, gpu.pci_device_id)
    first, others = link_name(fits[0]), [link_name(link) for link in fits[1:]]
    other = f" (or {', '.join(others)})" if others else ""
    card = f"; the card has {row.pcie_width} lanes" if row and row.pcie_width else ""
    evidence: dict[str, object] = {f"{kind}_gb_per_s": round(value, 3) for kind, value in own.items()}
    says = f"its copies are as fast as a {first} link carries{other}{card}"
    return Fault(gpu, says, evidence | {"fits": [first, *others]}, "warning")


def _narrow_pairs(bandwidth: Bandwidth, machine: Machine) -> Finding | None:
    """Where only copies between GPUs are known: if none is faster than a narrow link, links are narrow.

    One wide link may be among them: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(bandwidth)
    gpus = {gpu for pair in copies for gpu in pair}
    told = [gpu for gpu in present(machine) if gpu.index in gpus]
    if len(gpus) < FEWEST_GPUS or any(not link_is_unknown(gpu, machine) for gpu in told):
        return None
    fastest = max(copies.values())
    fits = links_for(fastest, None)
    if not fits or any(link.width > NARROW_LANES for link in fits):
        return None
    names = [link_name(link) for link in fits]
    others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
    return Finding(
        id="pcie.slot_narrow",
        severity="warning",
        subject="machine",
        says=f"no two of {len(gpus)} GPUs copy faster than {fastest:.2f} GB/s, what a {names[0]} link "
        f"carries{others}: all of them, or all but one, have such links",
        evidence={"fastest_gb_per_s": fastest, "fits": names},
        remedy=_WIDER,
    )


def _slower_than_partners(bandwidth: Bandwidth) -> dict[int, dict[str, float]]:
    """Give the fastest copy of GPUs that are slow with partners which are fast with others.

    Then it is the GPU's own link that limits: a copy is as slow as the slower of its two ends.
    """
    copies = _between_gpus(bandwidth)
    best: dict[int, float] = {}
    for pair, fastest in copies.items():
        for gpu in pair:
            best[gpu] = max(fastest, best.get(gpu, 0.0))
    return {
        gpu: {"fastest_copy": own}
        for gpu, own in best.items()
        if any(gpu in pair and best[pair[0]] + best[pair[1]] - own > FASTER_TIMES * own for pair in copies)
    }


def _between_gpus(bandwidth: Bandwidth) -> dict[Pair, float]:
    found: dict[Pair, float] = {}
    kinds: tuple[Kind, ...] = ("p2p_staged", "p2p_direct")
    for kind in kinds:
        for pair, sample in pair_copies(bandwidth.samples, kind).items():
            found[pair] = max(rate(sample), found.get(pair, 0.0))
    return found


def _others(samples: tuple[Sample, ...]) -> Iterator[tuple[Kind, int, Sample]]:
    """Give local copies and both ways at once: what host_copies does not give."""
    for sample in judged(samples):
        index = gpu_of(sample.source) if sample.kind == "d2d_local" else host_gpu(sample)
        if index is not None and sample.kind in ("d2d_local", "bidirectional"):
            yield sample.kind, index, sample


def _below(kind: Kind, sample: Sample) -> str:
    what = "copies within its memory" if kind == "d2d_local" else f"copies {_WORDS[kind]}"
    share = rate(sample) / (sample.expected_gb_per_s or rate(sample))
    return f"{what} reach about {roughly(share)} of what is expected: {sample.expected_source}"


def _evidence(sample: Sample) -> dict[str, object]:
    return {
        "gb_per_s": round(rate(sample), 3),
        "expected_gb_per_s": sample.expected_gb_per_s,
        "expected_low_gb_per_s": sample.expected_low_gb_per_s,
        "source": sample.expected_source,
    }


def _remedy(kind: Kind) -> str:
    if kind == "d2d_local":
        return (
            "see that nothing else uses the card and that its memory clock is up (nvidia-smi -q -d "
            "CLOCK,PERFORMANCE); error correction and a card shared by a hypervisor cost some of it"
        )
    return (
        "the link is as wide and fast as told, so look beside it: another program on the bus, an IOMMU that "
        "translates, memory of another node, few memory channels, a CPU in a power-saving state, PCIe errors "
        "(sudo dmesg)"
    )
