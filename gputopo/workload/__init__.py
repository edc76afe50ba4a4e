"""The networks that gputopo trains, each written once, as calls to a `Layers`, without TensorFlow.

`sketch` follows the calls with shapes only and counts; the training core follows them with tensors. To add a
network, add a function to `networks` and an entry to `known_architectures`.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.workload.architectures import Architecture as Architecture
    from gputopo.workload.architectures import Loss as Loss
    from gputopo.workload.architectures import known_architectures as known_architectures
    from gputopo.workload.sketch import Activation as Activation
    from gputopo.workload.sketch import BlockCost as BlockCost
    from gputopo.workload.sketch import BlockCounter as BlockCounter
    from gputopo.workload.sketch import Norm as Norm
    from gputopo.workload.sketch import Padding as Padding
    from gputopo.workload.sketch import Sketch as Sketch
    from gputopo.workload.sketch import Variable as Variable
    from gputopo.workload.spreading import MIN_CHUNK as MIN_CHUNK
    from gputopo.workload.spreading import chunk_count as chunk_count
    from gputopo.workload.spreading import spread_by_size as spread_by_size
    from gputopo.workload.workloads import Workload as Workload
    from gputopo.workload.workloads import require_workload as require_workload
    from gputopo.workload.workloads import workload_names as workload_names

_MODULES = {
    "Activation": "sketch",
    "Architecture": "architectures",
    "BlockCost": "sketch",
    "BlockCounter": "sketch",
    "Loss": "architectures",
    "MIN_CHUNK": "spreading",
    "Norm": "sketch",
    "Padding": "sketch",
    "Sketch": "sketch",
    "Variable": "sketch",
    "Workload": "workloads",
    "chunk_count": "spreading",
    "known_architectures": "architectures",
    "require_workload": "workloads",
    "spread_by_size": "spreading",
    "workload_names": "workloads",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
