"""Everything in a run other than training steps: checkpoints, evaluations, exports, traces, TensorBoard.

Each public name loads its module when it is used. `ForwardStep`, `evaluate`, `measure_input` and
`pass_forward` load TensorFlow.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.train.lifecycle.checkpoint_files import CheckpointHeader as CheckpointHeader
    from gputopo.launch.train.lifecycle.checkpoint_files import newest_checkpoint as newest_checkpoint
    from gputopo.launch.train.lifecycle.checkpoint_files import prune_checkpoints as prune_checkpoints
    from gputopo.launch.train.lifecycle.checkpoint_files import write_checkpoint as write_checkpoint
    from gputopo.launch.train.lifecycle.evaluating import ForwardStep as ForwardStep
    from gputopo.launch.train.lifecycle.evaluating import evaluate as evaluate
    from gputopo.launch.train.lifecycle.evaluating import measure_input as measure_input
    from gputopo.launch.train.lifecycle.evaluating import pass_forward as pass_forward
    from gputopo.launch.train.lifecycle.folders import DiskError as DiskError
    from gputopo.launch.train.lifecycle.folders import FolderError as FolderError

_MODULES = {
    "CheckpointHeader": "checkpoint_files",
    "DiskError": "folders",
    "FolderError": "folders",
    "ForwardStep": "evaluating",
    "evaluate": "evaluating",
    "measure_input": "evaluating",
    "newest_checkpoint": "checkpoint_files",
    "pass_forward": "evaluating",
    "prune_checkpoints": "checkpoint_files",
    "write_checkpoint": "checkpoint_files",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
