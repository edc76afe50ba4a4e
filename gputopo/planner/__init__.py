"""Chooses the GPUs of a job and where its variables live: a pure function from a machine and a request."""

from gputopo.planner.available import hidden_gpus, plan_here
from gputopo.planner.choose import plan
from gputopo.planner.request import Request, is_of_one_gpu
from gputopo.planner.selection import ALL

__all__ = ["ALL", "Request", "hidden_gpus", "is_of_one_gpu", "plan", "plan_here"]
