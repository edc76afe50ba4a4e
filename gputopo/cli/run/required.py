"""What can be checked cheaply before a training's worker starts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.cli.run.options import OutputOptions
from gputopo.launch.spec import env
from gputopo.launch.spec.readers import is_utf8
from gputopo.launch.supervise import run_folder as runs
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import shown

if TYPE_CHECKING:
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target


def require_runnable(target: "Target", spec: "RunSpec", options: OutputOptions) -> None:
    """Check before the worker starts what is cheap to see here. Raises GputopoError."""
    from gputopo.launch.spec.memory_check import require_memory
    from gputopo.launch.spec.rules.numerics import require_numerics
    from gputopo.launch.supervise.cgroup import memory_bytes

    if options.repeats > 1:
        _require_repeatable(spec)
    require_restartable(spec, options)
    if spec.lifecycle.trace_steps and options.output is None:
        _require_home_of_traces(runs.runs_home(os.environ).absolute())
    require_numerics(spec, env.run_env(os.environ, target, spec))
    require_memory(
        spec,
        [one.machine for one in (target, *target.others)],
        host_bytes=[memory_bytes(), *(one.memory_bytes for one in target.others)],
    )
    if spec.data.folder is not None:
        from gputopo.launch.data.folder import find, require_made_for, require_sound

        found = find(Path(spec.data.folder), spec.data.name)
        require_made_for(found, spec.model)
        if spec.data.bad_records == "stop":
            require_sound(found, "validation" if spec.task == "eval" else "train")
    from gputopo.launch.models.source_check import require_there

    require_there(spec.model)


def require_restartable(spec: "RunSpec", options: OutputOptions) -> None:
    """Raise UsageError where a run is to start again after a failure, and cannot."""
    if options.restart and (spec.task != "train" or spec.lifecycle.checkpoints is None):
        raise UsageError(
            "--restart goes on from a checkpoint, and this run has none",
            "add --checkpoints DIR, and --checkpoint-steps N for some on the way",
        )
    if options.restart and spec.rank is not None:
        raise UsageError(
            f"--restart cannot be combined with --strategy {spec.strategy}: the workers of all hosts would "
            "have to start again",
            "leave --restart out; after a failure start all hosts again with --resume",
        )


def require_files_of(spec: "RunSpec") -> None:
    """Check the folders of what is saved, as the worker does much later. Raises GputopoError."""
    saved = spec.lifecycle
    if spec.task == "eval":
        from gputopo.launch.train.lifecycle.checkpoint_files import require_evaluable  # loads NumPy

        require_evaluable(spec)
    elif spec.task == "train" and (saved.checkpoints or saved.export or saved.tensorboard):
        from gputopo.launch.train.lifecycle.checkpoint_files import require_files

        require_files(spec)


def _require_home_of_traces(home: Path) -> None:
    """Raise InputError where the spec, which is UTF-8, could not name the folder of the trace."""
    if not is_utf8(str(home)):
        raise InputError(
            f"--trace writes into {shown(str(home))}, whose name is not UTF-8, as the files of a run are",
            "name another folder with --output, or set GPUTOPO_HOME",
        )


def _require_repeatable(spec: "RunSpec") -> None:
    """Raise UsageError for files of the first repeat that would disturb the second."""
    saved = spec.lifecycle
    saves = spec.task == "train"  # an evaluation only reads
    for option, folder in (
        ("--checkpoints", saved.checkpoints if saves else None),
        ("--export", saved.export),
        ("--tensorboard", saved.tensorboard),
    ):
        if folder is not None:
            raise UsageError(
                f"--repeats cannot be combined with {option}: all repeats would write to {folder}",
                f"leave {option} out, or run once without --repeats",
            )
