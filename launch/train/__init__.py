"""The training core: TensorFlow code that only the worker loads.

Read it in this order: `training` (a run from its spec to its export), `loop` (warm-up and counted steps),
`step` (forward, backward, reduce, update), `towers` (one tower's passes), `placement` (where variables are
stored, and reductions), `updating` (learning rate, clipping, optimizer).

Each public name loads its module when it is used. TensorFlow is not loaded by `require_files`,
`require_writable`, `Loop` with its watches and `StepOutcome`, and the functions on texts of errors.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.train.host_clocks import host_exchanges as host_exchanges
    from gputopo.launch.train.lifecycle.checkpoint_files import require_files as require_files
    from gputopo.launch.train.lifecycle.folders import require_writable as require_writable
    from gputopo.launch.train.loop import Loop as Loop
    from gputopo.launch.train.loop import LossWatch as LossWatch
    from gputopo.launch.train.loop import ScaleWatch as ScaleWatch
    from gputopo.launch.train.op_errors import cause_and_remedy as cause_and_remedy
    from gputopo.launch.train.op_errors import first_line as first_line
    from gputopo.launch.train.op_errors import gpu_remedy as gpu_remedy
    from gputopo.launch.train.op_errors import unreachable_rank as unreachable_rank
    from gputopo.launch.train.placement.algorithms import WrongSumError as WrongSumError
    from gputopo.launch.train.placement.devices import joined as joined
    from gputopo.launch.train.placement.devices import require_device as require_device
    from gputopo.launch.train.placement.devices import set_up_devices as set_up_devices
    from gputopo.launch.train.placement.methods import tested_reducer as tested_reducer
    from gputopo.launch.train.placement.timing import Bench as Bench
    from gputopo.launch.train.stepper import StepOutcome as StepOutcome
    from gputopo.launch.train.stepper import Stepper as Stepper
    from gputopo.launch.train.training import stepper_of as stepper_of
    from gputopo.launch.train.training import train as train
    from gputopo.launch.train.versions import worker_versions as worker_versions

_MODULES = {
    "Bench": "placement.timing",
    "Loop": "loop",
    "LossWatch": "loop",
    "ScaleWatch": "loop",
    "StepOutcome": "stepper",
    "Stepper": "stepper",
    "WrongSumError": "placement.algorithms",
    "cause_and_remedy": "op_errors",
    "first_line": "op_errors",
    "gpu_remedy": "op_errors",
    "host_exchanges": "host_clocks",
    "joined": "placement.devices",
    "require_device": "placement.devices",
    "require_files": "lifecycle.checkpoint_files",
    "require_writable": "lifecycle.folders",
    "set_up_devices": "placement.devices",
    "stepper_of": "training",
    "tested_reducer": "placement.methods",
    "train": "training",
    "unreachable_rank": "op_errors",
    "worker_versions": "versions",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
