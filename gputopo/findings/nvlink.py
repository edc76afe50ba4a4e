"""NVLinks that are down or count errors, and GPUs that have not joined their NVSwitch fabric.

The fabric's states: nvml.h (nvmlGpuFabricState_t, NVML_GPU_FABRIC_HEALTH_*) and NVIDIA's Fabric Manager User
Guide. Until a GPU has joined, CUDA does not start on it (CUDA_ERROR_SYSTEM_NOT_READY, 802); one that was
refused works alone, without NVLink. The same: `nvidia-smi -q`, section Fabric.
"""

from collections.abc import Iterator
from itertools import combinations

import msgspec

from gputopo.findings.kernel_log import (
    FABRIC_MANAGER,
    event_evidence,
    kernel_events,
    log_of,
    severity_of,
    times,
)
from gputopo.findings.rule import Case, Fault, Rule, Threshold, by_model, check, each_gpu, present
from gputopo.findings.xids import Action, known_errors
from gputopo.reference import expected_of
from gputopo.values.finding import Severity
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine
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
    remedy="See nvidia-smi nvlink -s for the links that are down. Reseat or replace the bridge.",
    fits="bridge",
)
_FATAL = Case(
    "fabric",
    "fatal NVSwitch error: programs on the GPUs of the fabric fail",
    severity="error",
    remedy=(
        "Stop all programs, reset GPUs and NVSwitches together (sudo nvidia-smi -r) and restart "
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
    "restart": Action(
        "Start the programs of the GPU at this link again (after Xid 45), or its virtual machine (NVIDIA, "
        "Fabric Manager User Guide, SXid errors)."
    ),
    "routing": Action(
        "Restart nvidia-fabricmanager and the virtual machines with its GPUs, and check the partitions "
        "(nvswitch-audit; NVIDIA, Fabric Manager User Guide, SXid errors)."
    ),
    "connection": Action(
        "None needed after a reset or shutdown of one end. Otherwise check the mechanical connections of "
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
_UNNUMBERED = Case("", "NVLink error", severity="warning", remedy=NVLINK_ERRORS.remedy, fits="bridge")
NVLINK_DIFFERS = Rule(
    "nvlink.differs",
    "NVLink-C2C or fabric clique differs from GPUs of the same model",
    remedy=(
        "C2C: see sudo dmesg | grep -i c2c, and reset the GPU (sudo nvidia-smi -r -i GPU) or reboot. "
        "Clique: only GPUs of one clique are connected by NVLink; check the fabric manager's partitions."
    ),
)
FABRIC_NOT_READY = Rule(
    "nvlink.fabric_not_ready",
    "the GPU has not joined its NVSwitch fabric",
    remedy=(
        "Check that nvidia-fabricmanager runs and has the driver's version (sudo systemctl restart "
        "nvidia-fabricmanager, then journalctl -u nvidia-fabricmanager). In a virtual machine with some "
        "GPUs of a board, the host has to assign a partition; otherwise load the driver without NVLink "
        "(NVreg_NvLinkDisable=1)."
    ),
    severities=("error",),
)
FABRIC_UNHEALTHY = Rule(
    "nvlink.fabric_unhealthy",
    "unhealthy NVSwitch fabric reported by the driver",
    remedy=(
        "Check that nvidia-fabricmanager runs and has the driver's version (sudo systemctl restart "
        "nvidia-fabricmanager, then journalctl -u nvidia-fabricmanager). If it persists, stop all "
        "programs and reset the GPUs together: sudo nvidia-smi -r."
    ),
    severities=("warning", "error"),
)

# These leave GPUs unreachable; with the others copies are slow, or wait.
_GRAVE = {("summary", "unhealthy"), ("route_unhealthy", "true")}


@check(NVLINK_DOWN)
def check_links_down(machine: Machine) -> Iterator[Fault]:
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
            gpu.index: sum(link.active is True for link in gpu.nvlinks or ())
            for gpu in group
            if any(link.active is not None for link in gpu.nvlinks or ())
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
def check_thin_bridges(machine: Machine) -> Iterator[Fault]:
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
def check_gpus_apart(machine: Machine) -> Iterator[Fault]:
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
def check_errors(gpu: Gpu) -> Iterator[Fault]:
    """Find NVLinks that recovered, with many CRC errors or replays, or errors left uncorrected."""
    bad = {str(link.link): dict(link.errors) for link in gpu.nvlinks or () if _many_errors(dict(link.errors))}
    if bad:
        words = "; ".join(
            f"link {link}: {', '.join(f'{count} {kind}' for kind, count in counts.items() if count)}"
            for link, counts in bad.items()
        ).replace("_", " ")
        yield NVLINK_ERRORS.fault(gpu, f"NVLink errors ({words})", {"errors": bad})


@check(NVLINK_ERRORS)
def check_logged_errors(machine: Machine) -> Iterator[Fault]:
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
        if event.code is None and event.device_driver == FABRIC_MANAGER:  # no bridge
            case = _FATAL
        yield NVLINK_ERRORS.fault(gpu or MACHINE, says, evidence, severity, case=case, part=event.text)


@each_gpu(FABRIC_NOT_READY, FABRIC_UNHEALTHY)
def check_fabric(gpu: Gpu) -> Iterator[Fault]:
    """Find GPUs that have not joined, were refused, or report trouble. In MIG mode a GPU needs no NVLink."""
    fabric = gpu.fabric
    if gpu.mig.mode:
        return
    evidence = {"state": fabric.state, "status": fabric.status, "health": fabric.health}
    if fabric.joining:
        says = f"not joined to its NVSwitches (fabric state: {fabric.state}), so CUDA does not start on it"
        yield FABRIC_NOT_READY.fault(gpu, says, evidence)
    elif fabric.is_joined and fabric.is_accepted is False:
        says = f"refused by its NVSwitches ({fabric.status}), so it works without NVLink"
        yield FABRIC_NOT_READY.fault(gpu, says, evidence)
    health = (fabric.health or {}).items() if fabric.is_joined else ()
    if wrong := {name: word for name, word in health if fabric.is_sound.get(name) is False}:
        words = ", ".join(f"{name.replace('_', ' ')} {word}" for name, word in wrong.items())
        grave = "incorrect_configuration" in wrong or not _GRAVE.isdisjoint(wrong.items())
        severity: Severity = "error" if grave else "warning"
        yield FABRIC_UNHEALTHY.fault(gpu, f"NVSwitch fabric: {words}", evidence, severity)


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
