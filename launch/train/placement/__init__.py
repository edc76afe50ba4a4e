"""Placement of variables: the devices, a class for each placement, and the check of every op's device.

Each public name loads its module when it is used. `partitioning` and `checking` do not load TensorFlow.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.train.placement.algorithms import self_test as self_test
    from gputopo.launch.train.placement.checking import check_ops as check_ops
    from gputopo.launch.train.placement.checking import check_variables as check_variables
    from gputopo.launch.train.placement.checking import count_tower_ops as count_tower_ops
    from gputopo.launch.train.placement.devices import server_config as server_config
    from gputopo.launch.train.placement.devices import settings as settings
    from gputopo.launch.train.placement.methods import reducer_of as reducer_of
    from gputopo.launch.train.placement.partitioning import chunk_sizes as chunk_sizes
    from gputopo.launch.train.placement.partitioning import halves as halves
    from gputopo.launch.train.placement.partitioning import leaders_of as leaders_of
    from gputopo.launch.train.placement.partitioning import owners_of as owners_of
    from gputopo.launch.train.placement.partitioning import small_runs as small_runs
    from gputopo.launch.train.placement.partitioning import starts_of as starts_of
    from gputopo.launch.train.placement.placements import place as place
    from gputopo.launch.train.placement.trial_step import require_kernels as require_kernels
    from gputopo.launch.train.placement.variables import largest_difference as largest_difference
    from gputopo.launch.train.placement.variables import pin as pin

_MODULES = {
    "check_ops": "checking",
    "check_variables": "checking",
    "chunk_sizes": "partitioning",
    "count_tower_ops": "checking",
    "halves": "partitioning",
    "largest_difference": "variables",
    "leaders_of": "partitioning",
    "owners_of": "partitioning",
    "pin": "variables",
    "place": "placements",
    "reducer_of": "methods",
    "require_kernels": "trial_step",
    "self_test": "algorithms",
    "server_config": "devices",
    "settings": "devices",
    "small_runs": "partitioning",
    "starts_of": "partitioning",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
