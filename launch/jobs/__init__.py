"""What gputopo starts: training runs, trials, measurements, and the user's program.

`supervise` runs the worker of a `RunJob`. `tune` races short trials of placements, `run_cells` and
`measure_cells` run those of a sweep and of a screen. What commands call is in `gputopo.launch`. Each name
loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.jobs.before import known_of as known_of
    from gputopo.launch.jobs.before import past_of as past_of
    from gputopo.launch.jobs.budget import TimeBudget as TimeBudget
    from gputopo.launch.jobs.claims import ClaimedError as ClaimedError
    from gputopo.launch.jobs.claims import claimed as claimed
    from gputopo.launch.jobs.claims import claimed_by_others as claimed_by_others
    from gputopo.launch.jobs.model_costs import Sized as Sized
    from gputopo.launch.jobs.model_costs import sized as sized
    from gputopo.launch.jobs.model_costs import workload_of as workload_of
    from gputopo.launch.jobs.network import EndedCommand as EndedCommand
    from gputopo.launch.jobs.network import measure_between_hosts as measure_between_hosts
    from gputopo.launch.jobs.network_tools import NetworkHost as NetworkHost
    from gputopo.launch.jobs.network_tools import network_programs as network_programs
    from gputopo.launch.jobs.race import Race as Race
    from gputopo.launch.jobs.race import contenders as contenders
    from gputopo.launch.jobs.reduction_bench import METHODS as METHODS
    from gputopo.launch.jobs.reduction_bench import ReductionTimes as ReductionTimes
    from gputopo.launch.jobs.reduction_bench import time_methods as time_methods
    from gputopo.launch.jobs.reduction_worker import ReductionJob as ReductionJob
    from gputopo.launch.jobs.reduction_worker import require_memory as require_memory
    from gputopo.launch.jobs.restarting import SavedSteps as SavedSteps
    from gputopo.launch.jobs.restarting import continued as continued
    from gputopo.launch.jobs.restarting import is_of_nccl as is_of_nccl
    from gputopo.launch.jobs.restarting import may_restart as may_restart
    from gputopo.launch.jobs.run import RunJob as RunJob
    from gputopo.launch.jobs.run import find_batch as find_batch
    from gputopo.launch.jobs.run import supervise as supervise
    from gputopo.launch.jobs.screen import ScreenCell as ScreenCell
    from gputopo.launch.jobs.screen import measure_cells as measure_cells
    from gputopo.launch.jobs.serving import own_spec as own_spec
    from gputopo.launch.jobs.sweep import Pause as Pause
    from gputopo.launch.jobs.sweep import run_cells as run_cells
    from gputopo.launch.jobs.sweep_seconds import predicted_s as predicted_s
    from gputopo.launch.jobs.trials import Trial as Trial
    from gputopo.launch.jobs.trials import trial_of as trial_of
    from gputopo.launch.jobs.trials import tune as tune

_MODULES = {
    "ClaimedError": "claims",
    "EndedCommand": "network",
    "METHODS": "reduction_bench",
    "NetworkHost": "network_tools",
    "Pause": "sweep",
    "Race": "race",
    "ReductionJob": "reduction_worker",
    "ReductionTimes": "reduction_bench",
    "RunJob": "run",
    "SavedSteps": "restarting",
    "ScreenCell": "screen",
    "Sized": "model_costs",
    "TimeBudget": "budget",
    "Trial": "trials",
    "claimed": "claims",
    "claimed_by_others": "claims",
    "contenders": "race",
    "continued": "restarting",
    "find_batch": "run",
    "is_of_nccl": "restarting",
    "known_of": "before",
    "may_restart": "restarting",
    "measure_between_hosts": "network",
    "measure_cells": "screen",
    "network_programs": "network_tools",
    "own_spec": "serving",
    "past_of": "before",
    "predicted_s": "sweep_seconds",
    "require_memory": "reduction_worker",
    "run_cells": "sweep",
    "sized": "model_costs",
    "supervise": "run",
    "time_methods": "reduction_bench",
    "trial_of": "trials",
    "tune": "trials",
    "workload_of": "model_costs",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
