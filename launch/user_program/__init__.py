"""A user's program on planned GPUs: its process, the steps that it reports, and its other hosts.

`run_to_end` is the process, `recorded` its record with the steps that a `StepPipe` brings. Each name loads
its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.user_program.error_output import ErrorOutput as ErrorOutput
    from gputopo.launch.user_program.error_output import known_cause as known_cause
    from gputopo.launch.user_program.hosts import cluster_variables as cluster_variables
    from gputopo.launch.user_program.hosts import nccl_variables as nccl_variables
    from gputopo.launch.user_program.hosts import require_all as require_all
    from gputopo.launch.user_program.hosts import unset_variables as unset_variables
    from gputopo.launch.user_program.program import ProgramEnd as ProgramEnd
    from gputopo.launch.user_program.program import ProgramStop as ProgramStop
    from gputopo.launch.user_program.program import check_program as check_program
    from gputopo.launch.user_program.program import failure_of as failure_of
    from gputopo.launch.user_program.program import run_to_end as run_to_end
    from gputopo.launch.user_program.recording import ProgramRecord as ProgramRecord
    from gputopo.launch.user_program.recording import StallWatch as StallWatch
    from gputopo.launch.user_program.recording import recorded as recorded
    from gputopo.launch.user_program.recording import write_stacks as write_stacks
    from gputopo.launch.user_program.steps import Joined as Joined
    from gputopo.launch.user_program.steps import StepPipe as StepPipe

_MODULES = {
    "ErrorOutput": "error_output",
    "Joined": "steps",
    "ProgramEnd": "program",
    "ProgramRecord": "recording",
    "ProgramStop": "program",
    "StallWatch": "recording",
    "StepPipe": "steps",
    "check_program": "program",
    "cluster_variables": "hosts",
    "failure_of": "program",
    "known_cause": "error_output",
    "nccl_variables": "hosts",
    "recorded": "recording",
    "require_all": "hosts",
    "run_to_end": "program",
    "unset_variables": "hosts",
    "write_stacks": "recording",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
