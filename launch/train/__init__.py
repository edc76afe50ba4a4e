"""The training core: TensorFlow code that only the worker loads.

Read it in this order: `training` (a run from its spec to its export), `loop` (warm-up and counted steps),
`step` (forward, backward, reduce, update), `towers` (one tower's passes), `placement` (where variables are
stored, and reductions), `updating` (learning rate, clipping, optimizer).

Each public name loads its module when it is used; `require_files` and `require_writable` load no TensorFlow.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.train.lifecycle.checkpoint_files import require_files as require_files
    from gputopo.launch.train.lifecycle.folders import require_writable as require_writable
    from gputopo.launch.train.op_errors import first_line as first_line
    from gputopo.launch.train.placement.algorithms import WrongSumError as WrongSumError
    from gputopo.launch.train.placement.devices import require_device as require_device
    from gputopo.launch.train.placement.devices import set_up_devices as set_up_devices
    from gputopo.launch.train.placement.methods import tested_reducer as tested_reducer
    from gputopo.launch.train.placement.timing import Bench as Bench

_MODULES = {
    "Bench": "placement.timing",
    "WrongSumError": "placement.algorithms",
    "first_line": "op_errors",
    "require_device": "placement.devices",
    "require_files": "lifecycle.checkpoint_files",
    "require_writable": "lifecycle.folders",
    "set_up_devices": "placement.devices",
    "tested_reducer": "placement.methods",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
