"""gputopo: hardware diagnostics and a topology-aware launcher for multi-GPU TensorFlow training.

    import gputopo

    i = gputopo.inspect()                               # or gputopo.load("nvidia-smi.txt")
    p = gputopo.plan(i, "resnet50", num_gpus=2)
    r = gputopo.run("resnet50", num_gpus=2, num_batches=20)
    s = gputopo.strategy("resnet50", num_gpus=2)        # a tf.distribute strategy for your own script

`gputopo explain python` has all of it. The types of these names are in `__init__.pyi`.
"""

from gputopo.public_names import exports

__version__ = "0.1.0"

# The module of each public name. It is loaded when the name is used, so that commands start fast.
_MODULES = {
    "GputopoError": "values.errors",
    "Inspection": "api",
    "Plan": "api",
    "Result": "api",
    "Runs": "api",
    "inspect": "api",
    "load": "api",
    "load_runs": "api",
    "plan": "api",
    "run": "api",
    "strategy": "launch.user_strategy",
}
__all__ = ["__version__", *_MODULES]
__getattr__ = exports(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
