"""What is done about a signal to the launcher: decisions over values, which `worker_life` carries out."""

import signal
from typing import Literal

from gputopo.launch.spec.run_spec import RunSpec

Stage = Literal["running", "finishing", "closing", "asked", "killed", "over"]
"""Of a worker's life: at work, at the end of its step, told its last event, told to end, killed, ended."""

Answer = Literal["finish", "end", "kill"]
"""The worker may end its step, is told to end (SIGTERM), or is killed."""


def answer(signum: int, stage: Stage, *, worth_a_step: bool) -> Answer:
    """Decide about a signal. A Ctrl-C after the worker was told to end is of somebody who does not wait.

    SIGTERM and SIGHUP may come twice for one wish, to the group and once more by a parent, and whoever sends
    them has SIGKILL too: they do not cut short the step that the worker was asked to end.

    `worth_a_step`: the worker has begun with its steps, and what it has come to is kept.
    """
    if signum == signal.SIGINT and stage in ("finishing", "asked", "killed"):
        return "kill"
    return "finish" if stage in ("running", "finishing") and worth_a_step else "end"


def keeps_something(spec: RunSpec) -> bool:
    """Whether what the worker has come to is worth the end of a step."""
    kept = spec.lifecycle
    saves = spec.task == "train" and kept.checkpoints is not None
    return saves or kept.tensorboard is not None or bool(kept.trace_steps)
