"""Chooses the GPUs of a job and where its variables live: a pure function from a machine and a request.

`choose` makes a plan; `request` checks what is asked and lists the usable GPUs; `available` leaves out those
that are hidden or claimed; `fastest` orders all sets and placements by predicted seconds, `by_distance` all
sets by topology or measured bandwidth, `cpu_devices` placements without GPUs; `how_many` chooses the number;
`batches` those of unequal GPUs; `what_if` compares changed machines; `reasons` has the messages; `explained`
lays the step of the choice out in time; `impossible` finds the best plan without what forbids one; `autotune`
decides by short runs.
"""

from gputopo.planner.available import hidden_gpus, plan_here
from gputopo.planner.choose import every_candidate, plan
from gputopo.planner.request import Request, is_of_one_gpu
from gputopo.planner.selection import ALL

__all__ = ["ALL", "Request", "every_candidate", "hidden_gpus", "is_of_one_gpu", "plan", "plan_here"]
