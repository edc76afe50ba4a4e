"""The PCIe link of each GPU: its width and generation, the slot, and errors on the way."""

import re
from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding, Severity
from gputopo.findings.load import at_work
from gputopo.reference.expectations import expected_gpu, expected_link
from gputopo.values.machine import Gpu, Machine, PciNode

# Training is fed well enough through eight lanes, and many boards and clouds give no more; with four and
# fewer the copies of every step show. Ours.
NARROW_LANES = 4
# NVIDIA/DCGM: its PCIe test fails above 80 replays, and above 480 corrected errors (AER).
REPLAYS = 80
CORRECTED_ERRORS = 480
# NVIDIA/DCGM's health watch allows 8 replays a minute (generation 3, 16 lanes): a day's worth of that.
REPLAYS_BAD = 8 * 60 * 24


def widths(machine: Machine) -> Iterator[Finding]:
    """Find links with fewer lanes than card and slot can do together. Lanes do not change with load."""
    gpus = present(machine)
    lost = {gpu.index: lanes for gpu in gpus if (lanes := _lost_lanes(gpu)) and not _is_soldered(gpu, *lanes)}
    # A board that splits the lanes of one slot between two gives every card half: nothing is broken.
    halved = len(lost) > 1 and len(lost) == len(gpus) and all(now * 2 == top for now, top in lost.values())
    faults = [
        Fault(
            gpu,
            f"its PCIe link runs on {lost[gpu.index][0]} of {lost[gpu.index][1]} lanes",
            _evidence(gpu),
            "info" if halved or _usual(gpu) else "warning",
        )
        for gpu in gpus
        if gpu.index in lost
    ]
    yield from findings_of(
        "pcie.width_degraded",
        faults,
        "power off, seat the card (and riser) again, clean the contacts, try another slot; see in the "
        "board's manual whether the slot shares lanes with another slot or with storage",
        machine,
    )


def generations(machine: Machine) -> Iterator[Finding]:
    """Find slow links of cards that were at work. An idle card lowers its link: then nothing can be told."""
    faults = [
        Fault(
            gpu,
            f"it works, and its link runs at generation {gpu.pcie.gen_now} of {gpu.pcie.gen_max}",
            _evidence(gpu) | {"pstate": gpu.pstate, "utilization_percent": gpu.utilization_percent.gpu},
            "warning",
        )
        for gpu in present(machine)
        if gpu.pcie.gen_now is not None
        and gpu.pcie.gen_max is not None
        and gpu.pcie.gen_now < gpu.pcie.gen_max
        and at_work(gpu)
    ]
    yield from findings_of(
        "pcie.generation_degraded",
        faults,
        "seat card and riser again or try without the riser (a bad contact makes the link fall back), look "
        "for PCIe errors in sudo dmesg, and set the slot's generation in the BIOS by hand",
        machine,
    )


def slots(machine: Machine) -> Iterator[Finding]:
    """Find slots with fewer lanes or of an earlier generation than their card, and slow bridges above."""
    nodes = {node.address: node for node in machine.pci}
    gpus = present(machine)
    narrow = [fault for gpu in gpus if (fault := _narrow_slot(gpu, nodes))]
    yield from findings_of(
        "pcie.slot_narrow",
        narrow,
        "the card is sound: if it feeds on too little data, move it to a wider slot, or replace the riser by "
        "one with more lanes",
        machine,
    )
    fewer = [fault for gpu in gpus if (fault := _fewer_than_card(gpu, nodes))]
    yield from findings_of(
        "pcie.slot_narrow",
        fewer,
        "see how many lanes the slot has (the board's manual, or lspci -vvv of the bridge above): if as many "
        "as the card, seat card and riser again; else use a wider slot or riser if data come in too slowly",
        machine,
    )
    older = [fault for gpu in gpus if (fault := _older_slot(gpu))]
    yield from findings_of(
        "pcie.slot_slower",
        older,
        "the card is sound: see that the BIOS does not hold the slot back (PCIe speed: auto), that a riser "
        "is made for the card's generation, or use another slot or board",
        machine,
    )
    known = {fault.gpu.index for fault in (*narrow, *older)}
    above = [fault for gpu in gpus if gpu.index not in known and (fault := _slow_bridge(gpu, nodes))]
    yield from findings_of(
        "pcie.slow_bridge",
        above,
        "the slot is fast enough, what it hangs on is not: prefer slots that are wired to the CPU (see the "
        "board's manual)",
        machine,
    )


def errors(machine: Machine) -> Iterator[Finding]:
    """Find links that repeat packets, and errors that the kernel counted on the card or its slot."""
    gpus = present(machine)
    yield from findings_of(
        "pcie.replays",
        [fault for gpu in gpus if (fault := _replays(gpu))],
        "the link is noisy: seat card and riser again, use a shorter or better riser, or set the slot to an "
        "earlier generation in the BIOS",
        machine,
    )
    nodes = {node.address: node for node in machine.pci}
    yield from findings_of(
        "pcie.errors",
        [fault for gpu in gpus if (fault := _aer(gpu, nodes))],
        "sudo dmesg | grep -i aer names the errors: seat card and riser again, try another slot, and update "
        "the BIOS",
        machine,
    )


def _lost_lanes(gpu: Gpu) -> tuple[int, int] | None:
    now, top = gpu.pcie.width_now, gpu.pcie.width_max
    return (now, top) if now and top and now < top else None


def _is_soldered(gpu: Gpu, now: int, top: int) -> bool:
    """Tell whether it is a laptop's GPU on half of its lanes: so makers wire them."""
    return now * 2 == top and re.search(r"\b(?:Laptop GPU|with Max-Q Design)\b", gpu.name or "") is not None


def _usual(gpu: Gpu) -> bool:
    """Tell whether sound servers give this model no more lanes (a Tesla T4 has 8 of 16 in most clouds)."""
    expected = expected_gpu(gpu.name, gpu.pci_device_id)
    seen = expected.pcie_width_seen if expected else None
    return seen is not None and gpu.pcie.width_now is not None and gpu.pcie.width_now >= seen


def _evidence(gpu: Gpu) -> dict[str, object]:
    link = expected_link(gpu.pcie.gen_max, gpu.pcie.width_now)
    told = {
        name: getattr(gpu.pcie, name)
        for name in ("gen_now", "gen_max", "gen_max_device", "gen_max_host", "width_now", "width_max")
    }
    known: dict[str, object] = {name: value for name, value in told.items() if value is not None}
    if gpu.pcie.limiting_hop:
        known["limiting_hop"] = gpu.pcie.limiting_hop
    if link:
        known["copy_gb_per_s_at_this_width"] = link.copy_to_device_gb_per_s
    return known


def _card_width(gpu: Gpu, nodes: dict[str, PciNode]) -> tuple[int | None, str]:
    """Give the lanes of the card itself, and where that was read."""
    node = nodes.get(gpu.pci_address or "")
    if node is not None and node.max_width is not None:
        return node.max_width, "sysfs"
    expected = expected_gpu(gpu.name, gpu.pci_device_id)
    return (expected.pcie_width, expected.source) if expected else (None, "")


def _narrow_slot(gpu: Gpu, nodes: dict[str, PciNode]) -> Fault | None:
    own, source = _card_width(gpu, nodes)
    slot = gpu.pcie.width_max
    if own is None or not slot or slot >= own:
        return None
    severity: Severity = "warning" if slot <= NARROW_LANES else "info"
    plural = "s" if slot > 1 else ""
    says = f"its slot (or riser) has {slot} lane{plural}, the card {own}"
    return Fault(gpu, says, _evidence(gpu) | {"card_width": own, "card_width_source": source}, severity)


def _fewer_than_card(gpu: Gpu, nodes: dict[str, PciNode]) -> Fault | None:
    """Hold the link against the card where the slot is not told, as by `lspci -vvv` of the card alone."""
    own, source = _card_width(gpu, nodes)
    now = gpu.pcie.width_now
    if gpu.pcie.width_max or own is None or not now or now >= own or _usual(gpu):
        return None
    severity: Severity = "warning" if now <= NARROW_LANES else "info"
    plural = "s" if now > 1 else ""
    says = f"its PCIe link has {now} lane{plural}, the card {own}; what its slot has is not told"
    return Fault(gpu, says, _evidence(gpu) | {"card_width": own, "card_width_source": source}, severity)


def _older_slot(gpu: Gpu) -> Fault | None:
    card, slot, now = gpu.pcie.gen_max_device, gpu.pcie.gen_max_host, gpu.pcie.gen_now
    if card is None or slot is None or slot >= card:
        return None
    if now is not None and now > slot:
        return None  # NVML's figure for the host is wrong on some systems (GB300: 4 while the link runs at 6)
    return Fault(
        gpu, f"its slot is of PCIe generation {slot}, the card of generation {card}", _evidence(gpu), "info"
    )


def _slow_bridge(gpu: Gpu, nodes: dict[str, PciNode]) -> Fault | None:
    bridge = nodes.get(gpu.pcie.limiting_hop or "")
    own = nodes.get(gpu.pci_address or "")
    if bridge is None or own is None or own.parent == bridge.address:
        return None
    evidence = _evidence(gpu) | {"bridge": bridge.address}
    speed = f"{bridge.max_speed_gt_per_s or '?'} GT/s on {bridge.max_width or '?'} lanes"
    return Fault(
        gpu,
        f"bridge {bridge.address} on its way to the CPU is slower than its link: {speed}",
        evidence,
        "warning",
    )


def _replays(gpu: Gpu) -> Fault | None:
    count = gpu.pcie.replay_counter
    if count is None or count <= REPLAYS:
        return None
    severity: Severity = "warning" if count >= REPLAYS_BAD else "info"
    return Fault(
        gpu,
        f"its link repeated {count} packets since the driver was loaded",
        {"replay_counter": count},
        severity,
    )


def _aer(gpu: Gpu, nodes: dict[str, PciNode]) -> Fault | None:
    node = nodes.get(gpu.pci_address or "")
    slot = nodes.get(node.parent or "") if node else None
    counts: dict[str, int] = {}
    for told in (gpu.pcie.aer, node.aer if node else None, slot.aer if slot else None):
        for kind, count in (told or {}).items():
            counts[kind] = max(counts.get(kind, 0), count)
    bad = counts.get("fatal", 0) + counts.get("nonfatal", 0)
    if not bad and counts.get("correctable", 0) <= CORRECTED_ERRORS:
        return None
    severity: Severity = "error" if counts.get("fatal") else "warning"
    words = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return Fault(gpu, f"the kernel counted PCIe errors on its link: {words}", {"aer": counts}, severity)
