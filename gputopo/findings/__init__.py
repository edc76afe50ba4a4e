"""What is wrong with a machine, or not known of it: one function a rule, values in, findings out.

A new rule is a function from a Machine to findings in the module of its theme, its ids in `IDS`, and the
function in `RULES`. A fact that is None makes no finding: it is no fault and no pass.
"""

from gputopo.findings import (
    cards,
    clocks,
    configuration,
    driver,
    fabric,
    links,
    memory_health,
    nvlink,
    peer_access,
    power,
    recovery,
    sources,
    thermal,
    throttling,
    uplinks,
)
from gputopo.findings.finding import SEVERITIES, Finding, Inspection, Rule, Severity, reaches, worst_first
from gputopo.findings.ids import IDS
from gputopo.values.machine import Machine

__all__ = [
    "IDS",
    "RULES",
    "SEVERITIES",
    "Finding",
    "Inspection",
    "Rule",
    "Severity",
    "driver_broken",
    "find",
    "find_bandwidth",
    "reaches",
]

RULES: tuple[Rule, ...] = (
    driver.driver,
    driver.held_gpus,
    driver.no_device,
    driver.lost_gpus,
    recovery.actions,
    memory_health.ecc,
    memory_health.replaced_memory,
    throttling.slowdowns,
    thermal.temperatures,
    power.limits,
    clocks.low,
    clocks.peers,
    clocks.model,
    links.widths,
    links.generations,
    links.slots,
    links.errors,
    uplinks.chipset_slots,
    uplinks.shared_uplinks,
    nvlink.down,
    nvlink.thin_bridge,
    nvlink.apart,
    nvlink.errors,
    fabric.not_joined,
    fabric.unwell,
    peer_access.acs,
    peer_access.iommu,
    peer_access.off,
    configuration.processes,
    configuration.modes,
    configuration.cuda_order,
    configuration.memory_nodes,
    configuration.persistence,
    cards.mixed_models,
    cards.mixed_memory,
    cards.no_expectation,
    sources.contradictions,
    sources.hidden_topology,
    sources.unknown_topology,
    sources.unread_lines,
)


def find(machine: Machine) -> tuple[Finding, ...]:
    """Give all findings, errors first, then warnings; within a severity in the order of the rules.

    What a reading tells and the measured copies tell again of the same subject, is told once, as measured.
    """
    measured = find_bandwidth(machine)
    told = {(finding.id, finding.subject) for finding in measured}
    read = [finding for rule in RULES for finding in rule(machine)]
    return worst_first([*(one for one in read if (one.id, one.subject) not in told), *measured])


def find_bandwidth(machine: Machine) -> tuple[Finding, ...]:
    """Give what the measured copies of `machine.bandwidth` show, errors first. Without them: nothing."""
    if machine.bandwidth is None:
        return ()
    # most machines have none: not at each start
    from gputopo.findings.measured.rules import BANDWIDTH_RULES

    return worst_first(finding for rule in BANDWIDTH_RULES for finding in rule(machine))


def driver_broken(machine: Machine) -> Finding | None:
    """Give the finding if there is an NVIDIA device whose driver does not work, else None.

    A launcher stops with exit code 3 on it. None as well where the machine has no NVIDIA device, or where
    a capture says nothing of the driver.
    """
    return next((finding for finding in driver.driver(machine) if finding.severity == "error"), None)
