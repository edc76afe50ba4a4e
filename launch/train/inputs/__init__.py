"""The inputs of a training step: each kind is an `InputSource`, made by `source_of`.

Each public name loads its module, and TensorFlow, when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.train.inputs.factory import private_threads as private_threads
    from gputopo.launch.train.inputs.factory import require_cache_memory as require_cache_memory
    from gputopo.launch.train.inputs.factory import source_of as source_of
    from gputopo.launch.train.inputs.fed import Prefetched as Prefetched
    from gputopo.launch.train.inputs.synthetic import examples as examples

_MODULES = {
    "Prefetched": "fed",
    "examples": "synthetic",
    "private_threads": "factory",
    "require_cache_memory": "factory",
    "source_of": "factory",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
