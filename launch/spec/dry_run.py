"""What a run would start (`gputopo.dryrun/1`), without starting it."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gputopo.launch.jobs.run import worker_command
from gputopo.launch.spec.host_place import HostPlace
from gputopo.launch.supervise import RunFolder
from gputopo.launch.target import Target
from gputopo.values.run.plan import Plan
from gputopo.values.run.spec import RunSpec

_FUTURE_FOLDER = Path("RUN_FOLDER")
_FUTURE_EVENTS_FD = 3


class DryRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.dryrun/1"):
    """A run that was not started."""

    plan: Plan
    environment: dict[str, str]  # changes to the environment of the caller
    command: tuple[str, ...]
    spec: RunSpec | None = None  # of the built-in core
    host: HostPlace = HostPlace()  # the CPUs, memory and threads of a run on GPUs


def dry_run(target: Target, spec: RunSpec, output: str | None) -> DryRun:
    """Return what a training would start. `output`: its folder; None: a new one."""
    folder = RunFolder(_FUTURE_FOLDER if output is None else Path(output))
    return _dry_run(target, spec, worker_command(folder.spec, _FUTURE_EVENTS_FD))


def dry_run_of_program(target: Target, program: Sequence[str]) -> DryRun:
    """Return how a program would be started. Raises UsageError if there is no such program."""
    from gputopo.launch.user_program.program import check_program

    check_program(program, target.environment(os.environ, None))
    return _dry_run(target, None, program)


def _dry_run(target: Target, spec: RunSpec | None, command: Sequence[str]) -> DryRun:
    environment = target.environment(os.environ, spec)
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return DryRun(
        plan=target.plan,
        environment=dict(sorted(changed.items())),
        command=tuple(command),
        spec=spec,
        host=target.host_place if spec is None or spec.backend == "gpu" else HostPlace(),
    )
