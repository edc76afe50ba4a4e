"""Output of `--format env|sbatch|docker`: how the planned run is started by other programs."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo.cli.hosts.driving import typed_words
from gputopo.cli.hosts.exporting import OF_HOSTS
from gputopo.cli.plan.options import PlanOptions
from gputopo.cli.printing import emit
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared

if TYPE_CHECKING:
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target

STARTS = ("env", "sbatch", "docker")
# Options that are about what is shown here, not about the run.
_NOT_OF_THE_RUN = ("from", "format", "json", "tf_cnn_log", "dry_run", "require_gpu", "autotune")


def require_dry(shape: str, *, dry_run: bool) -> None:
    """Raise UsageError for a format that starts nothing where a run was asked for."""
    if shape in (*STARTS, *OF_HOSTS) and not dry_run:
        raise UsageError(f"--format {shape} shows how a run is started, and starts none", "add --dry-run")


def show_start(
    target: "Target",
    shape: str,
    words: Sequence[str],
    *,
    program: tuple[str, ...] = (),
    spec: "RunSpec | None" = None,
    output: str | None = None,
    mode: bool = True,
) -> int:
    """Print it. `words`: options of the run beside those of its plan. Raises UsageError without GPUs."""
    from gputopo.launch.spec.start_scripts import Manager, Start, start_script
    from gputopo.launch.supervise.run_folder import runs_home

    place = target.host_place
    if shape == "env":
        import shlex

        variables = {**target.plan.environment, **place.thread_variables(os.environ)}
        emit("".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
        return 0
    if target.machine is None or not target.plan.choice.gpus:
        raise UsageError(
            f"--format {shape} starts a run on GPUs, and none is planned: {target.why_cpu}",
            "plan for another machine with --from FILE, or start gputopo run itself there",
        )
    manager: Manager = "sbatch" if shape == "sbatch" else "docker"
    start = Start(
        choice=target.plan.choice,
        machine=target.machine,
        place=place,
        environment=target.plan.environment,
        words=tuple(words),
        folder=str(Path.cwd()),
        mode=mode,
        program=program,
        folders=(*folders_of(spec), *(() if output is None else (output,))),
        home=str(runs_home(os.environ).parent.absolute()),
        host_name=None if target.rehearsal_of is not None else platform.node().partition(".")[0],
    )
    emit(start_script(manager, start))
    return 0


def words_of(declared: Sequence[Declared], typed: Mapping[str, Any]) -> list[str]:
    """Return the options of a run as they were typed, without those of its plan and of what is shown."""
    plan = PlanOptions.__struct_fields__
    return typed_words([one for one in declared if one.field not in plan], typed, _NOT_OF_THE_RUN)


def placement_words(declared: Sequence[Declared], typed: Mapping[str, Any]) -> list[str]:
    """Return the options of the placement as they were typed, for a training that has its own."""
    kept = ("ps", "variable_update", "all_reduce")
    return [
        word
        for one in declared
        if one.name in kept and one.name in typed
        for word in (one.option.flag, str(typed[one.name]))
    ]


def folders_of(spec: "RunSpec | None") -> list[str]:
    """Return the folders that a run reads and writes besides its own."""
    if spec is None:
        return []
    saved = spec.lifecycle
    named = (spec.data.folder, saved.checkpoints, saved.export, saved.tensorboard)
    return [folder for folder in named if folder is not None]
