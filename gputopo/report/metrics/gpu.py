"""The series of one GPU for Prometheus: those that its fields declare, and those that need a rule."""

from gputopo.findings.nvlink import JOINED, SOUND, SUCCESS
from gputopo.reference.clock_events import reasons_of
from gputopo.report.metrics.exposition import Exposition, Label, add_facts, info_labels
from gputopo.values.machine import JOINING, Fabric, Gpu

Labels = dict[str, Label]


def add_gpu(out: Exposition, gpu: Gpu) -> None:
    """Add all that is known of a GPU; every series names its index, model and PCI address."""
    labels: Labels = {"gpu": gpu.index, "name": gpu.name, "pci_address": gpu.pci_address}
    out.info("gpu", "what a GPU is and where it sits", **labels, **info_labels(gpu))
    add_facts(out, gpu, labels)
    action = gpu.recovery_action
    needed = None if action is None else action != "none"
    help = "whether the driver requests a recovery of a GPU, with the action"
    out.gauge("gpu_recovery_needed", help, needed, **labels, action=action)
    for reason in reasons_of(gpu.throttle):
        out.gauge(
            "gpu_throttle_reason", "a reason why the clocks are throttled now", 1, **labels, reason=reason
        )
    state = (gpu.pstate or "").removeprefix("P")
    number = int(state) if state.isascii() and state.isdecimal() else None
    out.gauge("gpu_performance_state", "P-state, 0 is the fastest", number, **labels)
    if gpu.processes is not None:
        out.gauge("gpu_processes", "processes on a GPU", len({one.pid for one in gpu.processes}), **labels)
    for link in gpu.nvlinks or ():
        of_link = {**labels, "link": link.link}
        out.info("gpu_nvlink", "an NVLink and what is at its other end", **of_link, **info_labels(link))
        add_facts(out, link, of_link)
    _fabric(out, gpu.fabric, labels)


def _fabric(out: Exposition, fabric: Fabric, labels: Labels) -> None:
    """Add the state of a GPU in the NVSwitch fabric; a GPU without NVSwitches has no such series."""
    says = "state of joining the NVSwitch fabric: 1 for the current state"
    out.states("gpu_fabric_state", says, (*JOINING, JOINED), fabric.state, **labels)
    says = "whether a GPU has completed joining its NVSwitch fabric, with the driver's status"
    status = fabric.status
    out.gauge(
        "gpu_fabric_joined", says, None if status is None else status == SUCCESS, **labels, status=status
    )
    health = fabric.health or {}
    says = "whether a part of a GPU's NVSwitch fabric is healthy, with the driver's status"
    for part in (part for part in SOUND if part in health):
        out.gauge(
            "gpu_fabric_healthy", says, health[part] == SOUND[part], **labels, part=part, status=health[part]
        )
    assigned = health.get("partition_assigned")
    says = "whether a GPU has a partition of its NVSwitches"
    out.gauge(
        "gpu_fabric_partition_assigned", says, None if assigned is None else assigned == "true", **labels
    )
