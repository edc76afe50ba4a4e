"""An inspection for Prometheus, as the node exporter's textfile collector and others read it.

Names and units follow prometheus.io/docs/practices/naming: base units (hertz, watts, celsius, bytes, ratio,
seconds), counters end in `_total`, facts without a number are `_info` series of value 1.
"""

from gputopo.findings import SEVERITIES, Inspection
from gputopo.report.metrics.exposition import Exposition, add_facts, info_labels
from gputopo.report.metrics.gpu import add_gpu
from gputopo.values.machine import Hop, Link, Machine, Nic, PciNode

_LEVEL = "how far apart two devices are: 0 one board, 10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS"


def exposition(inspection: Inspection) -> str:
    """Return all series of an inspection. What is unknown has no series: it is never written as 0."""
    machine = inspection.machine
    out = Exposition()
    _machine(out, machine)
    for gpu in machine.gpus:
        add_gpu(out, gpu)
    for link in machine.links:
        _link(out, link)
    for nic in machine.nics:
        _nic(out, nic)
    for node in machine.pci:
        _pci(out, node)
    _findings(out, inspection)
    return out.text()


def _machine(out: Exposition, machine: Machine) -> None:
    host, driver = machine.host, machine.driver
    out.info(
        "machine", "the machine that was read, and from what", source=machine.source, **info_labels(host)
    )
    out.info("driver", "the NVIDIA driver: its state and versions", **info_labels(driver))
    if driver.status != "not_read":
        out.gauge("driver_up", "whether the NVIDIA driver answers", driver.status == "ok")
    out.gauge("gpus", "GPUs that are known", len(machine.gpus))
    add_facts(out, host, {})
    for node in host.numa_nodes or ():
        add_facts(out, node, {"node": node.index})
        for other, distance in enumerate(node.distances or ()):
            says = "distance of two NUMA nodes, 10 to itself (ACPI SLIT)"
            out.gauge("numa_distance", says, distance, a=node.index, b=other)


def _link(out: Exposition, link: Link) -> None:
    pair = {"a": link.a, "b": link.b}
    if link.hop is not None:
        _hop(out, "link_hop_level", link.hop, **pair)
    add_facts(out, link, pair)
    for direction, status in (("read", link.p2p_read), ("write", link.p2p_write)):
        if status is not None and status != "UNKNOWN":
            out.gauge(
                "link_p2p_allowed",
                "whether the driver allows peer access between two GPUs, with its status",
                status == "OK",
                **pair,
                direction=direction,
                status=status,
                reason=link.p2p_reason,
            )


def _hop(out: Exposition, name: str, hop: Hop, **labels: str | int) -> None:
    out.gauge(name, _LEVEL, hop.level, **labels, hop=hop.value)


def _nic(out: Exposition, nic: Nic) -> None:
    out.info("nic", "a network card", nic=nic.index, **info_labels(nic))
    for port in nic.ports or ():
        labels = {"nic": nic.index, "port": port.index}
        out.info("nic_port", "a port of a network card", **labels, **info_labels(port))
        out.gauge("nic_port_up", "whether a network port's link is up", port.up, **labels)
        add_facts(out, port, labels)
    for device, hop in nic.hops.items():
        _hop(out, "nic_hop_level", hop, nic=nic.index, device=device)


def _pci(out: Exposition, node: PciNode) -> None:
    labels = {"address": node.address, "kind": node.kind, "parent": node.parent}
    add_facts(out, node, labels)


def _findings(out: Exposition, inspection: Inspection) -> None:
    machine = inspection.machine
    for finding in inspection.findings:
        out.gauge(
            "finding",
            "something that is wrong or worth knowing; its id is listed in gputopo's README",
            1,
            id=finding.id,
            severity=finding.severity,
            subject=finding.subject.text,
        )
    for severity in SEVERITIES:
        count = sum(finding.severity == severity for finding in inspection.findings)
        out.gauge("findings", "findings of each severity", count, severity=severity)
    out.gauge("missing_facts", "facts that were asked for and not given", len(machine.missing))
    out.gauge("contradictions", "facts on which two sources disagree", len(machine.contradictions))
    out.gauge("unread_lines", "lines of captures that were not understood", len(machine.unread))
