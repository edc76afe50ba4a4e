"""Chooses the GPUs of a job and where its variables live: a pure function from a machine and a request.

`choose` puts a plan together; `subsets` looks at all sets of GPUs; `placement_rule` decides where variables
live; `reasons` says why; `environment` is what a launcher must set.
"""

from gputopo.planner.choose import plan
from gputopo.planner.request import Request, is_of_one_gpu

__all__ = ["Request", "is_of_one_gpu", "plan"]
