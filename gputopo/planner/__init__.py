"""Chooses the GPUs of a job and where its variables live: a pure function from a machine and a request.

`choose` makes a plan; `request` checks what is asked and lists the usable GPUs; `available` leaves out those
that are hidden or claimed; `subsets` compares all sets of GPUs; `measured_order` orders them by measured
bandwidth; `how_many` chooses their number; `what_if` compares changed machines; `placement_rule` places the
variables; `reasons` has the messages; `explained` lays the step of the choice out in time; `impossible` finds
the best plan without what forbids one; `autotune` decides by short runs.
"""

from gputopo.planner.available import hidden_gpus, plan_here
from gputopo.planner.choose import every_candidate, plan
from gputopo.planner.request import Request, is_of_one_gpu
from gputopo.planner.selection import ALL

__all__ = ["ALL", "Request", "every_candidate", "hidden_gpus", "is_of_one_gpu", "plan", "plan_here"]
