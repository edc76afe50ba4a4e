"""What copies should reach, which rates are possible, and which GPUs share a link.

Each name loads its module when it is used: commands that measure nothing need few of them.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.copies.clock_ramp_up import ramp_ups as ramp_ups
    from gputopo.copies.clock_ramp_up import steady_copies as steady_copies
    from gputopo.copies.collectives import NETWORK_LOW_SHARE as NETWORK_LOW_SHARE
    from gputopo.copies.collectives import expected_rate as expected_rate
    from gputopo.copies.collectives import network_ports as network_ports
    from gputopo.copies.collectives import nvls_is_off as nvls_is_off
    from gputopo.copies.expected import BIDIRECTIONAL_SHARE as BIDIRECTIONAL_SHARE
    from gputopo.copies.expected import link_names as link_names
    from gputopo.copies.expected import model_link as model_link
    from gputopo.copies.expected import with_expectations as with_expectations
    from gputopo.copies.pairs import NvLinks as NvLinks
    from gputopo.copies.pairs import SlowEnds as SlowEnds
    from gputopo.copies.pairs import direct_copies as direct_copies
    from gputopo.copies.pairs import fastest as fastest
    from gputopo.copies.pairs import is_hybrid as is_hybrid
    from gputopo.copies.pairs import is_uniform as is_uniform
    from gputopo.copies.pairs import slow_ends as slow_ends
    from gputopo.copies.physics import AT_ONCE_SUM as AT_ONCE_SUM
    from gputopo.copies.physics import checked as checked
    from gputopo.copies.physics import l2_mib as l2_mib
    from gputopo.copies.physics import larger_copies as larger_copies
    from gputopo.copies.physics import limit_of as limit_of
    from gputopo.copies.physics import memory_limit as memory_limit
    from gputopo.copies.physics import on_path_of as on_path_of
    from gputopo.copies.sharing import fair_rates as fair_rates
    from gputopo.copies.sharing import next_sets as next_sets
    from gputopo.copies.sharing import uplink_groups as uplink_groups

_MODULES = {
    "AT_ONCE_SUM": "physics",
    "BIDIRECTIONAL_SHARE": "expected",
    "NETWORK_LOW_SHARE": "collectives",
    "NvLinks": "pairs",
    "SlowEnds": "pairs",
    "checked": "physics",
    "direct_copies": "pairs",
    "expected_rate": "collectives",
    "fair_rates": "sharing",
    "fastest": "pairs",
    "is_hybrid": "pairs",
    "is_uniform": "pairs",
    "l2_mib": "physics",
    "larger_copies": "physics",
    "limit_of": "physics",
    "link_names": "expected",
    "memory_limit": "physics",
    "model_link": "expected",
    "network_ports": "collectives",
    "next_sets": "sharing",
    "nvls_is_off": "collectives",
    "on_path_of": "physics",
    "ramp_ups": "clock_ramp_up",
    "slow_ends": "pairs",
    "steady_copies": "clock_ramp_up",
    "uplink_groups": "sharing",
    "with_expectations": "expected",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
