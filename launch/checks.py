"""Checks before a run starts, for errors that the worker would report much later."""

import os
from pathlib import Path

from gputopo.launch.job import Job
from gputopo.launch.models import require_code
from gputopo.launch.spec.memory_check import require_memory
from gputopo.launch.spec.rules import check_layout
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise.cgroup import memory_bytes
from gputopo.launch.target import Target
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import shown
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.readers import is_utf8
from gputopo.values.run.spec import RunSpec


def runnable(job: Job, target: Target, options: OutputOptions) -> RunSpec:
    """Return the checked spec of a job on its target. Raises GputopoError."""
    spec = job.spec_of(target)
    require_runnable(target, spec, options)
    return spec


def require_runnable(target: Target, spec: RunSpec, options: OutputOptions) -> None:
    """Check before the worker starts what can be checked quickly here. Raises GputopoError."""
    if options.repeats > 1:
        _require_repeatable(spec)
    require_restartable(spec, options)
    if spec.lifecycle.trace_steps and options.output is None:
        _require_home_of_traces(runs.runs_home(os.environ).absolute())
    check_layout(spec, target.environment(os.environ, spec))
    require_memory(
        spec,
        [one.machine for one in (target, *target.others)],
        host_bytes=[memory_bytes(), *(one.memory_bytes for one in target.others)],
    )
    if spec.data.folder is not None:
        from gputopo.launch.data import find_data, require_made_for, require_sound  # loads NumPy

        found = find_data(Path(spec.data.folder), spec.data.name)
        require_made_for(found, spec.model)
        if spec.data.bad_records == "stop":
            require_sound(found, "validation" if spec.task == "eval" else "train")
    require_code(spec.model)


def require_restartable(spec: RunSpec, options: OutputOptions) -> None:
    """Raise UsageError if --restart is given, but the run saves no checkpoint to continue from."""
    if options.restart and (spec.task != "train" or spec.lifecycle.checkpoints is None):
        raise UsageError(
            "--restart continues from a checkpoint, but this run saves none",
            "add --checkpoints DIR, and --checkpoint-steps N for some on the way",
        )


def require_files_of(spec: RunSpec) -> None:
    """Check the folders of saved files, as the worker does much later. Raises GputopoError."""
    saved = spec.lifecycle
    trains = spec.task == "train" and (saved.checkpoints or saved.export or saved.tensorboard)
    if spec.task == "eval" or trains:
        from gputopo.launch.train import require_files  # loads NumPy

        require_files(spec)


def _require_home_of_traces(home: Path) -> None:
    """Raise InputError if the path of the trace is not UTF-8, because the spec could not store it."""
    if not is_utf8(str(home)):
        raise InputError(
            f"--trace writes into {shown(str(home))}, whose name is not UTF-8, as the files of a run are",
            "use another folder with --output, or set GPUTOPO_HOME",
        )


def _require_repeatable(spec: RunSpec) -> None:
    """Raise UsageError if files of the first repeat would disturb the second."""
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
                f"remove {option}, or run once without --repeats",
            )
