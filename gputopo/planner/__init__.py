"""Chooses the GPUs of a job and where its variables live: a pure function from a machine and a request.

`choose` makes a plan; `request` checks what is asked and lists the usable GPUs; `subsets` compares all sets
of GPUs; `measured_order` orders them by measured bandwidth; `placement_rule` places the variables; `visible`
reads CUDA_VISIBLE_DEVICES; `reasons` has the messages.
"""

from gputopo.planner.choose import plan
from gputopo.planner.request import Request, is_of_one_gpu
from gputopo.planner.visible import hidden_gpus, require_visible

__all__ = ["Request", "hidden_gpus", "is_of_one_gpu", "plan", "require_visible"]
