"""NVLinks that are down or count errors, and GPUs that have not joined their NVSwitch fabric.

The fabric's states: nvml.h (nvmlGpuFabricState_t, NVML_GPU_FABRIC_HEALTH_*) and NVIDIA's Fabric Manager User
Guide. Until a GPU has joined, CUDA does not start on it (CUDA_ERROR_SYSTEM_NOT_READY, 802); one that was
refused works alone, without NVLink. The same: `nvidia-smi -q`, section Fabric.
"""

from collections.abc import Iterator
from itertools import combinations

from gputopo.findings.driver import event_evidence, times
from gputopo.findings.rule import Fault, Finding, Rule, Severity, Threshold, by_model, check, present
from gputopo.reference.expectations import expected_gpu
from gputopo.topology.kernel_events import kernel_events
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Fabric, Gpu, Machine
from gputopo.values.subject import MACHINE, Subject

CRC_ERRORS = Threshold(
    "NVLink CRC errors",
    100,
    "errors",
    "NVIDIA/DCGM: its PCIe test fails above 100 CRC errors a second; these are since the link came up",
)
NVLINK_REPLAYS = Threshold(
    "NVLink packet replays", 100, "replays", "Occasional replays lose no data; same limit as for CRC. Ours"
)
MIN_JOINED = Threshold(
    "GPUs that are all connected by NVLink",
    3,
    "GPUs",
    "Bridges connect two cards; three that are all connected are on a board made for that",
)

NVLINK_DOWN = Rule(
    "nvlink.down",
    title="fewer NVLinks up than on GPUs of the same model",
    remedy="See nvidia-smi nvlink -s for the links that are down (MIG turns them off too). Reseat the "
    "bridge; on a server board reset the GPUs (sudo nvidia-smi -r), check that nvidia-fabricmanager runs, "
    "and reboot.",
    severities=("error", "warning"),
    thresholds=(MIN_JOINED,),
)
THIN_BRIDGE = Rule(
    "nvlink.thin_bridge",
    title="a pair of GPUs has fewer NVLinks than another pair",
    remedy="See nvidia-smi nvlink -s for the links that are down. Reseat the bridge, or replace it.",
)
NVLINK_ERRORS = Rule(
    "nvlink.errors",
    title="NVLink errors counted",
    remedy="See sudo dmesg | grep -i -e nvlink -e 'xid.*74'. Clean and reseat the bridge; if the counts keep "
    "rising (nvidia-smi nvlink -e), have bridge or board replaced.",
    severities=("warning", "error"),
    thresholds=(CRC_ERRORS, NVLINK_REPLAYS),
)
_MANAGER = (
    "Check that nvidia-fabricmanager runs and has the driver's version (sudo systemctl restart "
    "nvidia-fabricmanager, then journalctl -u nvidia-fabricmanager)."
)
FABRIC_NOT_READY = Rule(
    "nvlink.fabric_not_ready",
    title="the GPU has not joined its NVSwitch fabric",
    remedy=f"{_MANAGER} In a virtual machine with a part of a board, the host must assign a partition, or "
    "load the driver without NVLink (NVreg_NvLinkDisable=1).",
    severities=("error",),
)
FABRIC_UNHEALTHY = Rule(
    "nvlink.fabric_unhealthy",
    title="unhealthy NVSwitch fabric reported by the driver",
    remedy=f"{_MANAGER} If it persists, end all programs and reset the GPUs together: sudo nvidia-smi -r.",
    severities=("warning", "error"),
)

JOINED = "completed"
SUCCESS = "success"
# The health of a fabric without a fault.
SOUND = {
    "summary": "healthy",
    "bandwidth": "full",
    "route_recovery_in_progress": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}
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
        up = {gpu.index: _up(gpu) for gpu in group if gpu.nvlinks is not None}
        reference = expected_gpu(group[0].name, group[0].pci_device_id)
        on_board = whole and reference is not None and reference.nvlink_by_bridge is False
        expected = max([*up.values(), (reference.nvlinks or 0) if reference and on_board else 0], default=0)
        for gpu in group:
            if gpu.index not in up or up[gpu.index] >= expected:
                continue
            if (on_board and gpu.nvlinks) or up[gpu.index] or _is_remote_of_peer(gpu, group):
                # As many up on each of several peers may be how their board is wired.
                alike = up[gpu.index] and len(up) == len(group) > 1 and len(set(up.values())) == 1
                yield NVLINK_DOWN.fault(
                    gpu,
                    f"{up[gpu.index]} NVLinks up, expected {expected}",
                    {
                        "up": up[gpu.index],
                        "due": expected,
                        "down": [link.link for link in gpu.nvlinks or () if link.active is False],
                        "peers": {str(index): count for index, count in up.items()},
                    },
                    "warning" if alike else "error",
                )


@check(THIN_BRIDGE)
def thin_bridge(machine: Machine) -> Iterator[Finding]:
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
            yield THIN_BRIDGE.finding(
                Subject.of_link(link.a, link.b),
                f"{link.nvlinks} NVLinks between GPUs {link.a} and {link.b}, {widest} between another pair",
                {"nvlinks": link.nvlinks, "widest": widest},
            )


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


@check(NVLINK_ERRORS)
def errors(machine: Machine) -> Iterator[Fault]:
    """Find NVLinks that recovered, or with many CRC errors or replays."""
    for gpu in present(machine):
        bad = {
            str(link.link): dict(link.errors) for link in gpu.nvlinks or () if _many_errors(dict(link.errors))
        }
        if bad:
            words = "; ".join(
                f"link {link}: {', '.join(f'{count} {kind}' for kind, count in counts.items() if count)}"
                for link, counts in bad.items()
            )
            yield NVLINK_ERRORS.fault(gpu, f"NVLink errors ({words})", {"errors": bad})


@check(NVLINK_ERRORS)
def logged_errors(machine: Machine) -> Iterator[Fault | Finding]:
    """Find errors of NVLinks and NVSwitches (SXid) in the kernel log. (Xid 74 is an Xid.)"""
    for gpu, event in kernel_events(machine, "sxid", "nvlink"):
        severity: Severity = "error" if event.severity == "fatal" else "warning"
        what = "NVLink error" if event.code is None else f"SXid {event.code}"
        says = f"{what} in the kernel log{times(event)}: {event.text}"
        if gpu is not None:
            yield NVLINK_ERRORS.fault(gpu, says, event_evidence(event), severity, part=event.text)
        else:
            switch = f"NVSwitch {event.pci_address}: " if event.pci_address else ""
            yield NVLINK_ERRORS.finding(MACHINE, f"{switch}{says}", event_evidence(event), severity)


@check(FABRIC_NOT_READY, FABRIC_UNHEALTHY)
def fabric(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that have not joined, were refused, or report trouble. In MIG mode a GPU needs no NVLink."""
    for gpu in present(machine):
        if gpu.mig.mode:
            continue
        one = gpu.fabric
        evidence: dict[str, object] = {"state": one.state, "status": one.status, "health": one.health}
        if not_joined := _not_joined(one):
            yield FABRIC_NOT_READY.fault(gpu, not_joined, evidence)
        if wrong := _unhealthy(one) if one.state == JOINED else {}:
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
    crc = max(counts.get("crc_flit", 0), counts.get("crc_data", 0))
    return (
        counts.get("recovery", 0) > 0
        or crc > CRC_ERRORS.value
        or counts.get("replay", 0) > NVLINK_REPLAYS.value
    )


def _not_joined(fabric: Fabric) -> str | None:
    if fabric.joining:
        return f"not joined to its NVSwitches (fabric state: {fabric.state}), so CUDA does not start on it"
    if fabric.state == JOINED and fabric.status not in (None, SUCCESS):
        return f"refused by its NVSwitches ({fabric.status}), so it works without NVLink"
    return None


def _unhealthy(fabric: Fabric) -> dict[str, str]:
    return {name: word for name, word in (fabric.health or {}).items() if SOUND.get(name, word) != word}
