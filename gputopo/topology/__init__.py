"""How devices are connected, and which device in one source is which in another."""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.topology.doubts import MAX_CUT_CPUS as MAX_CUT_CPUS
    from gputopo.topology.doubts import believed_links as believed_links
    from gputopo.topology.doubts import implausible_pairs as implausible_pairs
    from gputopo.topology.doubts import looks_cut as looks_cut
    from gputopo.topology.hops import Groups as Groups
    from gputopo.topology.hops import bridges_above as bridges_above
    from gputopo.topology.hops import class_name as class_name
    from gputopo.topology.hops import hop_between as hop_between
    from gputopo.topology.hops import is_within as is_within
    from gputopo.topology.hops import islands as islands
    from gputopo.topology.hops import joined_by_hops as joined_by_hops
    from gputopo.topology.hops import nearness as nearness
    from gputopo.topology.hops import reduction_groups as reduction_groups
    from gputopo.topology.hops import slower_bridge as slower_bridge
    from gputopo.topology.identities import program_name as program_name
    from gputopo.topology.identities import without_identities as without_identities
    from gputopo.topology.kernel import NVIDIA_DRIVER as NVIDIA_DRIVER
    from gputopo.topology.kernel import UNCOUNTED as UNCOUNTED
    from gputopo.topology.kernel import gpus_of_other_drivers as gpus_of_other_drivers
    from gputopo.topology.nics import near_rdma_ports as near_rdma_ports
    from gputopo.topology.peer_access import P2P_CAUSES as P2P_CAUSES
    from gputopo.topology.peer_access import P2pOff as P2pOff
    from gputopo.topology.peer_access import acs_bridges as acs_bridges
    from gputopo.topology.peer_access import redirected_pairs as redirected_pairs
    from gputopo.topology.peer_access import why_p2p_off as why_p2p_off
    from gputopo.topology.peer_access import with_p2p_reasons as with_p2p_reasons
    from gputopo.topology.same_machine import answering_gpus as answering_gpus
    from gputopo.topology.same_machine import fingerprint as fingerprint
    from gputopo.topology.same_machine import is_same_but_gpus as is_same_but_gpus

_MODULES = {
    "Groups": "hops",
    "MAX_CUT_CPUS": "doubts",
    "NVIDIA_DRIVER": "kernel",
    "P2P_CAUSES": "peer_access",
    "P2pOff": "peer_access",
    "UNCOUNTED": "kernel",
    "acs_bridges": "peer_access",
    "answering_gpus": "same_machine",
    "believed_links": "doubts",
    "bridges_above": "hops",
    "class_name": "hops",
    "fingerprint": "same_machine",
    "gpus_of_other_drivers": "kernel",
    "hop_between": "hops",
    "implausible_pairs": "doubts",
    "is_same_but_gpus": "same_machine",
    "is_within": "hops",
    "islands": "hops",
    "joined_by_hops": "hops",
    "looks_cut": "doubts",
    "near_rdma_ports": "nics",
    "nearness": "hops",
    "program_name": "identities",
    "redirected_pairs": "peer_access",
    "reduction_groups": "hops",
    "slower_bridge": "hops",
    "why_p2p_off": "peer_access",
    "with_p2p_reasons": "peer_access",
    "without_identities": "identities",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
