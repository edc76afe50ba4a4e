"""The PCIe link of each GPU: width and generation, slot, errors, shared uplinks."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from gputopo import reference
from gputopo.findings.kernel_log import event_evidence, kernel_events, severity_of
from gputopo.findings.places import is_notebook
from gputopo.findings.rule import Case, Fault, Rule, Threshold, check, facts_of, present
from gputopo.findings.usage import BUSY_PERCENT
from gputopo.reference import expected_link, expected_of, under_load
from gputopo.topology import NVIDIA_DRIVER, bridges_above
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped, maxima
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine, PciNode
from gputopo.values.subject import MACHINE

NARROW_LANES = Threshold(
    "narrow slot",
    reference.NARROW_LANES,
    "lanes or fewer",
    "not measured on hardware: eight lanes are enough for training and usual on many boards and clouds; with "
    "four the copies of every step show",
)
REPLAYS = Threshold("packet replays", 80, "replays", "NVIDIA/DCGM: its PCIe test fails above 80")
REPLAYS_BAD = Threshold(
    "many packet replays",
    11520,
    "replays",
    "NVIDIA/DCGM's health watch allows 8 replays a minute (generation 3, 16 lanes): 11520 a day",
)
# Eight idle H100 SXM had 106 to 174 each (NVIDIA/k8s-test-infra).
REPLAYS_SXM = Threshold("packet replays of an SXM module", REPLAYS_BAD.value / 10, "replays")
CORRECTED_ERRORS = Threshold(
    "corrected PCIe errors (AER)",
    480,
    "errors",
    "NVIDIA/DCGM: its PCIe test fails above 480",
)
FLAPS = Threshold(
    "link changes under load during a watch",
    3,
    "changes",
    "A link retrains once or twice when load begins or ends",
)
COPY_FLAPS = Threshold(
    "link changes during one measurement",
    2,
    "changes",
    "not measured on hardware: one change may be the last step of the clock ramp-up",
)
LOADED_SAMPLES = Threshold("samples under load before a slow link is reported", 5, "samples")
LOADED_SHARE = Threshold(
    "share of samples under load before a slow link is reported",
    0.5,
    "of the samples",
)
SHARED_TIMES = Threshold(
    "oversubscribed uplink",
    4,
    "times the uplink's rate",
    (
        "not measured on hardware: two GPUs on one uplink are usual (NVIDIA's DGX), four occur; with "
        "five, each gets less than a quarter of its link when all copy at once"
    ),
)
SHARED_SHARE = Threshold(
    "copies of GPUs at once, measured",
    0.22,
    "of the sum of each alone: a warning below",
    "Four GPUs behind one x16 link, a common board, have a quarter each (0.2485, 0.294 measured); five 0.2",
)

_USUAL = "usual for this model in servers and clouds"

USUAL_LANES = Case(
    "usual",
    "fewer lanes, as is usual for this model in servers and clouds",
    severity="info",
    remedy=(
        "None needed if the server or instance provides no more lanes for this model. If its "
        "documentation says otherwise, report it to the operator."
    ),
)
WIDTH_DEGRADED = Rule(
    "pcie.width_degraded",
    "PCIe link with fewer lanes than card and slot support",
    remedy=(
        "Power off, reseat card and riser, clean the contacts, try another slot. See the board manual: "
        "the slot may share lanes with another slot or with storage."
    ),
    severities=("warning", "info"),
    fits="slot",
    cases=(USUAL_LANES,),
)
GENERATION_DEGRADED = Rule(
    "pcie.generation_degraded",
    "PCIe link below the generation of card and slot under load",
    remedy=(
        "Reseat card and riser, or try without the riser: a bad contact lowers the link speed. Look for "
        "PCIe errors in sudo dmesg, and set the slot's generation in the BIOS by hand."
    ),
    thresholds=(LOADED_SAMPLES, LOADED_SHARE, BUSY_PERCENT),
    fits="slot",
)
LINK_FLAPPING = Rule(
    "pcie.link_flapping",
    "PCIe link changes speed or width repeatedly under load",
    remedy=(
        "Reseat card and riser, use a shorter riser, or set the slot to an earlier generation in the BIOS."
    ),
    thresholds=(FLAPS, COPY_FLAPS),
    fits="slot",
)
SLOT_NARROW = Rule(
    "pcie.slot_narrow",
    "slot or riser with fewer lanes than the card",
    remedy=(
        "If training is PCIe-bound, move the card to a wider slot, or replace the riser by one with more "
        "lanes. If the slot is wide enough (board manual, or lspci -vvv of the bridge above), reseat "
        "card and riser."
    ),
    severities=("warning", "info"),
    thresholds=(NARROW_LANES,),
    fits="slot",
    cases=(USUAL_LANES,),
)
SLOT_SLOWER = Rule(
    "pcie.slot_slower",
    "slot of an earlier PCIe generation than the card",
    remedy=(
        "Set the slot's PCIe speed to auto in the BIOS, use a riser made for the card's generation, or "
        "another slot or board."
    ),
    severities=("info",),
    fits="slot",
)
SLOW_BRIDGE = Rule(
    "pcie.slow_bridge",
    "PCIe bridge above the slot slower than the card's link",
    remedy="Prefer slots that are wired to the CPU (see the board manual).",
    fits="slot",
)
ALL_GPUS = Case(
    "all GPUs",
    "measured: all GPUs share one path to the host",
    severity="info",
    remedy=(
        "Use fewer GPUs for jobs that read much data from the host, and keep exchanged data on "
        "the GPUs. If the path is no bridge of the PCI tree, check that all memory channels are "
        "populated."
    ),
)
ALL_GPUS_TO_THE_HOST = Case(
    "all GPUs, to the host only",
    "measured: all GPUs share one path to the host, but not from it",
    severity="info",
    remedy=(
        "Use fewer GPUs for jobs that send much to the host (variables or gradients on the CPU, staged "
        "copies, checkpoints); input from the host is not limited. Keep exchanged data on the GPUs."
    ),
)
ALL_GPUS_FROM_THE_HOST = Case(
    "all GPUs, from the host only",
    "measured: all GPUs share one path from the host, but not to it",
    severity="info",
    remedy=(
        "Use fewer GPUs for jobs that read much data from the host, and keep input and "
        "variables on the GPUs. Copies to the host are not limited."
    ),
)
TO_THE_HOST = Case(
    "to the host only",
    "measured: GPUs slow each other down, only in copies to the host",
    severity="info",
    remedy=(
        "Choose GPUs of different uplinks for jobs that send much to the host (variables or gradients on "
        "the CPU, staged copies, checkpoints); input from the host is not limited."
    ),
)
FROM_THE_HOST = Case(
    "from the host only",
    "measured: GPUs slow each other down, only in copies from the host",
    severity="info",
    remedy=(
        "Choose GPUs of different uplinks for jobs that read much data from the host or staged "
        "through it; copies to the host are not limited."
    ),
)
SHARED_UPLINK = Rule(
    "pcie.shared_uplink",
    "several GPUs share an oversubscribed uplink to the CPU",
    remedy=(
        "For jobs that copy much data from or through the host, choose GPUs of different uplinks. "
        "gputopo bandwidth measures the remaining rate."
    ),
    severities=("info", "warning"),
    thresholds=(SHARED_TIMES, SHARED_SHARE),
    cases=(
        ALL_GPUS,
        ALL_GPUS_TO_THE_HOST,
        ALL_GPUS_FROM_THE_HOST,
        TO_THE_HOST,
        FROM_THE_HOST,
    ),
)
REPLAYS_OF_A_MODULE = Case(
    "SXM",
    "many packets repeated on the PCIe link of an SXM module",
    severity="info",
    remedy=(
        "Watch whether the count grows, and see sudo dmesg | grep -i aer. If it grows faster than on the "
        "other GPUs, have the operator reseat or replace the module or its baseboard."
    ),
)
PCIE_REPLAYS = Rule(
    "pcie.replays",
    "many packets repeated on a PCIe link",
    remedy=(
        "Reseat card and riser, use a shorter or better riser, or set the slot to an earlier generation "
        "in the BIOS."
    ),
    severities=("info", "warning"),
    thresholds=(REPLAYS, REPLAYS_BAD, REPLAYS_SXM),
    fits="slot",
    cases=(REPLAYS_OF_A_MODULE,),
)
PCIE_ERRORS = Rule(
    "pcie.errors",
    "PCIe errors (AER) counted by the kernel on a GPU or its slot",
    remedy="See sudo dmesg | grep -i aer. Reseat card and riser, try another slot, and update the BIOS.",
    severities=("warning", "error", "info"),
    thresholds=(CORRECTED_ERRORS,),
    fits="slot",
)

Nodes = dict[str, PciNode]


def width_fault(gpu: Gpu, lanes: int | None, when: str, evidence: dict[str, Any]) -> Fault | None:
    """Return the fault of a link with fewer lanes than card and slot support, or None; info if usual."""
    top = gpu.pcie.width_max
    if not lanes or not top or lanes >= top:
        return None
    says = f"PCIe link on {lanes} of {top} lanes{when}"
    if _is_usual(gpu, lanes):
        return WIDTH_DEGRADED.fault(gpu, f"{says}, {_USUAL}", evidence, case=USUAL_LANES)
    return WIDTH_DEGRADED.fault(gpu, says, evidence)


def generation_fault(gpu: Gpu, generation: int | None, when: str, evidence: dict[str, Any]) -> Fault | None:
    """Return the fault of a link under load below the generation of card and slot, or None."""
    top = gpu.pcie.gen_max
    if generation is None or top is None or generation >= top:
        return None
    return GENERATION_DEGRADED.fault(gpu, f"PCIe link at generation {generation} of {top} {when}", evidence)


@check(WIDTH_DEGRADED, SLOT_NARROW)
def widths(machine: Machine) -> Iterator[Fault]:
    """Find links with fewer lanes than the card. Lanes do not change with load.

    Where the slot's lanes are not reported, fewer than the card's are a narrow slot rather than a bad
    contact: that is the usual cause.
    """
    nodes = machine.pci_by_address
    gpus = present(machine)
    lost = {}
    for gpu in gpus:
        known = _slot_is_known(gpu, nodes) and not _is_soldered(gpu)
        if known and (fault := width_fault(gpu, gpu.pcie.width_now, "", _link_evidence(gpu))):
            lost[gpu.index] = fault
    # A board that splits the lanes of one slot between two gives every card half: no fault.
    halved = len(lost) > 1 and len(lost) == len(gpus) and all(_is_half(gpu) for gpu in gpus)
    for fault in lost.values():
        yield replace(fault, severity="info") if halved else fault
    widest = maxima((gpu.name, gpu.pcie.width_now or 0) for gpu in gpus)
    yield from filter(None, (_narrow_slot(gpu, nodes, widest[gpu.name]) for gpu in gpus))


@check(GENERATION_DEGRADED)
def generations(machine: Machine) -> Iterator[Fault]:
    """Find slow links of GPUs under load. An idle GPU lowers its link: then nothing is known."""
    for gpu in filter(under_load, present(machine)):
        evidence = {"pstate": gpu.pstate, "utilization_percent": gpu.utilization_percent.gpu}
        if fault := generation_fault(gpu, gpu.pcie.gen_now, "under load", _link_evidence(gpu) | evidence):
            yield fault


@check(SLOT_SLOWER, SLOW_BRIDGE)
def slots(machine: Machine) -> Iterator[Fault]:
    """Find slots of an earlier generation than their card, and slow bridges above."""
    nodes = machine.pci_by_address
    for gpu in present(machine):
        if fault := _older_slot(gpu) or (None if _has_narrow_slot(gpu, nodes) else _slow_bridge(gpu, nodes)):
            yield fault


@check(PCIE_REPLAYS, PCIE_ERRORS)
def errors(machine: Machine) -> Iterator[Fault]:
    """Find links with packet replays, and errors that the kernel counted on the GPU or its slot."""
    nodes = machine.pci_by_address
    for gpu in present(machine):
        yield from filter(None, (_replays(gpu), _aer(gpu, nodes)))


@check(PCIE_ERRORS)
def logged_errors(machine: Machine) -> Iterator[Fault]:
    """Find PCIe errors in the kernel log: of a GPU, of the ports to it alone; without GPUs, of all ports."""
    events = [
        (gpu, event)
        for gpu, event in kernel_events(machine, "aer", "pcie")
        if gpu or (not machine.gpus and event.device_driver in (None, "pcieport", NVIDIA_DRIVER))
    ]
    by_device = ((gpu.index if gpu else event.pci_address, (gpu, event)) for gpu, event in events)
    for device, of_device in grouped(by_device).items():
        gpu, events_of_device = of_device[0][0], [event for _, event in of_device]
        of_gpu = [event for event in events_of_device if not event.earlier] or events_of_device
        counts = maxima(
            (f"{event.severity} (AER)" if event.kind == "aer" else event.text, event.count)
            for event in of_gpu
        )
        severity: Severity = "error" if any(event.severity == "fatal" for event in of_gpu) else "warning"
        if counts.keys() <= {"corrected (AER)"} and max(counts.values()) <= CORRECTED_ERRORS.value:
            severity = "info"
        words = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        words += " (before the last boot)" if of_gpu[0].earlier else ""
        severity = severity_of(of_gpu[0], severity)
        evidence = {"kernel_events": list(map(event_evidence, of_gpu))}
        says = f"PCIe errors in the kernel log: {words}"
        if gpu is None:
            says = f"device {device}: {says}; whether a GPU is below it is not known"
            severity = "info" if severity == "info" else "warning"
        yield PCIE_ERRORS.fault(gpu or MACHINE, says, evidence, severity)


@check(SHARED_UPLINK)
def shared_uplinks(machine: Machine) -> Iterator[Fault]:
    """Find bridges through which several GPUs reach the CPU, and which are far too narrow for all at once."""
    shared: list[tuple[PciNode, list[Gpu], float]] = []
    nodes = machine.pci_by_address
    bridges = (
        (address, gpu)
        for gpu in present(machine)
        if gpu.pci_address in nodes
        for address in bridges_above(nodes, gpu.pci_address)[0][::-1]  # the outermost bridges first
        if address in nodes
    )
    for address, gpus in grouped(bridges).items():
        uplink = nodes[address]
        rate, gpu_nodes = uplink.max_rate, [nodes.get(gpu.pci_address or "") for gpu in gpus]
        needs = sum((node and node.max_rate) or 0 for node in gpu_nodes)
        nearer = any(set(map(id, group)) == set(map(id, gpus)) for _, group, _ in shared)
        if len(gpus) > 1 and rate and needs > SHARED_TIMES.value * rate and not nearer:
            shared.append((uplink, gpus, needs / rate))
    uplinks = {
        node.address: {"gpus": [gpu.index for gpu in gpus], "times_oversubscribed": round(times, 2)}
        for node, gpus, times in shared
    }
    if uplinks:
        groups = (
            f"GPUs {index_ranges(gpu.index for gpu in gpus)} behind {node.address}"
            for node, gpus, _ in shared
        )
        says = f"{'; '.join(groups)}: uplink oversubscribed more than {SHARED_TIMES.value}:1"
        yield SHARED_UPLINK.fault(MACHINE, says, {"uplinks": uplinks})


def _is_half(gpu: Gpu) -> bool:
    now, top = gpu.pcie.width_now, gpu.pcie.width_max
    return now is not None and now * 2 == top


def _is_soldered(gpu: Gpu) -> bool:
    """Return whether it is a laptop's GPU on half of its lanes: so they are wired."""
    return _is_half(gpu) and is_notebook(gpu)


def _is_usual(gpu: Gpu, lanes: int) -> bool:
    """Return whether servers give this model no more lanes (a Tesla T4 has 8 of 16 in most clouds)."""
    expected = expected_of(gpu)
    seen = expected.pcie_width_seen if expected else None
    return seen is not None and lanes >= seen


_LINK = ("gen_now", "gen_max", "gen_max_device", "gen_max_host", "width_now", "width_max", "limiting_hop")


def _link_evidence(gpu: Gpu) -> dict[str, object]:
    link = expected_link(gpu.pcie.gen_max, gpu.pcie.width_now)
    known = facts_of(gpu.pcie, *_LINK)
    return known | ({"copy_gb_per_s_at_this_width": link.copy_to_device_gb_per_s} if link else {})


def _card_width(gpu: Gpu, nodes: Nodes) -> tuple[int | None, str]:
    """Return the lanes of the card itself, or the maximum that its link reports, and the source."""
    node = nodes.get(gpu.pci_address or "")
    if node is not None and node.max_width is not None:
        return node.max_width, "sysfs"
    expected = expected_of(gpu)
    if expected is not None and expected.pcie_width is not None:
        return expected.pcie_width, expected.source
    return gpu.pcie.width_max, "max link width"


def _slot_is_known(gpu: Gpu, nodes: Nodes) -> bool:
    """Return whether `width_max` includes the slot, and is not the card's alone.

    nvidia-smi documents the maximum "with this GPU and system configuration", yet drivers report 16 for an
    x16 card in an x1 riser as well. So only the PCI tree, or fewer lanes than the card has, show the slot.
    """
    node = nodes.get(gpu.pci_address or "")
    slot = nodes.get(node.parent or "") if node else None
    in_tree = slot is not None and slot.max_width is not None and bool(gpu.pcie.width_max)
    return in_tree or _has_narrow_slot(gpu, nodes)


def _has_narrow_slot(gpu: Gpu, nodes: Nodes) -> bool:
    card, _ = _card_width(gpu, nodes)
    return card is not None and 0 < (gpu.pcie.width_max or 0) < card


def _narrow_slot(gpu: Gpu, nodes: Nodes, widest: int) -> Fault | None:
    """Return the fault of a slot with fewer lanes than the card. `widest`: most lanes of one of its model."""
    card, source = _card_width(gpu, nodes)
    known = _slot_is_known(gpu, nodes)
    lanes = gpu.pcie.width_max if known else gpu.pcie.width_now
    if card is None or not lanes or lanes >= card:
        return None
    usual = widest <= lanes and _is_usual(gpu, lanes)
    if not known and (usual or _is_soldered(gpu)):
        return None
    evidence = _link_evidence(gpu) | {"card_width": card, "card_width_source": source}
    if usual:
        says = f"x{card} card in an x{lanes} slot, {_USUAL}"
        return SLOT_NARROW.fault(gpu, says, evidence, case=USUAL_LANES)
    where = f"in an x{lanes} slot or riser" if known else f"on an x{lanes} link; slot width not reported"
    severity: Severity = "warning" if lanes <= NARROW_LANES.value else "info"
    return SLOT_NARROW.fault(gpu, f"x{card} card {where}", evidence, severity)


def _older_slot(gpu: Gpu) -> Fault | None:
    card, slot, now = gpu.pcie.gen_max_device, gpu.pcie.gen_max_host, gpu.pcie.gen_now
    if card is None or slot is None or slot >= card:
        return None
    if now is not None and now > slot:
        return None  # NVML's figure for the host is wrong on some systems (GB300: 4 while the link runs at 6)
    return SLOT_SLOWER.fault(
        gpu, f"PCIe generation {card} card in a generation {slot} slot", _link_evidence(gpu)
    )


def _slow_bridge(gpu: Gpu, nodes: Nodes) -> Fault | None:
    bridge = nodes.get(gpu.pcie.limiting_hop or "")
    node = nodes.get(gpu.pci_address or "")
    if bridge is None or node is None or node.parent == bridge.address:
        return None
    speed = f"{bridge.max_speed_gt_per_s or '?'} GT/s on {bridge.max_width or '?'} lanes"
    return SLOW_BRIDGE.fault(
        gpu,
        f"bridge {bridge.address} on the path to the CPU is slower than the link: {speed}",
        _link_evidence(gpu) | {"bridge": bridge.address},
    )


def is_sxm(gpu: Gpu) -> bool:
    """Return whether the GPU is known to be a module with NVLinks on a baseboard, and no card in a slot."""
    expected = expected_of(gpu)
    return expected is not None and expected.nvlink_by_bridge is False


def _replays(gpu: Gpu) -> Fault | None:
    count, rollovers = gpu.pcie.replay_counter or 0, gpu.pcie.replay_rollovers or 0
    if count <= (REPLAYS_SXM if is_sxm(gpu) else REPLAYS).value and not rollovers:
        return None
    words = f"{count} packet replays" + (f", {rollovers} rollovers of their number" if rollovers else "")
    evidence = {name: getattr(gpu.pcie, name) for name in ("replay_counter", "replay_rollovers")}
    severity: Severity = "warning" if rollovers or count >= REPLAYS_BAD.value else "info"
    case = REPLAYS_OF_A_MODULE if is_sxm(gpu) else None
    return PCIE_REPLAYS.fault(gpu, f"{words} since the last reset", evidence, severity, case=case)


def _aer(gpu: Gpu, nodes: Nodes) -> Fault | None:
    node = nodes.get(gpu.pci_address or "")
    slot = nodes.get(node.parent or "") if node else None
    readings = (gpu.pcie.aer, node.aer if node else None, slot.aer if slot else None)
    counts = maxima(item for read in readings for item in (read or {}).items())
    bad = counts.get("fatal", 0) + counts.get("nonfatal", 0)
    if not bad and counts.get("correctable", 0) <= CORRECTED_ERRORS.value:
        return None
    words = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    severity: Severity = "error" if counts.get("fatal") else "warning"
    return PCIE_ERRORS.fault(gpu, f"PCIe errors counted by the kernel: {words}", {"aer": counts}, severity)
