"""NVLinks that are down or count errors, and GPUs that have not joined their NVSwitch fabric.

The fabric's states: nvml.h (nvmlGpuFabricState_t, NVML_GPU_FABRIC_HEALTH_*) and NVIDIA's Fabric Manager User
Guide. Until a GPU has joined, CUDA does not start on it (CUDA_ERROR_SYSTEM_NOT_READY, 802); one that was
refused works alone, without NVLink. The same: `nvidia-smi -q`, section Fabric.
"""

from collections.abc import Iterator
from itertools import combinations

import msgspec

from gputopo.findings.kernel_log import FABRIC_MANAGER, event_evidence, log_of, severity_of, times
from gputopo.findings.rule import Case, Fault, Rule, Threshold, by_model, check, each_gpu, present
from gputopo.findings.xids import Action, known_errors
from gputopo.reference.expectations import expected_of
from gputopo.topology.hops import links_by_pair
from gputopo.topology.kernel import kernel_events
from gputopo.topology.peer_access import CAUSES, Cause, Off, acs_bridges, statuses, why_off
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges, pairs_in_words
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.subject import MACHINE, Subject

CRC_ERRORS = Threshold(
    "NVLink CRC errors",
    100,
    "errors",
    "NVIDIA/DCGM: its PCIe test fails above 100 CRC errors a second; these are since the link came up",
)
NVLINK_REPLAYS = Threshold(
    "NVLink packet replays",
    100,
    "replays",
    "not measured on hardware: occasional replays lose no data; same limit as for CRC",
)
MIN_JOINED = Threshold(
    "GPUs that are all connected by NVLink",
    3,
    "GPUs",
    "Bridges connect two cards; three that are all connected are on a board made for that",
)

NVLINK_DOWN = Rule(
    "nvlink.down",
    "fewer NVLinks up than on GPUs of the same model",
    remedy=(
        "See nvidia-smi nvlink -s for the links that are down (MIG turns them off too). Reseat the "
        "bridge; on a server board reset the GPUs (sudo nvidia-smi -r), check that nvidia-fabricmanager "
        "runs, and reboot."
    ),
    severities=("error", "warning"),
    thresholds=(MIN_JOINED,),
    fits="bridge",
)
THIN_BRIDGE = Rule(
    "nvlink.thin_bridge",
    "a pair of GPUs has fewer NVLinks than another pair",
    remedy="See nvidia-smi nvlink -s for the links that are down. Reseat the bridge, or replace it.",
    fits="bridge",
)
_FATAL = Case(
    "fabric",
    "fatal NVSwitch error: programs on the GPUs of the fabric fail",
    severity="error",
    remedy=(
        "End all programs, reset GPUs and NVSwitches together (sudo nvidia-smi -r) and restart "
        "nvidia-fabricmanager, or reboot the host. If it happens again, run nvidia-bug-report.sh and "
        "contact the vendor (NVIDIA, Fabric Manager User Guide, SXid errors)."
    ),
)
_HANDLED = Case(
    "handled",
    "NVSwitch error that was handled",
    severity="warning",
    remedy=(
        "None needed at once. If it repeats on one link, have the vendor check the module or baseboard "
        "at it (NVIDIA, Fabric Manager User Guide, SXid errors)."
    ),
)
# By their names in sxids.csv.
_ACTIONS = {
    "fabric": Action(_FATAL.remedy),
    "port": Action(
        "See Xid 74 in the log for the GPU at this link. Reset it (sudo nvidia-smi -r -i GPU; up to A100 "
        "all GPUs together: sudo nvidia-smi -r), or restart its virtual machine. If it happens again, "
        "run nvidia-bug-report.sh and contact the vendor (NVIDIA, Fabric Manager User Guide, SXid "
        "errors)."
    ),
    "handled": Action(_HANDLED.remedy),
    "none": Action("None needed."),
    "restart": Action("Start the programs of the GPU at this link again (after Xid 45)"),
    "routing": Action(
        "Restart nvidia-fabricmanager and the virtual machines with its GPUs, and check the partitions "
        "(nvswitch-audit; NVIDIA, Fabric Manager User Guide, SXid errors)."
    ),
    "connection": Action(
        "None needed after a reset or shutdown of one end. Else check the mechanical connections of "
        "modules, trays and cables (NVIDIA, Fabric Manager User Guide, SXid errors)."
    ),
    "cooling": Action(
        "Check the fans and air baffles (or liquid loop) of the server, and its inlet temperature "
        "(NVIDIA, Fabric Manager User Guide, SXid errors)."
    ),
}
SXIDS = {code: case for (code, _), case in known_errors("SXid", "sxids.csv", _ACTIONS).items()}
NVLINK_ERRORS = Rule(
    "nvlink.errors",
    "NVLink errors counted",
    remedy=(
        "See sudo dmesg | grep -i -e nvlink -e 'xid.*74'. Clean and reseat the bridge; if the counts "
        "keep rising (nvidia-smi nvlink -e), have bridge or board replaced."
    ),
    severities=("warning", "error", "info"),
    fits="bridge",
    thresholds=(CRC_ERRORS, NVLINK_REPLAYS),
    cases=tuple(SXIDS.values()),
)
_UNNUMBERED = Case("", "NVLink error", severity="warning", remedy=NVLINK_ERRORS.remedy)
NVLINK_DIFFERS = Rule(
    "nvlink.differs",
    "NVLink-C2C or fabric clique differs from GPUs of the same model",
    remedy=(
        "C2C: see sudo dmesg | grep -i c2c, and reset the GPU (sudo nvidia-smi -r -i GPU) or reboot. "
        "Clique: only GPUs of one clique reach one another by NVLink; check the fabric manager's "
        "partitions."
    ),
)
FABRIC_NOT_READY = Rule(
    "nvlink.fabric_not_ready",
    "the GPU has not joined its NVSwitch fabric",
    remedy=(
        "Check that nvidia-fabricmanager runs and has the driver's version (sudo systemctl restart "
        "nvidia-fabricmanager, then journalctl -u nvidia-fabricmanager). In a virtual machine with a "
        "part of a board, the host must assign a partition, or load the driver without NVLink "
        "(NVreg_NvLinkDisable=1)."
    ),
    severities=("error",),
)
FABRIC_UNHEALTHY = Rule(
    "nvlink.fabric_unhealthy",
    "unhealthy NVSwitch fabric reported by the driver",
    remedy=(
        "Check that nvidia-fabricmanager runs and has the driver's version (sudo systemctl restart "
        "nvidia-fabricmanager, then journalctl -u nvidia-fabricmanager). If it persists, end all "
        "programs and reset the GPUs together: sudo nvidia-smi -r."
    ),
    severities=("warning", "error"),
)

# These leave GPUs unreachable; with the others copies are slow, or wait.
_GRAVE = {("summary", "unhealthy"), ("route_unhealthy", "true")}


@check(NVLINK_DOWN)
def down(machine: Machine) -> Iterator[Fault]:
    """Find GPUs with fewer NVLinks up than GPUs of the same model, or than their board has.

    GPUs with a bridge may have any number, so of those only a partly working bridge is a fault: some links
    up, and fewer than on a peer.
    """
    # A virtual machine may have a part of a server's GPUs, and MIG turns NVLinks off: neither is a fault.
    whole = len(present(machine)) > 1 and machine.host.virtual_machine in (None, "none")
    for model in by_model(machine):
        group = [gpu for gpu in model if not gpu.mig.mode]
        if not group:
            continue
        up = {
            gpu.index: _up(gpu) for gpu in group if any(one.active is not None for one in gpu.nvlinks or ())
        }
        reference = expected_of(group[0])
        on_board = whole and reference is not None and reference.nvlink_by_bridge is False
        expected = max([*up.values(), (reference.nvlinks or 0) if reference and on_board else 0], default=0)
        for gpu in group:
            if gpu.index not in up or up[gpu.index] >= expected:
                continue
            if (on_board and gpu.nvlinks) or up[gpu.index] or _is_remote_of_peer(gpu, group):
                # As many up on each of several peers may be how their board is wired.
                alike = up[gpu.index] and len(up) == len(group) > 1 and len(set(up.values())) == 1
                evidence = {
                    "up": up[gpu.index],
                    "due": expected,
                    "down": [link.link for link in gpu.nvlinks or () if link.active is False],
                    "peers": {str(index): count for index, count in up.items()},
                }
                says = f"{up[gpu.index]} of {expected} NVLinks up"
                yield NVLINK_DOWN.fault(gpu, says, evidence, "warning" if alike else "error")


@check(THIN_BRIDGE)
def thin_bridge(machine: Machine) -> Iterator[Fault]:
    """Find pairs whose NVLink bridge has fewer links than another pair's, where GPUs are bridged in pairs.

    For captures with pairs but no ports, such as a matrix. On server boards, where a GPU has several peers,
    counts differ by design; of a machine shown in part nothing is known.
    """
    bridged = [link for link in machine.links if link.nvlinks]
    ends = [index for link in bridged for index in (link.a, link.b)]
    if any(gpu.nvlinks is not None for gpu in machine.gpus) or len(ends) != len(set(ends)):
        return
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    for link in bridged:
        widest = max(other.nvlinks or 0 for other in bridged if names.get(other.a) == names.get(link.a))
        if (link.nvlinks or 0) < widest:
            pair, evidence = f"GPUs {link.a} and {link.b}", {"nvlinks": link.nvlinks, "widest": widest}
            says = f"{link.nvlinks} NVLinks between {pair}, {widest} between another pair"
            yield THIN_BRIDGE.fault(Subject.of_link(link.a, link.b), says, evidence)


@check(NVLINK_DOWN)
def apart(machine: Machine) -> Iterator[Fault]:
    """Find GPUs without NVLink beside GPUs that are all connected to one another, as by NVSwitches.

    For captures with pairs but no ports. A GPU without a name may be of another model, such as the display
    card of a DGX Station, or in MIG mode: of those it is a warning.
    """
    gpus = [gpu for gpu in present(machine) if not gpu.mig.mode]
    if any(gpu.nvlinks is not None for gpu in gpus):
        return
    count = {pair: link.nvlinks for link in machine.links for pair in ((link.a, link.b), (link.b, link.a))}
    joined = [gpu for gpu in gpus if any(count.get((gpu.index, other.index)) for other in gpus)]
    if len(joined) < MIN_JOINED.value or not all(
        count.get((a.index, b.index)) for a, b in combinations(joined, 2)
    ):
        return
    names, links = {gpu.name for gpu in joined}, max(filter(None, count.values()))
    says = f"no NVLinks; GPUs {index_ranges(gpu.index for gpu in joined)} are all connected by {links}"
    evidence = {"joined": [gpu.index for gpu in joined], "nvlinks": links}
    for gpu in gpus:
        alone = all(count.get((gpu.index, other.index)) == 0 for other in joined)
        if gpu not in joined and gpu.name in names and alone:
            yield NVLINK_DOWN.fault(gpu, says, evidence, "warning" if gpu.name is None else "error")


@each_gpu(NVLINK_ERRORS)
def errors(gpu: Gpu) -> Iterator[Fault]:
    """Find NVLinks that recovered, with many CRC errors or replays, or errors left uncorrected."""
    bad = {str(link.link): dict(link.errors) for link in gpu.nvlinks or () if _many_errors(dict(link.errors))}
    if bad:
        words = "; ".join(
            f"link {link}: {', '.join(f'{count} {kind}' for kind, count in counts.items() if count)}"
            for link, counts in bad.items()
        ).replace("_", " ")
        yield NVLINK_ERRORS.fault(gpu, f"NVLink errors ({words})", {"errors": bad})


@check(NVLINK_ERRORS)
def logged_errors(machine: Machine) -> Iterator[Fault]:
    """Find errors of NVLinks and NVSwitches (SXid) in the kernel log. (Xid 74 is an Xid.)"""
    for gpu, event in kernel_events(machine, "sxid", "nvlink"):
        fatal = event.severity == "fatal"
        if event.code is None:
            case, what = _UNNUMBERED, f"NVLink error in the {log_of(event)}{times(event)}: {event.text}"
        else:
            case = SXIDS.get(event.code, _FATAL if fatal else _HANDLED)
            if fatal and case.severity == "info":  # as the log has it
                case = msgspec.structs.replace(case, remedy=_FATAL.remedy)
            what = f"SXid {event.code} in the {log_of(event)}{times(event)}: {case.says} ({event.text})"
        severity: Severity = "error" if fatal else case.severity
        if event.severity == "nonfatal" and severity == "error":
            severity = "warning"
        says = f"NVSwitch {event.pci_address}: {what}" if gpu is None and event.pci_address else what
        severity, evidence = severity_of(event, severity), event_evidence(event)
        no_bridge = event.code is None and event.device_driver == FABRIC_MANAGER
        remedy = _FATAL.remedy if no_bridge else case.remedy
        yield NVLINK_ERRORS.fault(gpu or MACHINE, says, evidence, severity, remedy=remedy, part=event.text)


@each_gpu(FABRIC_NOT_READY, FABRIC_UNHEALTHY)
def fabric(gpu: Gpu) -> Iterator[Fault]:
    """Find GPUs that have not joined, were refused, or report trouble. In MIG mode a GPU needs no NVLink."""
    one = gpu.fabric
    if gpu.mig.mode:
        return
    evidence = {"state": one.state, "status": one.status, "health": one.health}
    if one.joining:
        says = f"not joined to its NVSwitches (fabric state: {one.state}), so CUDA does not start on it"
        yield FABRIC_NOT_READY.fault(gpu, says, evidence)
    elif one.is_joined and one.is_accepted is False:
        says = f"refused by its NVSwitches ({one.status}), so it works without NVLink"
        yield FABRIC_NOT_READY.fault(gpu, says, evidence)
    health = (one.health or {}).items() if one.is_joined else ()
    if wrong := {name: word for name, word in health if one.is_sound.get(name) is False}:
        words = ", ".join(f"{name.replace('_', ' ')} {word}" for name, word in wrong.items())
        grave = "incorrect_configuration" in wrong or not _GRAVE.isdisjoint(wrong.items())
        severity: Severity = "error" if grave else "warning"
        yield FABRIC_UNHEALTHY.fault(gpu, f"NVSwitch fabric: {words}", evidence, severity)


def _up(gpu: Gpu) -> int:
    return sum(link.active is True for link in gpu.nvlinks or ())


def _is_remote_of_peer(gpu: Gpu, group: list[Gpu]) -> bool:
    """Return whether a GPU of the same model reports NVLinks to this one."""
    return gpu.pci_address is not None and any(
        link.active and link.remote_pci_address == gpu.pci_address
        for peer in group
        for link in peer.nvlinks or ()
    )


def _many_errors(counts: dict[str, int]) -> bool:
    crc = max(counts.get(name, 0) for name in ("crc", "crc_flit", "crc_data"))
    return (
        any(counts.get(name, 0) > 0 for name in ("recovery", "recovery_failed", "effective"))
        or crc > CRC_ERRORS.value
        or counts.get("replay", 0) > NVLINK_REPLAYS.value
    )


# These have rules of their own: pairs without P2P are part of their evidence.
_OWN_RULE = ("acs", "iommu")
# Pairs that can never be peers are no fault of the machine: the report shows them, with the cause.
_BY_DESIGN = ("different_chips", "across_sockets")
_NEVER = (*_BY_DESIGN, "geforce_policy")
_NO_FIX = "No fix exists: copies go through host memory; gputopo bandwidth measures their rate."


def _severity(cause: Cause) -> Severity:
    fixable = CAUSES[cause].fix is not None and cause in ("registry_key", "bar1", "container")
    return "warning" if fixable else "info"


P2P_OFF = Rule(
    "p2p.off",
    "no peer access (P2P) between GPUs",
    remedy="No fix exists: copies go through host memory; gputopo bandwidth measures their rate.",
    severities=("info", "warning"),
    cases=tuple(
        Case(name, cause.says, _severity(name), cause.fix or _NO_FIX)
        for name, cause in CAUSES.items()
        if name not in (*_OWN_RULE, *_BY_DESIGN)
    ),
)
P2P_ACS_ON = Rule(
    "p2p.acs_on",
    "P2P traffic is redirected through the root complex (ACS)",
    remedy=(
        "Turn ACS (and the IOMMU, if not needed) off in the BIOS, or by setpci on these bridges at each "
        "boot: NVIDIA's NCCL guide, troubleshooting, PCI Access Control Services."
    ),
    severities=("warning", "info"),
)
OFF_BY_A_VARIABLE = Case(
    "variable",
    "turned off by a variable",
    severity="info",
    remedy="Unset the variable, unless it works around a fault of these GPUs, and train again.",
)
NCCL_STAGED = Rule(
    "nccl.staged",
    "NCCL copies between GPUs of one host through host memory (SHM) or a network (NET), not by P2P",
    remedy=(
        "Look for NCCL_P2P_DISABLE and NCCL_P2P_LEVEL in the environment and in /etc/nccl.conf, and see "
        "nvidia-smi topo -p2p r and gputopo inspect on the host for peer access that is refused."
    ),
    severities=("info", "warning"),
    cases=(OFF_BY_A_VARIABLE,),
)
P2P_IOMMU = Rule(
    "p2p.iommu",
    "no peer access (P2P) between GPUs, and the IOMMU translates addresses",
    remedy="Boot with iommu=pt, or turn the IOMMU (VT-d, AMD-Vi) off in the BIOS.",
)


@check(P2P_OFF, P2P_IOMMU)
def off(machine: Machine) -> Iterator[Fault]:
    """Find pairs without P2P that could be peers: one finding for each cause."""
    for cause, pairs in grouped((why.cause, (link, why)) for link, why in _off(machine)).items():
        link, why = pairs[0]
        says = f"no P2P ({pairs_in_words((link.a, link.b) for link, _ in pairs)}): {why.says}"
        if cause == "iommu":
            evidence = {"iommu": machine.host.iommu, "pairs": [f"{one.a}-{one.b}" for one, _ in pairs]}
            yield P2P_IOMMU.fault(MACHINE, says, evidence)
        elif cause not in (*_OWN_RULE, *_BY_DESIGN):
            yield P2P_OFF.fault(
                Subject.of_link(link.a, link.b) if len(pairs) == 1 else MACHINE,
                says,
                {"cause": cause, "pairs": {f"{one.a}-{one.b}": list(statuses(one)) for one, _ in pairs}},
                _severity(cause) if why.fix is not None else "info",
                remedy=why.fix,
            )


@check(NCCL_STAGED)
def staged(machine: Machine) -> Iterator[Fault]:
    """Find GPUs of one host that NCCL does not connect by P2P; a warning where the path is a short one."""
    if machine.nccl is None:
        return
    slow = [
        (link.nccl[0].partition("/")[0], link)
        for link in machine.links
        if link.nccl and link.p2p_read in (None, "OK") and not any(via.startswith("P2P") for via in link.nccl)
    ]
    variables = [
        one for one in machine.nccl.settings if one.startswith(("NCCL_P2P_DISABLE=", "NCCL_P2P_LEVEL="))
    ]
    for name, pairs in grouped(slow).items():
        near = any(link.nvlinks or (link.hop is not None and link.hop <= Hop.PXB) for link in pairs)
        words = pairs_in_words([(link.a, link.b) for link in pairs])
        yield NCCL_STAGED.fault(
            MACHINE,
            f"NCCL connects {words} by {name}, not P2P{f' ({variables[0]})' if variables else ''}",
            {
                "transports": {f"{link.a}-{link.b}": list(link.nccl) for link in pairs},
                "settings": list(machine.nccl.settings),
            },
            "warning" if near else "info",
            case=OFF_BY_A_VARIABLE if variables else None,
        )


@check(P2P_ACS_ON)
def acs(machine: Machine) -> Iterator[Fault]:
    """Find ACS on bridges between GPUs: P2P is slow, or hangs. Also between a GPU and a network card."""
    if machine.host.virtual_machine not in (None, "none"):
        return
    bridges = acs_bridges(machine)
    to_cards = sorted({*acs_bridges(machine, nics=True)} - {*bridges})
    if to_cards:
        says = f"ACS is on between GPUs and network cards ({', '.join(to_cards)}): GPUDirect RDMA is slow"
        yield P2P_ACS_ON.fault(MACHINE, says, {"acs": machine.host.acs, "bridges": to_cards}, "info")
    if len(present(machine)) < 2:
        return
    in_tree = any(node.acs is not None for node in machine.pci)
    if (not bridges and (in_tree or machine.host.acs != "on")) or not _is_relevant(machine):
        return
    where = "ACS is on between GPUs" if bridges else "ACS is on (where is not reported)"
    yield P2P_ACS_ON.fault(
        MACHINE,
        f"{where}: P2P traffic is redirected through the root complex, is slow and may hang",
        {
            "acs": machine.host.acs,
            "bridges": list(bridges),
            "p2p_off": [f"{link.a}-{link.b}" for link, why in _off(machine) if why.cause == "acs"],
        },
    )


def _is_relevant(machine: Machine) -> bool:
    """Return whether any two GPUs may be peers below one host bridge: ACS redirects only such copies."""
    links = links_by_pair(machine)
    for a, b in combinations(sorted(gpu.index for gpu in present(machine)), 2):
        link = links.get((a, b))
        if link is None:
            return True
        why = why_off(machine, link)
        never = why is not None and why.cause in _NEVER
        if not never and (link.hop is None or link.hop <= Hop.PXB):
            return True
    return False


def _off(machine: Machine) -> Iterator[tuple[Link, Off]]:
    lost = {gpu.index for gpu in machine.gpus if gpu.lost}
    for link in links_by_pair(machine).values():
        if not {link.a, link.b} & lost:
            why = why_off(machine, link)
            if why is not None:
                yield link, why
