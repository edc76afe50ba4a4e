"""Prometheus' text exposition format 0.0.4: series are collected here and written metric by metric.

The format: prometheus.io/docs/instrumenting/exposition_formats. The series of a metric must follow its HELP
and TYPE lines, and no two series may have the same name and labels.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from gputopo.reference import throttle_reasons
from gputopo.report.layout import plain
from gputopo.values.facts import values_at
from gputopo.values.fields import Field, fields_of
from gputopo.values.finding import SEVERITIES, Inspection
from gputopo.values.machine import FABRIC_STATES, Fabric, Gpu, Hop, Link, Machine, Nic

Kind = Literal["gauge", "counter"]
Label = str | int | None
Value = float | bool | None

MIB = 2**20  # bytes


class Exposition:
    """Collects series. Unknown is never 0: series and labels without a value are skipped."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[Kind, str]] = {}
        self._series: dict[str, dict[str, str]] = {}

    def gauge(self, name: str, says: str, value: Value, /, **labels: Label) -> None:
        """Add a series whose value rises and falls. Its name gets the prefix `gputopo_`."""
        self._add("gauge", name, says, value, labels)

    def counter(self, name: str, says: str, value: Value, /, **labels: Label) -> None:
        """Add a series that only rises, except when it is reset. Its name must end in `_total`."""
        self._add("counter", name, says, value, labels)

    def counters(
        self, name: str, says: str, counts: Mapping[str, Value] | None, by: str, /, **labels: Label
    ) -> None:
        """Add a counter for each kind of event; the kind is the last label, `by`."""
        for kind, count in (counts or {}).items():
            self._add("counter", name, says, count, {**labels, by: kind})

    def info(self, name: str, says: str, /, **labels: Label) -> None:
        """Add facts that are words: a series of value 1 with the words as labels."""
        self._add("gauge", f"{name}_info", says, 1, labels)

    def states(
        self, name: str, says: str, states: Iterable[str], now: str | None, /, **labels: Label
    ) -> None:
        """Add a state set: a series for each state, 1 for the current state and 0 for the others.

        As in OpenMetrics, except for the name of the label, which is `state` as in the node exporter.
        """
        for state in () if now is None else dict.fromkeys([*states, now]):
            self._add("gauge", name, says, state == now, {**labels, "state": state})

    def text(self) -> str:
        """Return all series as text that ends with a newline; empty if there are no series."""
        return "".join(
            f"# HELP {name} {_escaped(says)}\n# TYPE {name} {kind}\n"
            + "".join(f"{name}{labels} {value}\n" for labels, value in self._series[name].items())
            for name, (kind, says) in self._heads.items()
        )

    def _add(self, kind: Kind, name: str, says: str, value: Value, labels: dict[str, Label]) -> None:
        assert name.endswith("_total") == (kind == "counter"), name
        if value is None:
            return
        name = f"gputopo_{name}"
        self._heads.setdefault(name, (kind, says))
        known = {label: text for label, text in labels.items() if text is not None}
        pairs = ",".join(f'{label}="{_escaped(str(text), quote=True)}"' for label, text in known.items())
        # If two series have the same labels, the first one is used: the format allows no second.
        self._series.setdefault(name, {}).setdefault(f"{{{pairs}}}" if pairs else "", _number(value))


# One unit of a fact in Prometheus' base unit, as (multiplier, divisor).
_BASE_UNITS = {
    "MHz": (10**6, 1),
    "MiB": (MIB, 1),
    "GB/s": (10**9, 1),
    "GT/s": (10**9, 1),
    "Gbit/s": (10**9 // 8, 1),
    "%": (1, 100),
    "ns": (1, 10**9),
}


def add_facts(out: Exposition, value: msgspec.Struct, labels: Mapping[str, Label]) -> None:
    """Add the series that the fields of a value, and of the values inside it, declare; lists are skipped."""
    for path, field in fields_of(type(value)).items():
        if field.leaf and "[]" not in path:
            add_fact(out, field, next(iter(values_at(value, path)), None), labels)


def add_fact(out: Exposition, field: Field, value: Any, labels: Mapping[str, Label]) -> None:
    """Add the series that a field declares, if it declares one."""
    metric = field.metric
    if metric is None:
        return
    all_labels = {**labels, **field.labels}
    if isinstance(value, dict):
        counts = {key: _in_base_unit(count, field.unit) for key, count in value.items()}
        out.counters(metric.name, metric.help, counts, metric.by, **all_labels)
    elif field.counter:
        out.counter(metric.name, metric.help, _in_base_unit(value, field.unit), **all_labels)
    else:
        out.gauge(metric.name, metric.help, _in_base_unit(value, field.unit), **all_labels)


def info_labels(value: msgspec.Struct) -> dict[str, Label]:
    """Return the labels of a value's `_info` series: the facts that are declared as labels, by name."""
    return {
        path.rpartition(".")[2]: fact
        for path, field in fields_of(type(value)).items()
        if field.fact.info and "[]" not in path
        for fact in values_at(value, path)
    }


def _in_base_unit(value: float | bool | None, unit: str) -> float | bool | None:
    if value is None or unit not in _BASE_UNITS:
        return value
    times, over = _BASE_UNITS[unit]
    return value * times if over == 1 else value / over


def _escaped(text: str, *, quote: bool = False) -> str:
    """Escape what the format requires; other control characters, which move cursors, become `?`."""
    text = text.replace("\\", r"\\").replace('"', r"\"" if quote else '"')
    return r"\n".join(plain(part) for part in text.split("\n"))


def _number(value: float | bool) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    return str(int(value)) if isinstance(value, bool) else str(value)


Labels = dict[str, Label]


def add_gpu(out: Exposition, gpu: Gpu) -> None:
    """Add all known facts of a GPU; every series has the GPU's index, model and PCI address."""
    labels: Labels = {"gpu": gpu.index, "name": gpu.name, "pci_address": gpu.pci_address}
    out.info("gpu", "model and PCI address of a GPU", **labels, **info_labels(gpu))
    add_facts(out, gpu, labels)
    action = gpu.recovery_action
    says = "whether the driver requests a recovery of a GPU, with the action"
    needed = None if action is None else action != "none"
    out.gauge("gpu_recovery_needed", says, needed, **labels, action=action)
    for reason in throttle_reasons(gpu.throttle):
        says = "a reason why the clocks are throttled now"
        out.gauge("gpu_throttle_reason", says, 1, **labels, reason=reason)
    state = (gpu.pstate or "").removeprefix("P")
    number = int(state) if state.isascii() and state.isdecimal() else None
    out.gauge("gpu_performance_state", "P-state, 0 is the fastest", number, **labels)
    if gpu.processes is not None:
        out.gauge(
            "gpu_processes", "processes on a GPU", len({process.pid for process in gpu.processes}), **labels
        )
    for link in gpu.nvlinks or ():
        of_link = {**labels, "link": link.link}
        out.info("gpu_nvlink", "an NVLink and what is at its other end", **of_link, **info_labels(link))
        add_facts(out, link, of_link)
    _fabric(out, gpu.fabric, labels)


def _fabric(out: Exposition, fabric: Fabric, labels: Labels) -> None:
    """Add the state of a GPU in the NVSwitch fabric. A GPU without NVSwitches has no such series."""
    says = "state of joining the NVSwitch fabric: 1 for the current state"
    out.states("gpu_fabric_state", says, FABRIC_STATES, fabric.state, **labels)
    says = "whether a GPU has completed joining its NVSwitch fabric, with the driver's status"
    out.gauge("gpu_fabric_joined", says, fabric.is_accepted, **labels, status=fabric.status)
    health = fabric.health or {}
    says = "whether a part of a GPU's NVSwitch fabric is healthy, with the driver's status"
    for part, is_sound in fabric.is_sound.items():
        out.gauge("gpu_fabric_healthy", says, is_sound, **labels, part=part, status=health[part])
    assigned = health.get("partition_assigned")
    says = "whether a GPU has a partition of its NVSwitches"
    out.gauge(
        "gpu_fabric_partition_assigned", says, None if assigned is None else assigned == "true", **labels
    )


_LEVEL = "PCIe path between two devices: 0 one board, 10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS"


def exposition(inspection: Inspection) -> str:
    """Return all series of an inspection. Unknown values have no series; they are never written as 0."""
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
        add_facts(out, node, {"address": node.address, "kind": node.kind, "parent": node.parent})
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


def _findings(out: Exposition, inspection: Inspection) -> None:
    machine = inspection.machine
    for finding in inspection.findings:
        out.gauge(
            "finding",
            "a finding; gputopo explain ID describes it",
            1,
            id=finding.id,
            severity=finding.severity,
            subject=finding.subject.text,
        )
    for severity in SEVERITIES:
        count = sum(finding.severity == severity for finding in inspection.findings)
        out.gauge("findings", "findings of each severity", count, severity=severity)
    out.gauge("missing_facts", "facts that could not be read", len(machine.missing))
    out.gauge("contradictions", "facts on which two sources disagree", len(machine.contradictions))
    out.gauge("unread_lines", "lines of captures that were not understood", len(machine.unread))
