"""Rules of a run's task and of what it saves. Pure."""

import math

from gputopo.launch.spec.rules.rule import Rule, moves_gradients, needless, replaced, to
from gputopo.launch.spec.run_spec import Exchange, Lifecycle, RunSpec
from gputopo.values.run.drill import SLOW_WEIGHTS

# Options by their names in RunSpec.asked.
_OF_AN_UPDATE = (
    "all_reduce",
    "optimizer",
    "learning_rate",
    "scale_learning_rate",
    "learning_rate_schedule",
    "learning_rate_warmup_steps",
    "weight_decay",
    "gradient_clip",
    "gradient_clip_norm",
    "loss_scale",
    "on_nan",
)
_OF_A_MODEL = ("ps", "variable_update", "precision", "xla")
_OF_COUNTED_STEPS = ("num_warmup_batches", "keep_checkpoints")


def _plain_exchange(spec: RunSpec) -> RunSpec:
    return replaced(spec, exchange=Exchange(ps_spread=spec.exchange.ps_spread), grad_reduce="mean")


def _resumes(files: Lifecycle) -> bool:
    return files.resume or files.resume_or_start


def _writes(files: Lifecycle) -> bool:
    return files.checkpoint_steps is not None or _resumes(files) or files.export is not None


def _keeps(files: Lifecycle) -> bool:
    return _writes(files) or files.keep_checkpoints != Lifecycle().keep_checkpoints


def _last_step(spec: RunSpec) -> float:
    """Return the number of the last possible step: an evaluation counts from 0, all others from 1."""
    if spec.batch_limit is None:
        return math.inf
    return spec.batch_limit - 1 if spec.task == "eval" else spec.batch_limit


def _traces_beyond(spec: RunSpec) -> bool:
    return max(spec.lifecycle.trace_steps, default=0) > _last_step(spec)


def _drills_beyond(spec: RunSpec) -> bool:
    return max((one.step for one in spec.drills), default=0) > _last_step(spec)


def _traced_within(spec: RunSpec) -> RunSpec:
    within = tuple(step for step in spec.lifecycle.trace_steps if step <= _last_step(spec))
    return replaced(spec, "lifecycle", trace_steps=within)


TASK_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: spec.task == "eval" and spec.lifecycle.checkpoints is None,
        "--eval needs a checkpoint, and none is named",
        "add --checkpoints DIR, or train with --task train",
        to(task="train"),
    ),
    Rule(
        lambda spec: (
            spec.task == "input"
            and (
                spec.lifecycle.checkpoints is not None
                or _keeps(spec.lifecycle)
                or bool(spec.lifecycle.trace_steps)
                or spec.lifecycle.tensorboard is not None
            )
        ),
        "--input-only has no model: there is nothing to save, restore, export, trace or evaluate",
        "leave --checkpoints, --checkpoint-steps, --keep-checkpoints, --resume, --export, --trace and "
        "--tensorboard out, or use --task train",
        to(
            "lifecycle",
            checkpoints=None,
            checkpoint_steps=None,
            keep_checkpoints=5,
            resume=False,
            resume_or_start=False,
            export=None,
            trace_steps=(),
            tensorboard=None,
        ),
    ),
    Rule(
        lambda spec: spec.task == "input" and spec.data.folder is None and spec.data.source == "gpu",
        "--input-only has nothing to measure: examples made once on the devices have no input pipeline",
        "name an input: --data-dir DIR, --data-source cpu or --data-source python",
        to("data", source="cpu"),
    ),
    *needless(
        _OF_A_MODEL,
        lambda spec: spec.task == "input",
        "cannot be combined with --input-only: it has no model",
        "leave it out, or use --forward-only",
    ),
    Rule(
        lambda spec: spec.task != "train" and bool(spec.drills),
        "--drill cannot be combined with --task {spec.task}: its faults are those of steps of training",
        "leave --drill out, or use --task train",
        to(drills=()),
    ),
    Rule(
        lambda spec: _drills_beyond(spec),
        "--drill names a step that the run does not have: it counts {spec.batch_limit} at most",
        "name earlier ones with --drill, or give more steps with --num-batches",
        lambda spec: replaced(spec, drills=tuple(one for one in spec.drills if one.step <= _last_step(spec))),
    ),
    Rule(
        lambda spec: (
            spec.variable_update != "parameter_server"
            and any(one.fault == SLOW_WEIGHTS for one in spec.drills)
        ),
        "--drill slow-weights cannot be combined with --variable-update {spec.variable_update}: each device "
        "has its own copy of the weights",
        "leave --drill out, or use --variable-update parameter_server",
        lambda spec: replaced(spec, drills=tuple(one for one in spec.drills if one.fault != SLOW_WEIGHTS)),
    ),
    Rule(
        lambda spec: spec.task != "train" and (moves_gradients(spec.exchange) or spec.grad_reduce != "mean"),
        "--task {spec.task} computes no gradients, so none are exchanged",
        "leave the options of the exchange out, or use --task train",
        _plain_exchange,
    ),
    *needless(
        _OF_AN_UPDATE,
        lambda spec: spec.task != "train",
        "cannot be combined with --task {spec.task}: no weights are updated",
        "leave it out, or use --task train",
    ),
    *needless(
        ("agg_small_grads_max_group",),
        lambda spec: spec.task != "train",
        "cannot be combined with --task {spec.task}: it computes no gradients",
        "leave it out",
    ),
    *needless(
        _OF_COUNTED_STEPS,
        lambda spec: spec.task == "eval",
        "cannot be combined with --eval: every example is evaluated, and nothing is written",
        "leave it out",
    ),
    Rule(
        lambda spec: spec.task == "eval" and _writes(spec.lifecycle),
        "--eval updates no weights: --checkpoint-steps, --resume and --export have no effect",
        "leave them out, or use --task train",
        to("lifecycle", checkpoint_steps=None, resume=False, resume_or_start=False, export=None),
    ),
    Rule(
        lambda spec: spec.task == "forward" and _keeps(spec.lifecycle),
        "--forward-only uses initial weights and updates none: --checkpoints, --checkpoint-steps, "
        "--keep-checkpoints, --resume and --export have no effect",
        "leave them out, or use --task train",
        to(
            "lifecycle",
            checkpoints=None,
            checkpoint_steps=None,
            keep_checkpoints=5,
            resume=False,
            resume_or_start=False,
            export=None,
        ),
    ),
    Rule(
        lambda spec: spec.task == "forward" and spec.lifecycle.checkpoints is not None,
        "--forward-only uses initial weights, so --checkpoints has no effect",
        "leave --checkpoints out, or evaluate a checkpoint with --eval",
        to("lifecycle", checkpoints=None),
    ),
)

KEPT_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: spec.lifecycle.checkpoints is None and _resumes(spec.lifecycle),
        "--resume needs a checkpoint, and no folder is named",
        "add --checkpoints DIR, or leave --resume out",
        to("lifecycle", resume=False, resume_or_start=False),
    ),
    Rule(
        lambda spec: (
            spec.lifecycle.checkpoints is None
            and (
                spec.lifecycle.checkpoint_steps is not None
                or spec.lifecycle.keep_checkpoints != Lifecycle().keep_checkpoints
            )
        ),
        "--checkpoint-steps and --keep-checkpoints need a folder of checkpoints",
        "add --checkpoints DIR",
        to("lifecycle", checkpoint_steps=None, keep_checkpoints=5),
    ),
    Rule(
        lambda spec: spec.task == "eval" and _traces_beyond(spec),
        "--trace names a step that the evaluation does not have: of {spec.batch_limit} at most the first, "
        "which compiles, is step 0",
        "name earlier ones with --trace, or give more steps with --num-batches",
        _traced_within,
    ),
    Rule(
        lambda spec: spec.task != "eval" and _traces_beyond(spec),
        "--trace names a step that the run does not have: it counts {spec.batch_limit} at most",
        "name earlier ones with --trace, or give more steps with --num-batches",
        _traced_within,
    ),
)
