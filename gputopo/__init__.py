"""gputopo: hardware diagnostics and a topology-aware launcher for multi-GPU TensorFlow training.

    import gputopo

    i = gputopo.inspect()                               # or gputopo.load("nvidia-smi.txt")
    p = gputopo.plan(i, "resnet50", num_gpus=2)
    r = gputopo.run("resnet50", num_gpus=2, num_batches=20)
    s = gputopo.strategy("resnet50", num_gpus=2)        # a tf.distribute strategy for your own script

`gputopo explain python` has all of it. The types of these names are in `__init__.pyi`.
"""

__version__ = "0.1.0"

# The module of each public name. It is loaded when the name is used, so that commands start fast.
_MODULES = {
    "GputopoError": "gputopo.values.errors",
    "Inspection": "gputopo.api",
    "Plan": "gputopo.api",
    "Result": "gputopo.api",
    "Runs": "gputopo.api",
    "inspect": "gputopo.api",
    "load": "gputopo.api",
    "load_runs": "gputopo.api",
    "plan": "gputopo.api",
    "run": "gputopo.api",
    "strategy": "gputopo.launch.user_strategy",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    """Load the module of a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module 'gputopo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
