"""Predicts images/sec from block sizes, the speed of one GPU, and the rates of links.

`single_gpu_speeds` gives the speed of each GPU by itself, `paths_of` the rates between GPUs and the host, and
a `StepPredictor` the steps of several GPUs. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.prediction.gradients import GradientBlock as GradientBlock
    from gputopo.prediction.links.paths import Paths as Paths
    from gputopo.prediction.links.paths import paths_of as paths_of
    from gputopo.prediction.links.paths import pcie_link as pcie_link
    from gputopo.prediction.one_gpu_speeds import SAME_RUN as SAME_RUN
    from gputopo.prediction.one_gpu_speeds import Figure as Figure
    from gputopo.prediction.one_gpu_speeds import OneGpuJob as OneGpuJob
    from gputopo.prediction.one_gpu_speeds import Speed as Speed
    from gputopo.prediction.one_gpu_speeds import one_gpu_figures as one_gpu_figures
    from gputopo.prediction.one_gpu_speeds import published_speed as published_speed
    from gputopo.prediction.one_gpu_speeds import single_gpu_speeds as single_gpu_speeds
    from gputopo.prediction.programs import DEFAULT_PROGRAM as DEFAULT_PROGRAM
    from gputopo.prediction.programs import ProgramConstants as ProgramConstants
    from gputopo.prediction.programs import program_names as program_names
    from gputopo.prediction.programs import require_program as require_program
    from gputopo.prediction.step import BY_NCCL as BY_NCCL
    from gputopo.prediction.step import ModelCosts as ModelCosts
    from gputopo.prediction.step import Placement as Placement
    from gputopo.prediction.step import StepPredictor as StepPredictor
    from gputopo.prediction.step import StepSeconds as StepSeconds
    from gputopo.prediction.step import network_exchange_s as network_exchange_s
    from gputopo.prediction.timeline import step_timeline as step_timeline

_MODULES = {
    "BY_NCCL": "step",
    "DEFAULT_PROGRAM": "programs",
    "Figure": "one_gpu_speeds",
    "GradientBlock": "gradients",
    "ModelCosts": "step",
    "OneGpuJob": "one_gpu_speeds",
    "Paths": "links.paths",
    "Placement": "step",
    "ProgramConstants": "programs",
    "SAME_RUN": "one_gpu_speeds",
    "Speed": "one_gpu_speeds",
    "StepPredictor": "step",
    "StepSeconds": "step",
    "network_exchange_s": "step",
    "one_gpu_figures": "one_gpu_speeds",
    "paths_of": "links.paths",
    "pcie_link": "links.paths",
    "program_names": "programs",
    "published_speed": "one_gpu_speeds",
    "require_program": "programs",
    "single_gpu_speeds": "one_gpu_speeds",
    "step_timeline": "timeline",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
