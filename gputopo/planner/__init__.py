"""Chooses the GPUs of a job and where its variables live: a pure function from a machine and a request."""

from gputopo.planner.available import hidden_gpus, plan_here
from gputopo.planner.choose import plan
from gputopo.planner.request import Request

__all__ = ["Request", "hidden_gpus", "plan", "plan_here"]
