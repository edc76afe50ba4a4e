"""From a plan and options to the frozen spec of a run, checked before anything starts.

`spec_of` makes the spec and `check` refuses options that do not go together. `worker_env` and `program_env`
are the environment of what is started. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.spec.env import allowed_variables as allowed_variables
    from gputopo.launch.spec.env import program_env as program_env
    from gputopo.launch.spec.env import worker_env as worker_env
    from gputopo.launch.spec.host_place import HostPlace as HostPlace
    from gputopo.launch.spec.host_place import Usable as Usable
    from gputopo.launch.spec.host_place import place_near_gpus as place_near_gpus
    from gputopo.launch.spec.model_names import ModelName as ModelName
    from gputopo.launch.spec.model_names import model_for as model_for
    from gputopo.launch.spec.model_names import read_model_name as read_model_name
    from gputopo.launch.spec.prepare import Fallback as Fallback
    from gputopo.launch.spec.prepare import reduced_by_strategy as reduced_by_strategy
    from gputopo.launch.spec.prepare import spec_of as spec_of
    from gputopo.launch.spec.prepare import without_nccl as without_nccl
    from gputopo.launch.spec.recipes import model_recipe as model_recipe
    from gputopo.launch.spec.rules import bf16_remark as bf16_remark
    from gputopo.launch.spec.rules import check as check
    from gputopo.launch.spec.rules import check_layout as check_layout
    from gputopo.launch.spec.rules import remarks as remarks

_MODULES = {
    "Fallback": "prepare",
    "HostPlace": "host_place",
    "ModelName": "model_names",
    "Usable": "host_place",
    "allowed_variables": "env",
    "bf16_remark": "rules",
    "check": "rules",
    "check_layout": "rules",
    "model_for": "model_names",
    "model_recipe": "recipes",
    "place_near_gpus": "host_place",
    "program_env": "env",
    "read_model_name": "model_names",
    "reduced_by_strategy": "prepare",
    "remarks": "rules",
    "spec_of": "prepare",
    "without_nccl": "prepare",
    "worker_env": "env",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
