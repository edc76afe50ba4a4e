"""Chooses the GPUs of a job and the placement of its variables, from a machine and a request only.

`plan_here` plans for this machine, `plan` for any, and `cpu_plan` for one without GPUs. For several hosts,
each is planned by itself; `choice_of_hosts` and `with_predicted_steps` join the plans. Each name loads its
module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.planner.available import hidden_gpus as hidden_gpus
    from gputopo.planner.available import plan_here as plan_here
    from gputopo.planner.available import require_unclaimed as require_unclaimed
    from gputopo.planner.available import visible_gpus as visible_gpus
    from gputopo.planner.choose import plan as plan
    from gputopo.planner.choose import plan_environment as plan_environment
    from gputopo.planner.cpu_devices import MAX_CPU_DEVICES as MAX_CPU_DEVICES
    from gputopo.planner.cpu_devices import counted_devices as counted_devices
    from gputopo.planner.cpu_devices import cpu_plan as cpu_plan
    from gputopo.planner.how_many import how_many_of_hosts as how_many_of_hosts
    from gputopo.planner.joint import choice_of_hosts as choice_of_hosts
    from gputopo.planner.joint import with_predicted_steps as with_predicted_steps
    from gputopo.planner.network import HostNetwork as HostNetwork
    from gputopo.planner.network import NetworkRate as NetworkRate
    from gputopo.planner.network import SavedNetwork as SavedNetwork
    from gputopo.planner.network import network_rate as network_rate
    from gputopo.planner.ranges import range_factor as range_factor
    from gputopo.planner.reasons import require_prediction as require_prediction
    from gputopo.planner.request import Request as Request
    from gputopo.planner.selection import LISTED as LISTED
    from gputopo.planner.what_if import effect_of_changes as effect_of_changes

_MODULES = {
    "HostNetwork": "network",
    "LISTED": "selection",
    "MAX_CPU_DEVICES": "cpu_devices",
    "NetworkRate": "network",
    "Request": "request",
    "SavedNetwork": "network",
    "choice_of_hosts": "joint",
    "counted_devices": "cpu_devices",
    "cpu_plan": "cpu_devices",
    "effect_of_changes": "what_if",
    "hidden_gpus": "available",
    "how_many_of_hosts": "how_many",
    "network_rate": "network",
    "plan": "choose",
    "plan_environment": "choose",
    "plan_here": "available",
    "range_factor": "ranges",
    "require_prediction": "reasons",
    "require_unclaimed": "available",
    "visible_gpus": "available",
    "with_predicted_steps": "joint",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
