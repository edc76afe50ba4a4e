"""The rules over measured copies, in their order. They find nothing on a machine without `bandwidth`."""

from gputopo.findings.finding import Rule
from gputopo.findings.measured import equals, faults, host, links, pairs

BANDWIDTH_RULES: tuple[Rule, ...] = (
    faults.failures,
    faults.programs,
    links.degraded,
    links.narrow_links,
    links.below_expected,
    equals.slower_than_equals,
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
    faults.woke_up,
)
