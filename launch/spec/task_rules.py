"""Rules of a run's task, of what it saves, of its data and its numbers. Pure."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gputopo.launch.spec.model_names import data_of
from gputopo.launch.spec.run_spec import (
    Data,
    Exchange,
    Lifecycle,
    OptimizerName,
    Precision,
    RunSpec,
    Runtime,
    Task,
)
from gputopo.values.errors import UsageError
from gputopo.values.option import listed
from gputopo.values.run.drill import SLOW_WEIGHTS


class TaskRule(NamedTuple):
    """Options of a run that exclude one another; the texts are formatted with the spec as `spec`."""

    when: Callable[[RunSpec], bool]
    what: str  # the options, and why they do not go together
    use: str  # what works


def needless(names: str, when: Callable[[RunSpec], bool], why: str, use: str) -> tuple[TaskRule, ...]:
    """Return a rule for each option that has no effect `when`; `why` follows its name.

    The spec has the value in any case, so the rule looks at what was typed: names as in `RunSpec.asked`.
    """

    def rule(name: str) -> TaskRule:
        return TaskRule(
            lambda spec: name in spec.asked and when(spec), f"--{name.replace('_', '-')} {why}", use
        )

    return tuple(map(rule, names.split()))


def moves_gradients(exchange: Exchange) -> bool:
    """Whether anything is asked of the exchange but a place for the variables."""
    plain = Exchange(ps_spread=exchange.ps_spread, groups=exchange.groups, small_group=exchange.small_group)
    return exchange != plain


# Options by their names in RunSpec.asked.
_OF_AN_OPTIMIZER: dict[OptimizerName, str] = {"momentum": "momentum nesterov"}
_TRAINS = (
    "optimizer learning_rate scale_learning_rate learning_rate_schedule learning_rate_warmup_steps "
    "weight_decay gradient_clip gradient_clip_norm loss_scale on_nan all_reduce grad_reduce staged_vars "
    "variable_consistency async gradient_repacking agg_small_grads_max_bytes agg_small_grads_max_group "
    "fp16_transfer drill checkpoint_steps keep_checkpoints resume export "
)
# Options without an effect on a task, and why.
_IDLE: dict[Task, tuple[str, str]] = {
    "forward": (_TRAINS + "checkpoints", "initial weights are used, and none are updated"),
    "eval": (
        _TRAINS + "num_warmup_batches distortions cache",
        "each example is read once, and no weights change",
    ),
    "input": (
        _TRAINS + "checkpoints ps variable_update precision xla trace tensorboard",
        "it has no model",
    ),
}


def require_task(spec: RunSpec) -> None:
    """Raise UsageError for options that have no effect on the spec's task."""
    names, why = _IDLE.get(spec.task, ("", ""))
    idle = [f"--{name.replace('_', '-')}" for name in names.split() if name in spec.asked]
    if idle:
        raise UsageError(
            f"{listed(idle, 'and')} cannot be combined with --task {spec.task}: {why}",
            f"leave {'it' if len(idle) == 1 else 'them'} out, or use --task train",
        )


def _has_another(optimizer: OptimizerName, spec: RunSpec) -> bool:
    return spec.optimization.optimizer != optimizer


def _last_step(spec: RunSpec) -> float:
    """Return the number of the last possible step: an evaluation counts from 0, all others from 1."""
    if spec.batch_limit is None:
        return math.inf
    return spec.batch_limit - 1 if spec.task == "eval" else spec.batch_limit


def _traces_beyond(spec: RunSpec) -> bool:
    return max(spec.lifecycle.trace_steps, default=0) > _last_step(spec)


def _synthetic(data: Data) -> Data:
    return Data(source=data.source, feed=data.feed, prefetch=data.prefetch)


def _made_in_python(data: Data) -> bool:
    return data.folder is None and data.source == "python"


def _other_data(spec: RunSpec) -> bool:
    own = data_of(spec.model)
    return spec.data.folder is not None and own is not None and spec.data.name != own


TASK_RULES: tuple[TaskRule, ...] = (
    TaskRule(
        lambda spec: spec.task == "eval" and spec.lifecycle.checkpoints is None,
        "--task eval needs a checkpoint, and none is named",
        "add --checkpoints DIR, or train with --task train",
    ),
    TaskRule(
        lambda spec: spec.task == "input" and spec.data.folder is None and spec.data.source == "gpu",
        "--task input has nothing to measure: examples made once on the devices have no input pipeline",
        "name an input: --data-dir DIR, --data-source cpu or --data-source python",
    ),
    TaskRule(
        lambda spec: max((one.step for one in spec.drills), default=0) > _last_step(spec),
        "--drill names a step that the run does not have: it counts {spec.batch_limit} at most",
        "name earlier ones with --drill, or give more steps with --num-batches",
    ),
    TaskRule(
        lambda spec: (
            spec.variable_update != "parameter_server"
            and any(one.fault == SLOW_WEIGHTS for one in spec.drills)
        ),
        "--drill slow-weights cannot be combined with --variable-update {spec.variable_update}: each device "
        "has its own copy of the weights",
        "leave --drill out, or use --variable-update parameter_server",
    ),
)

NUMBER_RULES: tuple[TaskRule, ...] = (
    *(
        rule
        for optimizer, names in _OF_AN_OPTIMIZER.items()
        for rule in needless(
            names,
            partial(_has_another, optimizer),
            f"cannot be combined with --optimizer {{spec.optimization.optimizer}}: "
            f"a parameter of {optimizer}",
            f"use --optimizer {optimizer}, or leave it out",
        )
    ),
    TaskRule(
        lambda spec: (
            spec.precision.compute != "fp16"
            and (spec.precision.auto_loss_scale or spec.precision.loss_scale != Precision().loss_scale)
        ),
        "--loss-scale cannot be combined with --precision {spec.precision.compute}: "
        "only fp16 gradients can underflow",
        "leave --loss-scale out, or use --precision fp16",
    ),
    TaskRule(
        lambda spec: (
            spec.precision.auto_loss_scale
            and (spec.exchange.staged or spec.exchange.relaxed or spec.exchange.asynchronous)
        ),
        "--loss-scale auto cannot be combined with --staged-vars, --async or relaxed consistency: "
        "the gradients that are applied are not those of one step and one scale",
        "give a fixed one: --loss-scale 128",
    ),
    TaskRule(
        lambda spec: (
            spec.backend == "cpu"
            and (
                spec.precision.tf32,
                spec.runtime.gpu_thread_mode,
                spec.runtime.per_gpu_threads,
                spec.runtime.memory_limit_mib,
            )
            != ("on", Runtime().gpu_thread_mode, Runtime().per_gpu_threads, None)
        ),
        "--tf32, --gpu-thread-mode, --per-gpu-thread-count and --gpu-memory-limit are for GPUs, "
        "and this run is on CPU devices",
        "leave them out; --num-intra-threads and --num-inter-threads count on the CPU",
    ),
    TaskRule(
        lambda spec: (
            spec.asked.get("learning_rate_schedule") == "model"
            and spec.optimization.schedule.kind == "constant"
        ),
        "--learning-rate-schedule model cannot be combined with --model {spec.model}: "
        "its authors use a constant rate",
        "leave it out, or give one, such as --learning-rate-schedule cosine:5000",
    ),
)

DATA_RULES: tuple[TaskRule, ...] = (
    TaskRule(
        lambda spec: spec.data.folder is None and spec.data != _synthetic(spec.data),
        "--distortions, --resize-method, --datasets-num-private-threads, --cache and --bad-records are for "
        "real examples, and there is no --data-dir",
        "add --data-dir DIR, or leave them out",
    ),
    TaskRule(
        lambda spec: spec.data.folder is not None and data_of(spec.model) == "numbers",
        "--data-dir has images, and --model {spec.model} needs numbers",
        "leave --data-dir out, or use --model resnet20",
    ),
    *needless(
        "data_name",
        lambda spec: spec.data.folder is None and data_of(spec.model) is None,
        "cannot be combined with --model {spec.model} without --data-dir: synthetic ones have its shape",
        "leave it out, or add --data-dir DIR",
    ),
    *needless(
        "data_format",
        lambda spec: data_of(spec.model) == "numbers",
        "cannot be combined with --model {spec.model}: its input is not images",
        "leave it out",
    ),
    TaskRule(
        _other_data,
        "--model {spec.model} cannot train on {spec.data.name}",
        "leave --data-name out, or choose a --model of that data",
    ),
    TaskRule(
        lambda spec: spec.data.folder is not None and (spec.data.source, spec.data.feed) != ("gpu", "sync"),
        "--data-source and --feed are for synthetic examples, and --data-dir has real ones",
        "leave --data-source and --feed out, or leave --data-dir out",
    ),
    TaskRule(
        lambda spec: (
            spec.data.folder is None and spec.data.source == "gpu" and spec.data.prefetch != Data().prefetch
        ),
        "--prefetch is for an input pipeline, and examples made once on the devices have none",
        "use --data-source cpu, or leave it out",
    ),
    TaskRule(
        lambda spec: spec.data.folder is None and spec.data.feed != "sync" and spec.data.source != "python",
        "--feed {spec.data.feed} cannot be combined with --data-source {spec.data.source}: "
        "it is for batches made in Python",
        "use --data-source python, or leave --feed out",
    ),
    *needless(
        "prefetch",
        lambda spec: _made_in_python(spec.data) and spec.data.feed == "sync",
        "cannot be combined with --feed sync: each batch is made on demand",
        "use --feed queue, or leave --prefetch out",
    ),
    TaskRule(
        lambda spec: _made_in_python(spec.data) and spec.data.feed != "sync" and spec.data.prefetch == 0,
        "--prefetch 0 cannot be combined with --feed {spec.data.feed}, which makes batches ahead",
        "use --feed sync, without --prefetch",
    ),
    *needless(
        "resize_method cache",
        lambda spec: spec.data.folder is not None and spec.data.name == "cifar10",
        "cannot be combined with CIFAR-10: its images keep their size, and all are in memory",
        "leave it out",
    ),
)

FILE_RULES: tuple[TaskRule, ...] = (
    TaskRule(
        lambda spec: (
            spec.lifecycle.checkpoints is None and (spec.lifecycle.resume or spec.lifecycle.resume_or_start)
        ),
        "--resume needs a checkpoint, and no folder is named",
        "add --checkpoints DIR, or leave --resume out",
    ),
    TaskRule(
        lambda spec: (
            spec.lifecycle.checkpoints is None
            and (
                spec.lifecycle.checkpoint_steps is not None
                or spec.lifecycle.keep_checkpoints != Lifecycle().keep_checkpoints
            )
        ),
        "--checkpoint-steps and --keep-checkpoints need a folder of checkpoints",
        "add --checkpoints DIR",
    ),
    TaskRule(
        lambda spec: spec.task == "eval" and _traces_beyond(spec),
        "--trace names a step that the evaluation does not have: of {spec.batch_limit} at most the first, "
        "which compiles, is step 0",
        "name earlier ones with --trace, or give more steps with --num-batches",
    ),
    TaskRule(
        lambda spec: spec.task != "eval" and _traces_beyond(spec),
        "--trace names a step that the run does not have: it counts {spec.batch_limit} at most",
        "name earlier ones with --trace, or give more steps with --num-batches",
    ),
)
