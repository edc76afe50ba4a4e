"""gputopo: hardware diagnostics and a topology-aware launcher for multi-GPU TensorFlow training.

    import gputopo

    i = gputopo.inspect()                               # or gputopo.load("nvidia-smi.txt")
    p = gputopo.plan(i, "resnet50", num_gpus=2)
    r = gputopo.run("resnet50", num_gpus=2, num_batches=20)
    s = gputopo.strategy("resnet50", num_gpus=2)        # a tf.distribute strategy for your own script

`gputopo explain python` has all of it.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gputopo.api import Inspection, Plan, Result, Runs, inspect, load, load_runs, plan, run
    from gputopo.launch.user_strategy import strategy
    from gputopo.values.errors import GputopoError

__all__ = [
    "GputopoError",
    "Inspection",
    "Plan",
    "Result",
    "Runs",
    "__version__",
    "inspect",
    "load",
    "load_runs",
    "plan",
    "run",
    "strategy",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for: a command line that needs none of it starts faster."""
    if name not in __all__:
        raise AttributeError(f"module 'gputopo' has no attribute {name!r}")
    if name == "strategy":
        from gputopo.launch.user_strategy import strategy

        return strategy
    if name == "GputopoError":
        from gputopo.values.errors import GputopoError

        return GputopoError
    from gputopo import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
