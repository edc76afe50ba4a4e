"""Findings from measured copies. There are none on a machine without `bandwidth`."""

from gputopo.findings.measured import faults, host, links, pairs

COPY_CHECKS = (
    faults.failures,
    faults.programs,
    links.degraded,
    links.narrow_links,
    links.below_expected,
    links.slower_than_peers,
    links.directions,
    pairs.direct_slower,
    pairs.pair_slower,
    pairs.below_expected,
    host.shared_uplinks,
    host.far_nodes,
    host.memory_slow,
    host.pageable,
    faults.throttled,
    faults.unsteady,
    faults.ramp_up,
)
