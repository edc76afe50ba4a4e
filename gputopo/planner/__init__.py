"""Chooses the GPUs of a job and the placement of its variables, from a machine and a request only."""

from gputopo.planner.available import hidden_gpus, plan_here
from gputopo.planner.choose import plan
from gputopo.planner.request import Request

__all__ = ["Request", "hidden_gpus", "plan", "plan_here"]
