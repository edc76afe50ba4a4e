"""What is known before a plan is made: the costs of the model, and what earlier runs of this machine say."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.cli.placement import update_of
from gputopo.cli.printing import note
from gputopo.cli.run.options import OutputOptions
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.spec import env
from gputopo.launch.spec.readers import is_utf8
from gputopo.launch.spec.run_spec import Precision
from gputopo.launch.supervise import run_folder as runs
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Given, shown
from gputopo.values.run.batches import AUTO, is_auto

if TYPE_CHECKING:
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.values.run.plan import Plan


def with_costs(request: "Request") -> "Request":
    """Return the request with the costs of a model that no table has, which is built if none are stored.

    Why it cannot be built here is printed to stderr. Raises UsageError for a model that cannot be built.
    """
    if request.model is None or ":" not in request.model or not request.predicts:
        return request
    from gputopo.launch.jobs.model_costs import known_workload, workload_of
    from gputopo.launch.models.source_check import require_there

    workload = known_workload(request.model)
    if workload is None:
        require_there(request.model)
        note(f"building {request.model} once to count what it costs")
        try:
            workload = workload_of(request.model)
        except InputError as error:
            note(error.what)
    return msgspec.structs.replace(request, workload=workload)


def warn(chosen: "Plan") -> None:
    """Print to stderr which GPUs were passed over, or taken nevertheless, and why."""
    for line in chosen.warnings:
        note(line)


# Options of a run, as typed, that need replicas, or a parameter server.
_OF_REPLICAS = (
    "all_reduce",
    "gradient_repacking",
    "agg_small_grads_max_bytes",
    "agg_small_grads_max_group",
    "fp16_transfer",
)
_OF_A_SERVER = ("staged_vars", "async")


def as_strategy_reduces(chosen: "Target", asked: Mapping[str, Any]) -> "Target":
    """Return the target without a reduction where a strategy of tf.distribute has its own."""
    if not strategy_has_copies(asked):
        return chosen
    from gputopo.launch.spec.prepare import reduced_by_strategy

    return replace(chosen, plan=reduced_by_strategy(chosen.plan))


def implied_update(asked: Mapping[str, Any]) -> str:
    """Return the --variable-update that the options need, where it was left to gputopo."""
    update = update_of(asked.get("variable_update", "auto"))
    if update != "auto":
        return update
    relaxed = str(asked.get("variable_consistency", "")).lower() == "relaxed"
    if relaxed or any(asked.get(name) for name in _OF_REPLICAS):
        return "replicated"
    return "parameter_server" if any(asked.get(name) for name in _OF_A_SERVER) else update


def strategy_has_copies(asked: Mapping[str, Any]) -> bool:
    """Whether --strategy alone decides where variables are, and that is on every device. Raises UsageError.

    What was asked for beside it is planned as it was typed, so that the rules of the core can refuse it.
    """
    if "strategy" not in asked or "ps" in asked or implied_update(asked) != "auto":
        return False
    from gputopo.launch.spec.names import read

    return read(asked["strategy"]).kind != "central"


def require_runnable(target: "Target", spec: "RunSpec", options: OutputOptions) -> None:
    """Check before the worker starts what is cheap to see here. Raises GputopoError."""
    from gputopo.launch.spec.memory_check import require_memory
    from gputopo.launch.spec.rules import require_numerics
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


@dataclass(frozen=True)
class Asked:
    """One call of `gputopo run`: `program` or `model`, its options by theme, files of another machine."""

    program: tuple[str, ...]
    model: str | None
    placement: Given
    sources: tuple[str, ...]
    training: Given
    hosts: Given
    showing: Given

    @cached_property
    def options(self) -> OutputOptions:
        """What is shown and written, and how it ends."""
        return OutputOptions(**self.showing.fields)

    @cached_property
    def host_options(self) -> HostOptions:
        """The other hosts, and how they meet."""
        return HostOptions(**self.hosts.fields)

    @cached_property
    def typed(self) -> dict[str, Any]:
        """Options of the plan and of the training as typed, by name."""
        return {**placed(self.placement), **self.training.typed}

    @cached_property
    def request(self) -> "Request":
        """The request for a plan. Raises UsageError."""
        training = {} if self.program else self.training.fields
        return request_of(self.placement.fields, self.typed, self.model, training)

    @property
    def is_predicted(self) -> bool:
        """Whether the plan's prediction is of this run. Raises UsageError for a needless speed."""
        return is_predicted(self.placement.fields, self.training.fields)

    def spec_of(self, target: "Target") -> "RunSpec":
        """Return the spec of the training on a target. Raises UsageError."""
        from gputopo.launch.spec.prepare import spec_of

        assert self.model is not None, "a program has no spec of the core"
        return spec_of(target, self.model, self.typed, **self.training.fields)

    def check_output(self) -> None:
        """Raise InputError for a folder that cannot be written to."""
        from gputopo.launch.supervise import run_folder as runs

        runs.check_output(None if self.options.output is None else Path(self.options.output))


def placed(placement: Given) -> dict[str, Any]:
    """Return the options of the plan that were typed, but for `auto`, which leaves the choice to gputopo."""
    return {name: value for name, value in placement.typed.items() if value != "auto"}


def request_of(
    placement: Mapping[str, Any], asked: Mapping[str, Any], model: str | None, training: Mapping[str, Any]
) -> "Request":
    """Return the request for a plan of the options' values. Raises UsageError.

    `placement`, `training`: the fields that they set; `asked`: what was typed.
    """
    from gputopo import planner
    from gputopo.launch.spec import model_names

    if model is not None:
        model = model_names.model_for(model, asked.get("data_name"))
    update = "replicated" if strategy_has_copies(asked) else implied_update(asked)
    return planner.Request(
        model=model,
        batch_size=AUTO if is_auto(asked.get("batch_size")) else training.get("batch_size"),
        precision=training.get("precision", Precision()).compute,
        predicts=is_predicted(placement, training),
        **{**placement, "variable_update": update},
    )


def is_predicted(placement: Mapping[str, Any], training: Mapping[str, Any]) -> bool:
    """Return whether the steps are those of the core's own towers. Raises UsageError for a needless speed."""
    others = [("task", "train"), ("method", None), ("strategy", None)]
    other = next((name for name, own in others if training.get(name, own) != own), None)
    if other is not None and "single_gpu_images_per_sec" in placement:
        raise UsageError(
            f"--single-gpu-images-per-sec cannot be combined with --{other} {training[other]}: "
            "only training by the core is predicted",
            "leave one of them out",
        )
    return other is None
