"""What is wrong with a machine, or unknown: rules, and checks that make findings of them.

A new rule: its row in `rules.csv`, its thresholds and a check in the module of its theme, the check in
`CHECKS` (over a Machine at one sample), `measured.COPY_CHECKS` (over its measured copies) or
`watched.WATCHES` (over what was counted in time). A fact that is None makes no finding: neither a fault nor
a pass.
"""

from collections.abc import Sequence

from gputopo.findings import (
    clocks,
    driver,
    memory_health,
    network,
    nvlink,
    pcie,
    peers,
    rising,
    sources,
    tensorflow,
    throttling,
    usage,
)
from gputopo.findings.rule import (
    SEVERITIES,
    Case,
    Finding,
    Inspection,
    Rule,
    Severity,
    Threshold,
    fails,
    reaches,
    worst_first,
)
from gputopo.findings.tensorflow import Support, install_support, support_of
from gputopo.values.machine import Machine
from gputopo.values.samples import at_samples, max_counters

__all__ = [
    "CHECKS",
    "SEVERITIES",
    "Case",
    "Finding",
    "Inspection",
    "Rule",
    "Severity",
    "Support",
    "Threshold",
    "driver_broken",
    "fails",
    "find",
    "find_bandwidth",
    "find_read",
    "install_support",
    "reaches",
    "support_of",
    "worst_first",
]

CHECKS = (
    driver.status,
    driver.gpus_with_other_driver,
    driver.no_device,
    driver.lost_gpus,
    driver.unlisted_gpus,
    driver.logged_losses,
    driver.logged_xids,
    driver.program_errors,
    driver.kernel_errors,
    memory_health.verdicts,
    memory_health.ecc_mode,
    memory_health.ecc_off,
    throttling.slowdowns,
    throttling.temperatures,
    throttling.power_limits,
    throttling.times,
    throttling.fans,
    clocks.beside_peers,
    clocks.low,
    peers.below_reference,
    peers.facts,
    clocks.below_peers,
    memory_health.memory_errors,
    memory_health.field_errors,
    pcie.widths,
    pcie.generations,
    pcie.slots,
    pcie.errors,
    pcie.logged_errors,
    pcie.chipset_slots,
    pcie.shared_uplinks,
    nvlink.down,
    nvlink.thin_bridge,
    nvlink.apart,
    nvlink.errors,
    nvlink.logged_errors,
    nvlink.fabric,
    nvlink.acs,
    nvlink.staged,
    nvlink.off,
    usage.used,
    usage.modes,
    usage.cuda_order,
    usage.numa,
    usage.persistence,
    usage.mixed_models,
    usage.no_expectation,
    tensorflow.tensorflow,
    network.links_down,
    network.rates,
    network.mtus,
    network.errors,
    network.far_gpus,
    network.shared_cards,
    network.peer_memory,
    network.of_nccl,
    sources.gaps,
    sources.contradictions,
    sources.hidden_topology,
    sources.unknown_topology,
    sources.doubtful_topology,
    sources.cut_affinities,
    sources.unread_lines,
)


def find(machine: Machine) -> tuple[Finding, ...]:
    """Return all findings, errors first, then warnings; within a severity in the order of the checks.

    What readings and measured copies both show of one subject is reported once, as measured.
    """
    measured = find_bandwidth(machine)
    known = {(finding.id, finding.subject) for finding in measured}
    read = [one for one in find_read(machine) if (one.id, one.subject) not in known]
    return worst_first([*read, *measured])


def find_read(machine: Machine) -> list[Finding]:
    """Return the findings from readings, over all samples of the machine; counters by their maximum."""
    samples = at_samples(machine, max_counters(machine))
    of = max((history.samples for history in machine.series), default=0)
    read = [one for check in CHECKS for one in check.over(samples, of if of > len(samples) else None)]
    lost = {one.subject: one for one in read[::-1] if one.id == driver.GPU_LOST.id}  # samples and kernel log
    read = [one for one in read if lost.get(one.subject, one) is one or one.id != driver.GPU_LOST.id]
    watched = _find_in_series(machine)
    return [*(one for one in read if not _is_in(one, watched)), *watched, *rising.rising(machine)]


def _is_in(one: Finding, others: Sequence[Finding]) -> bool:
    """Return whether others of its rule report a finding for each of its GPUs, and no milder."""
    same = [other for other in others if other.id == one.id and reaches([other], one.severity)]
    return bool(one.subject.gpus) and set(one.subject.gpus) <= {
        gpu for other in same for gpu in other.subject.gpus
    }


def _find_in_series(machine: Machine) -> tuple[Finding, ...]:
    """Return the findings from what was counted over the samples of a log."""
    if not machine.series:
        return ()
    from gputopo.findings.watched import find_watched
    from gputopo.values.history import History

    return find_watched(machine, History(machine.series))


def find_bandwidth(machine: Machine) -> tuple[Finding, ...]:
    """Return the findings from the measured copies of `machine.bandwidth`, errors first."""
    if machine.bandwidth is None:
        return ()
    # most machines have none: not at each start
    from gputopo.findings.measured import COPY_CHECKS

    return worst_first(finding for check in COPY_CHECKS for finding in check(machine))


def driver_broken(machine: Machine) -> Finding | None:
    """Return the finding of an NVIDIA device whose driver does not work, else None.

    A launcher stops with exit code 3 on it. None as well where the machine has no NVIDIA device, or where
    a capture does not report the driver's status.
    """
    return next((finding for finding in driver.status(machine) if finding.severity == "error"), None)
