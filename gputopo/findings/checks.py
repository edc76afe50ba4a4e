"""All checks of readings, and the findings of a machine.

A missing fact makes no finding. So the checks that had facts are counted: otherwise "no findings" would mean
the same for a capture of only the topology as for a complete machine.
"""

from collections.abc import Callable, Mapping, Sequence

from gputopo.findings import (
    clocks,
    configuration,
    driver,
    kernel_log,
    memory_health,
    network,
    nvlink,
    pcie,
    peer_access,
    peers,
    program_errors,
    rising,
    sources,
    tensorflow,
    throttling,
    usage,
    xids,
)
from gputopo.findings.rising import max_counters
from gputopo.findings.rule import Check, by_model, present, reaches, worst_first
from gputopo.reference import under_load
from gputopo.values.facts import has_any
from gputopo.values.finding import Finding
from gputopo.values.history import History
from gputopo.values.machine import Gpu, Machine
from gputopo.values.samples import at_samples

Need = Callable[[Machine], bool]
"""Whether a machine has the facts that a check judges."""


def never(machine: Machine) -> bool:
    """Need a fact that no machine has: for a check that reports gaps in a reading and judges no fact."""
    return False


def of_machine(*paths: str) -> Need:
    """Need any of these facts of the machine, `driver.status` or `pci[*].acs`."""
    return lambda machine: has_any(machine, paths)


def of_gpus(*paths: str, when: Callable[[Gpu], bool] | None = None, peers: int = 1) -> Need:
    """Need any of these facts for a GPU that answers.

    `when`: only such a GPU has the fact, for example a GPU under load. `peers`: this number of GPUs of one
    model.
    """

    def is_met(machine: Machine) -> bool:
        groups = by_model(machine) if peers > 1 else [present(machine)]
        able = (
            [gpu for gpu in group if (when is None or when(gpu)) and has_any(gpu, paths)] for group in groups
        )
        return any(len(gpus) >= peers for gpus in able)

    return is_met


_PEERS = int(clocks.PEERS.value)

# Each check with the facts that it needs. A check without its facts does not count as run.
CHECKS: Mapping[Check[[]], Need] = {
    driver.status: of_machine("driver.status", "driver.version"),
    driver.gpus_with_other_driver: of_machine("pci[*].driver"),
    driver.no_device: never,
    driver.lost_gpus: of_gpus("pstate", "temperature_c.gpu"),
    driver.unlisted_gpus: of_machine("driver.status"),
    driver.logged_losses: of_machine("kernel_events"),
    xids.logged_xids: of_machine("kernel_events"),
    program_errors.program_errors: of_machine("kernel_events"),
    kernel_log.kernel_errors: of_machine("kernel_events"),
    memory_health.verdicts: of_gpus("ecc", "remapped_rows", "retired_pages", "recovery_action"),
    memory_health.ecc_off: of_gpus("ecc.mode"),
    throttling.slowdowns: of_gpus("throttle"),
    throttling.temperatures: of_gpus("temperature_c.gpu", "temperature_c.memory", "temperature_c.margin"),
    throttling.power_limits: of_gpus("power_w.limit"),
    throttling.times: of_gpus("violation_ns"),
    clocks.check_against_peers: of_gpus("power_w.draw", when=usage.busy, peers=_PEERS),
    clocks.check_low_clocks: of_gpus("clocks_mhz", when=usage.busy),
    peers.below_default: of_gpus("clocks_mhz"),
    peers.facts: of_gpus("clocks_mhz", "memory_mib.total", "pcie", "power_w", peers=2),
    peers.field_errors: of_gpus("pstate", peers=2),
    pcie.widths: of_gpus("pcie.width_now"),
    pcie.generations: of_gpus("pcie.gen_now", when=under_load),
    pcie.slots: of_gpus("pcie.gen_max_host", "pcie.limiting_hop"),
    pcie.errors: of_gpus("pcie.replay_counter", "pcie.aer"),
    pcie.logged_errors: of_machine("kernel_events"),
    pcie.shared_uplinks: of_machine("pci"),
    nvlink.check_links_down: of_gpus("nvlinks"),
    nvlink.check_thin_bridges: of_machine("links[*].nvlinks"),
    nvlink.check_gpus_apart: of_machine("links[*].nvlinks"),
    nvlink.check_errors: of_gpus("nvlinks[*].errors"),
    nvlink.check_logged_errors: of_machine("kernel_events"),
    nvlink.check_fabric: of_gpus("fabric"),
    peer_access.check_acs: of_machine("host.acs", "pci[*].acs"),
    peer_access.check_paths_of_nccl: of_machine("nccl"),
    peer_access.check_peer_access: of_machine("links[*].p2p_read"),
    usage.used: of_gpus("processes", "utilization_percent.gpu", "memory_mib.used"),
    configuration.modes: of_gpus("compute_mode", "mig.mode"),
    configuration.cuda_order: of_gpus("cuda_index"),
    configuration.persistence: of_gpus("persistence_mode"),
    configuration.mixed_models: never,
    configuration.no_expectation: never,
    tensorflow.tensorflow: of_machine("tensorflow"),
    network.links_down: of_machine("nics[*].ports"),
    network.rates: of_machine("nics[*].ports"),
    network.mtus: of_machine("nics[*].ports"),
    network.errors: of_machine("nics[*].ports"),
    network.far_gpus: of_machine("nics[*].hops"),
    network.peer_memory: of_machine("driver.peer_memory_module"),
    network.of_nccl: of_machine("nccl"),
    sources.gaps: never,
    sources.contradictions: never,
    sources.hidden_topology: never,
    sources.unknown_topology: never,
    sources.doubtful_topology: of_machine("links[*].hop"),
    sources.cut_affinities: of_gpus("cpu_affinity"),
    sources.unread_lines: never,
}


def checks_made(machine: Machine) -> int:
    """Return how many checks had facts to judge. All checks of measured copies count as one."""
    copies = machine.bandwidth is not None and bool(machine.bandwidth.samples)
    return sum(is_met(machine) for is_met in CHECKS.values()) + copies


def find(machine: Machine) -> tuple[Finding, ...]:
    """Return all findings: errors, then warnings. Within a severity, in the order of the checks.

    If readings and measured copies show the same fault of a subject, it is reported once, as measured.
    """
    measured = find_bandwidth(machine)
    known = {(finding.id, finding.subject) for finding in measured}
    read = [finding for finding in find_read(machine) if (finding.id, finding.subject) not in known]
    return worst_first([*read, *measured])


def find_read(machine: Machine) -> list[Finding]:
    """Return the findings from readings, over all samples of the machine. Counters are at their maximum."""
    samples = at_samples(machine, max_counters(machine))
    samples_of_log = max((history.samples for history in machine.series), default=0)
    read = [
        finding
        for check in CHECKS
        for finding in check.over(samples, samples_of_log if samples_of_log > len(samples) else None)
    ]
    lost = {
        finding.subject: finding for finding in read[::-1] if finding.id == driver.GPU_LOST.id
    }  # samples and kernel log
    read = [
        finding
        for finding in read
        if lost.get(finding.subject, finding) is finding or finding.id != driver.GPU_LOST.id
    ]
    watched = _find_in_history(machine, History(machine.series) if machine.series else None)
    return [*(finding for finding in read if not _is_in(finding, watched)), *watched, *rising.rising(machine)]


def _is_in(finding: Finding, others: Sequence[Finding]) -> bool:
    """Return whether findings of the same rule, at least as severe, cover each of its GPUs."""
    same = [other for other in others if other.id == finding.id and reaches([other], finding.severity)]
    return bool(finding.subject.gpus) and set(finding.subject.gpus) <= {
        gpu for other in same for gpu in other.subject.gpus
    }


def _find_in_history(machine: Machine, history: History | None) -> tuple[Finding, ...]:
    """Return the findings from counts over samples."""
    if history is None:
        return ()
    from gputopo.findings.watched import find_watched  # most machines have no series of samples

    return find_watched(machine, history)


def find_port_faults(machine: Machine) -> list[Finding]:
    """Return the findings about network ports that explain a slow network."""
    checks = (network.links_down, network.rates, network.mtus, network.errors)
    return [*worst_first(finding for check in checks for finding in check(machine))]


def find_bandwidth(machine: Machine, history: History | None = None) -> tuple[Finding, ...]:
    """Return the findings from the measured copies of `machine.bandwidth`, errors first.

    `history`: the samples during a soak, for findings of these too.
    """
    if machine.bandwidth is None:
        return ()
    # imported here because most machines have no measured copies
    from gputopo.findings.measured import COPY_CHECKS

    # If a program did not finish, its text shows why.
    reported = () if machine.bandwidth.source == "live" else (driver.status, program_errors.program_errors)
    measured = [finding for check in (*reported, *COPY_CHECKS) for finding in check(machine)]
    return worst_first([*measured, *_find_in_history(machine, history)])


def driver_broken(machine: Machine) -> Finding | None:
    """Return the finding for an NVIDIA device whose driver does not work, or None.

    A launcher then stops with exit code 3. Also None if the machine has no NVIDIA device, or if a capture
    does not report the driver's status.
    """
    return next((finding for finding in driver.status(machine) if finding.severity == "error"), None)
