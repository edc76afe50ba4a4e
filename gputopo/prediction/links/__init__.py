"""The rates of the links of a machine, and what copies that run at once carry over each of them.

Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.prediction.links.flows import GB as GB
    from gputopo.prediction.links.flows import Flows as Flows
    from gputopo.prediction.links.flows import Load as Load
    from gputopo.prediction.links.flows import in_words as in_words
    from gputopo.prediction.links.flows import slowest_of as slowest_of
    from gputopo.prediction.links.paths import HostLink as HostLink
    from gputopo.prediction.links.paths import Limit as Limit
    from gputopo.prediction.links.paths import PairPath as PairPath
    from gputopo.prediction.links.paths import Paths as Paths
    from gputopo.prediction.links.paths import Resource as Resource
    from gputopo.prediction.links.rings import ring_loads as ring_loads
    from gputopo.prediction.links.shared_links import Uplink as Uplink

_MODULES = {
    "Flows": "flows",
    "GB": "flows",
    "HostLink": "paths",
    "Limit": "paths",
    "Load": "flows",
    "PairPath": "paths",
    "Paths": "paths",
    "Resource": "paths",
    "Uplink": "shared_links",
    "in_words": "flows",
    "ring_loads": "rings",
    "slowest_of": "flows",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
