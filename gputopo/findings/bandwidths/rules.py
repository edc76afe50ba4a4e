"""The rules over measured copies, in their order. They find nothing on a machine without `bandwidth`."""

from gputopo.findings import bandwidth_faults, bandwidth_host, bandwidth_links, bandwidth_pairs
from gputopo.findings.finding import Rule

BANDWIDTH_RULES: tuple[Rule, ...] = (
    bandwidth_faults.failures,
    bandwidth_links.degraded,
    bandwidth_links.narrow_links,
    bandwidth_links.below_expected,
    bandwidth_links.directions,
    bandwidth_pairs.direct_slower,
    bandwidth_pairs.pair_slower,
    bandwidth_pairs.below_expected,
    bandwidth_host.shared_uplinks,
    bandwidth_host.far_nodes,
    bandwidth_host.memory_slow,
    bandwidth_host.pageable,
    bandwidth_faults.throttled,
    bandwidth_faults.unsteady,
    bandwidth_faults.woke_up,
)
