"""Checks before a run starts, for errors that the worker would report much later."""

import math
import os
from pathlib import Path

from gputopo.launch.job import Job
from gputopo.launch.models import require_code
from gputopo.launch.spec import model_names
from gputopo.launch.spec.rules import check_layout
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.supervise.cgroup import memory_bytes
from gputopo.launch.target import Target
from gputopo.values.errors import HardwareError, InputError, UsageError
from gputopo.values.option import shown
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.readers import is_utf8
from gputopo.values.run.spec import RunSpec
from gputopo.workload import require_workload

_NUMBER_BYTES = 4  # every input is float32


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
    home = str(runs.runs_home(os.environ).absolute())
    if spec.lifecycle.trace_steps and options.output is None and not is_utf8(home):
        raise InputError(
            f"--trace writes into {shown(home)}, whose name is not UTF-8, as the files of a run are",
            "use another folder with --output, or set GPUTOPO_HOME",
        )
    check_layout(spec, target.environment(os.environ, spec))
    if spec.backend == "cpu" and not spec.servers:
        _require_memory(spec)
    if spec.data.folder is not None:
        from gputopo.launch.data import find_data, require_made_for, require_sound  # loads NumPy

        data = find_data(Path(spec.data.folder), spec.data.name)
        require_made_for(data, spec.model)
        if spec.data.bad_records == "stop":
            require_sound(data, "validation" if spec.task == "eval" else "train")
    require_code(spec.model)


def require_restartable(spec: RunSpec, options: OutputOptions) -> None:
    """Raise UsageError if --restart is given, but the run saves no checkpoint to continue from."""
    if options.restart and (spec.task != "train" or spec.lifecycle.checkpoints is None):
        raise UsageError(
            "--restart continues from a checkpoint, but this run saves none",
            "add --checkpoints DIR, and --checkpoint-steps N for some on the way",
        )


def _require_memory(spec: RunSpec) -> None:
    """Raise HardwareError if the examples of one step are larger than this host's memory.

    CPU devices share it. A batch that passes may still not fit, because layers need far more. The plan checks
    the memory of GPUs. Keras models, whose shape is unknown before they are built, are not checked.
    """
    asked = model_names.read_model_name(spec.model)
    if asked.kind != "network":
        return
    example_bytes = _NUMBER_BYTES * math.prod(require_workload(asked.attribute).input_shape)
    needed, memory = example_bytes * sum(spec.batches), memory_bytes()
    if 0 < memory < needed:
        raise HardwareError(
            f"{sum(spec.batches):,} examples of a step need {needed / 2**30:,.1f} GiB, "
            f"and this machine has {memory / 2**30:,.1f} GiB",
            f"use a --batch-size far below {memory // (example_bytes * len(spec.batches)) or 1:,}: "
            "layers need more",
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
