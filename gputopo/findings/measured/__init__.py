"""Findings from measured copies. There are none on a machine without `bandwidth`."""

from gputopo.findings import rising
from gputopo.findings.measured import (
    collectives,
    faults,
    gpus,
    host,
    links,
    network,
    pairs,
    validity,
)

COPY_CHECKS = (
    faults.failures,
    validity.cache_rates,
    validity.above_link,
    validity.inconsistent,
    validity.several_runs,
    links.degraded,
    gpus.slow_gpus,
    pairs.slow_pairs,
    host.shared_uplinks,
    host.far_nodes,
    host.memory_elsewhere,
    host.memory_slow,
    faults.other_load,
    collectives.shared_gpu,
    collectives.slow,
    collectives.below_minimum,
    collectives.separate,
    collectives.nvls_off,
    network.failed,
    network.slow,
    network.unsteady,
    network.oversubscribed,
    rising.errors,
    rising.falls,
    faults.throttled,
    faults.unsteady,
    faults.ramp_up,
)
