"""Options that do not go together: tables of rules, and what checks a run's spec against them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from gputopo.launch.spec.model_names import data_of
from gputopo.launch.spec.names import MULTI_WORKER, STRATEGIES, Kind, StrategyName, read
from gputopo.launch.spec.run_spec import (
    Data,
    Exchange,
    Lifecycle,
    OptimizerName,
    Precision,
    RunSpec,
    Runtime,
    Schedule,
)
from gputopo.values.errors import UsageError
from gputopo.values.run import all_reduce
from gputopo.values.run.drill import SLOW_WEIGHTS
from gputopo.values.run.plan import VariableUpdate


@dataclass(frozen=True)
class Rule:
    """`when` it applies, `what` does not go together and why, what to `use`, and the `nearest` run.

    `what` and `use` are formatted with the spec as `spec`.
    """

    when: Callable[[RunSpec], bool]
    what: str
    use: str
    nearest: Callable[[RunSpec], RunSpec]


def replaced(spec: RunSpec, part: str | None = None, **changes: Any) -> RunSpec:
    """Return the spec with other values, of itself or of one of its parts."""
    if part is None:
        return msgspec.structs.replace(spec, **changes)
    return msgspec.structs.replace(spec, **{part: msgspec.structs.replace(getattr(spec, part), **changes)})


def to(part: str | None = None, **changes: Any) -> Callable[[RunSpec], RunSpec]:
    """Return a function that replaces these values."""
    return lambda spec: replaced(spec, part, **changes)


def moves_gradients(exchange: Exchange) -> bool:
    """Whether anything is asked of the exchange but a place for the variables."""
    plain = Exchange(ps_spread=exchange.ps_spread, groups=exchange.groups, small_group=exchange.small_group)
    return exchange != plain


def typed(spec: RunSpec, *names: str) -> bool:
    """Whether one of these options was typed; names as in `RunSpec.asked`."""
    return any(name in spec.asked for name in names)


def untyped(*names: str) -> Callable[[RunSpec], RunSpec]:
    """Return a function that removes these options from those that were typed."""
    return lambda spec: replaced(
        spec, asked={name: value for name, value in spec.asked.items() if name not in names}
    )


def needless(names: Iterable[str], when: Callable[[RunSpec], bool], why: str, use: str) -> tuple[Rule, ...]:
    """Return a rule for each option that has no effect `when`; `why` follows its name.

    The spec has the value in any case, so the rule looks at what was typed.
    """

    def rule(name: str) -> Rule:
        return Rule(
            lambda spec: when(spec) and typed(spec, name), f"{written(name)} {why}", use, untyped(name)
        )

    return tuple(rule(name) for name in names)


def written(name: str) -> str:
    """Return an option as it is typed, from its name in `RunSpec.asked`."""
    return f"--{name.replace('_', '-')}"


OF_ONE_PROCESS = ("nccl_op",)


def _on_several(when: Callable[[RunSpec], bool]) -> Callable[[RunSpec], bool]:
    return lambda spec: bool(spec.servers) and when(spec)


def _of_one_process(spec: RunSpec) -> bool:
    return spec.all_reduce is not None and all_reduce.parse(spec.all_reduce).name in OF_ONE_PROCESS


def is_multi_worker(spec: RunSpec) -> bool:
    """Whether each host trains with a process of its own, by a strategy of tf.distribute."""
    return spec.strategy is not None and read(spec.strategy).kind == MULTI_WORKER


def _on_cpus(spec: RunSpec) -> bool:
    return spec.backend == "cpu" and spec.rehearsal_of is None  # of GPUs, whose start is shown


def _devices_of_hosts(spec: RunSpec) -> list[int]:
    return list(Counter(device.rank for device in spec.devices).values())


HOSTS_RULES: tuple[Rule, ...] = (
    Rule(
        _on_several(lambda spec: spec.method is not None),
        "--method {spec.method} is for one host, and this is a training of several",
        "leave --method out, or add --num-hosts 1",
        to(method=None),
    ),
    Rule(
        _on_several(lambda spec: spec.strategy is not None and not is_multi_worker(spec)),
        "--strategy {spec.strategy} is for one host, and this is a training of several",
        "use --strategy multi_worker_mirrored, leave --strategy out, or add --num-hosts 1",
        to(strategy=None),
    ),
    Rule(
        lambda spec: is_multi_worker(spec) and not spec.servers,
        "--strategy {spec.strategy} is for several hosts, and this is a training of one",
        "use --strategy mirrored, or start it on several hosts: gputopo explain hosts",
        to(strategy="mirrored"),
    ),
    Rule(
        lambda spec: is_multi_worker(spec) and _on_cpus(spec) and max(_devices_of_hosts(spec)) > 1,
        "--strategy {spec.strategy} uses one CPU device of each host, as TensorFlow's strategy does",
        "use --num-gpus with the number of hosts, or leave --strategy out",
        to(strategy=None),
    ),
    Rule(
        lambda spec: is_multi_worker(spec) and len(set(_devices_of_hosts(spec))) > 1,
        "--strategy {spec.strategy} needs as many GPUs on each host, and the hosts have unequal numbers",
        "use --num-gpus with a multiple of the number of hosts, or leave --strategy out",
        to(strategy=None),
    ),
    Rule(
        _on_several(_of_one_process),
        "--all-reduce {spec.all_reduce} is within one process, and each host of this training has its own",
        "use --all-reduce hierarchical, or add --num-hosts 1",
        lambda spec: replaced(spec, all_reduce="hierarchical"),
    ),
)


def _other(spec: RunSpec) -> bool:
    """Whether another trainer than our own towers runs."""
    return spec.method is not None or spec.strategy is not None


def _is(spec: RunSpec, *, kind: str | None = None, reduction: str | None = None) -> bool:
    if spec.strategy is None:
        return False
    asked = read(spec.strategy)
    return asked.kind == kind or (reduction is not None and asked.reduction == reduction)


def _has_copies(spec: RunSpec) -> bool:
    """Whether it is a strategy that has variables on each device."""
    return spec.strategy is not None and not _is(spec, kind="central")


def _own_update(spec: RunSpec) -> VariableUpdate:
    """Placement of such a trainer's variables: on each device, or in one place."""
    return "replicated" if _has_copies(spec) else "parameter_server"


def _moves(spec: RunSpec) -> bool:
    """Whether another exchange of weights and gradients was asked for than the trainer's own."""
    other = spec.variable_update != _own_update(spec) or spec.all_reduce is not None
    return other or moves_gradients(spec.exchange)


def _to_own_exchange(spec: RunSpec) -> RunSpec:
    update = _own_update(spec)
    return replaced(
        spec,
        variable_update=update,
        all_reduce=None,
        exchange=Exchange(),
        ps_device=spec.ps_device or "/CPU:0" if update == "parameter_server" else None,
    )


def _nccl_on_cpu(kind: Kind) -> Rule:
    """Return the rule of a strategy that reduces by NCCL, of one kind."""

    def needs_gpus(spec: RunSpec) -> bool:
        asked = None if spec.strategy is None else read(spec.strategy)
        return spec.backend == "cpu" and asked == StrategyName(kind, "nccl")

    return Rule(
        needs_gpus,
        "--strategy {spec.strategy} needs GPUs: NCCL has no kernel for CPU devices",
        f"use --strategy {kind}, which reduces in a ring there",
        to(strategy=kind),
    )


TRAINER_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: spec.method is not None and spec.strategy is not None,
        "--method {spec.method} cannot be combined with --strategy {spec.strategy}: each is another trainer",
        "leave one of them out, such as --strategy",
        to(strategy=None),
    ),
    Rule(
        lambda spec: _other(spec) and spec.task != "train",
        "--task {spec.task} cannot be combined with a --method or --strategy: they only train",
        "leave --method and --strategy out",
        to(method=None, strategy=None),
    ),
    Rule(
        lambda spec: spec.method is not None and _moves(spec),
        "--method {spec.method} has its own exchange of weights and gradients",
        "leave --variable-update and the options of the exchange out; --ps places its variables",
        _to_own_exchange,
    ),
    *needless(
        ("ps",),
        _has_copies,
        "cannot be combined with --strategy {spec.strategy}, which places the variables itself",
        "leave it out, or use --strategy central, whose variables are there",
    ),
    *needless(
        ("variable_update",),
        _has_copies,
        "cannot be combined with --strategy {spec.strategy}, which places the variables itself",
        "leave it out",
    ),
    Rule(
        lambda spec: spec.strategy is not None and _moves(spec),
        "--strategy {spec.strategy} has its own exchange of weights and gradients",
        "leave --variable-update and the options of the exchange out; a strategy's name has its reduction, "
        "such as --strategy mirrored:one",
        _to_own_exchange,
    ),
    Rule(
        lambda spec: _other(spec) and spec.exchange != Exchange(),
        "--ps gpu:spread cannot be combined with a --method or --strategy: their variables are in one place",
        "use --ps cpu or --ps gpu:N",
        _to_own_exchange,
    ),
    Rule(
        lambda spec: spec.method is not None and isinstance(spec.batch_size, tuple),
        "--batch-size with a number for each device cannot be combined with --method {spec.method}: it cuts "
        "one joint batch evenly",
        "give one number, or leave --method out",
        lambda spec: replaced(spec, batch_size=max(1, spec.joint_batch // len(spec.devices))),
    ),
    Rule(
        lambda spec: spec.method is not None and spec.grad_reduce == "sum",
        "--grad-reduce sum cannot be combined with --method {spec.method}: it has one loss, a mean",
        "leave --grad-reduce out",
        to(grad_reduce="mean"),
    ),
    Rule(
        lambda spec: _other(spec) and bool(spec.drills),
        "--drill cannot be combined with a --method or --strategy: its faults are those of our own towers",
        "leave --drill out",
        to(drills=()),
    ),
    Rule(
        lambda spec: _other(spec) and spec.lifecycle.training_accuracy,
        "--print-training-accuracy cannot be combined with a --method or --strategy: our own towers count it",
        "leave --print-training-accuracy out",
        to("lifecycle", training_accuracy=False),
    ),
    _nccl_on_cpu("mirrored"),
    _nccl_on_cpu(MULTI_WORKER),
    Rule(
        lambda spec: _is(spec, reduction="hierarchical") and len(spec.devices) % 2 == 1,
        "--strategy {spec.strategy} silently loses the gradients of one device where their number is odd",
        "use an even --num-gpus, or --strategy mirrored:one",
        to(strategy="mirrored:one"),
    ),
    Rule(
        lambda spec: _is(spec, kind="one-device") and len(spec.devices) != 1,
        "--strategy {spec.strategy} uses one device, and this run has more",
        "use --num-gpus 1, or --strategy mirrored",
        to(strategy="mirrored"),
    ),
)


def require_strategy(spec: RunSpec) -> StrategyName:
    """Return the strategy of a spec. Raises UsageError for what cannot be combined with it."""
    if spec.strategy is None:
        raise UsageError("no strategy is named", f"give --strategy {', '.join(STRATEGIES)}")
    asked = read(spec.strategy)
    for wrong, what, hint in (*_of_devices(asked, spec), *_of_options(asked, spec)):
        if wrong:
            raise UsageError(f"--strategy {spec.strategy} {what}", hint)
    return asked


def _of_devices(asked: StrategyName, spec: RunSpec) -> list[tuple[bool, str, str]]:
    count = len(spec.devices)
    return [
        (
            asked.reduction == "nccl" and spec.backend == "cpu",
            "needs GPUs: NCCL has no kernel for CPU devices",
            f"use --strategy {asked.kind}, which reduces in a ring there",
        ),
        (
            # TensorFlow cuts the list into two halves of count // 2 and forgets the last device.
            asked.reduction == "hierarchical" and count % 2 == 1,
            f"loses the gradients of one of {count} devices silently (TensorFlow 2.21: odd counts)",
            f"use {count + 1} devices{f' or {count - 1}' if count > 1 else ''}, or --all-reduce hierarchical",
        ),
        (
            asked.kind == "one-device" and count != 1,
            f"uses one device, this run has {count}",
            "use --num-gpus 1, or --strategy mirrored",
        ),
    ]


def _of_options(asked: StrategyName, spec: RunSpec) -> list[tuple[bool, str, str]]:
    leave = "leave it out, or train without --strategy"
    update = "parameter_server" if asked.kind == "central" else "replicated"
    return [
        (
            spec.method is not None,
            f"cannot be combined with --method {spec.method}",
            "leave one of the two out",
        ),
        (spec.exchange != Exchange(), "cannot be combined with options of the exchange", leave),
        (
            spec.all_reduce is not None,
            f"cannot be combined with --all-reduce {spec.all_reduce}: the strategy reduces",
            "leave --all-reduce out, or use --variable-update replicated without --strategy",
        ),
        (
            spec.variable_update == "independent",
            "cannot be combined with --variable-update independent: it synchronises its copies",
            f"leave --variable-update out (it is {update})",
        ),
        (spec.task != "train", f"cannot be combined with the task {spec.task}", leave),
        (spec.lifecycle.training_accuracy, "cannot be combined with --training-accuracy", leave),
        (bool(spec.drills), "cannot be combined with --drill", leave),
    ]


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
                or spec.lifecycle.training_accuracy
                or bool(spec.lifecycle.trace_steps)
                or spec.lifecycle.tensorboard is not None
            )
        ),
        "--input-only has no model: there is nothing to save, restore, export, trace or evaluate",
        "leave --checkpoints, --checkpoint-steps, --keep-checkpoints, --resume, --export, --trace, "
        "--tensorboard and --print-training-accuracy out, or use --task train",
        to(
            "lifecycle",
            checkpoints=None,
            checkpoint_steps=None,
            keep_checkpoints=5,
            resume=False,
            resume_or_start=False,
            export=None,
            training_accuracy=False,
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
    Rule(
        lambda spec: spec.task == "eval" and spec.lifecycle.training_accuracy,
        "--eval shows the accuracy anyway: --print-training-accuracy is for training",
        "leave --print-training-accuracy out",
        to("lifecycle", training_accuracy=False),
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


def _to_server(spec: RunSpec) -> RunSpec:
    on_ps = spec.exchange.ps_spread or spec.ps_device is not None
    place = spec.ps_device if on_ps else "/CPU:0"
    return replaced(spec, variable_update="parameter_server", all_reduce=None, ps_device=place)


def _to_copies(spec: RunSpec) -> RunSpec:
    exchange = msgspec.structs.replace(spec.exchange, ps_spread=False)
    return replaced(spec, variable_update="replicated", ps_device=None, exchange=exchange)


def _of_a_server(spec: RunSpec) -> bool:
    return spec.exchange.staged or spec.exchange.asynchronous


def _of_copies(spec: RunSpec) -> bool:
    exchange = spec.exchange
    packed = exchange.repacking or exchange.small_bytes or exchange.transfer == "fp16"
    return bool(packed or exchange.relaxed)


EXCHANGE_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: _of_a_server(spec) and _of_copies(spec),
        "--staged-vars and --async are modes of a parameter server: they cannot be combined with packed or "
        "fp16 gradients, or with relaxed consistency",
        "leave --staged-vars and --async out, and use --variable-update replicated",
        lambda spec: replaced(_to_copies(spec), "exchange", staged=False, asynchronous=False),
    ),
    Rule(
        lambda spec: spec.exchange.staged and spec.variable_update != "parameter_server",
        "--staged-vars cannot be combined with --variable-update {spec.variable_update}: "
        "it stages weights between a parameter server and the towers",
        "use --variable-update parameter_server, or --variable-update replicated and "
        "--variable-consistency relaxed without --staged-vars",
        _to_server,
    ),
    Rule(
        lambda spec: spec.exchange.asynchronous and spec.variable_update != "parameter_server",
        "--async cannot be combined with --variable-update {spec.variable_update}: "
        "towers apply gradients to shared variables, and here each has its own",
        "use --variable-update parameter_server, or --variable-update independent without --async",
        _to_server,
    ),
    Rule(
        lambda spec: spec.exchange.staged and spec.exchange.asynchronous,
        "--staged-vars cannot be combined with --async: --staged-vars needs synchronous steps",
        "leave one of them out, such as --async",
        to("exchange", asynchronous=False),
    ),
    Rule(
        lambda spec: spec.exchange.relaxed and spec.variable_update != "replicated",
        "--variable-consistency relaxed cannot be combined with --variable-update {spec.variable_update}: "
        "it delays reduced gradients by one step",
        "use --variable-update replicated, or --variable-update parameter_server and --staged-vars "
        "without --variable-consistency",
        _to_copies,
    ),
    Rule(
        lambda spec: spec.all_reduce is not None and spec.variable_update != "replicated",
        "--all-reduce {spec.all_reduce} cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated, or leave --all-reduce out",
        to(all_reduce=None),
    ),
    Rule(
        lambda spec: bool(spec.exchange.repacking) and spec.variable_update != "replicated",
        "--gradient-repacking cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: bool(spec.exchange.small_bytes) and spec.variable_update != "replicated",
        "--agg-small-grads-max-bytes cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: spec.exchange.transfer == "fp16" and spec.variable_update != "replicated",
        "--fp16-transfer cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated",
        _to_copies,
    ),
    Rule(
        lambda spec: typed(spec, "agg_small_grads_max_group") and not spec.exchange.small_bytes,
        "--agg-small-grads-max-group needs a size of small gradients",
        "add --agg-small-grads-max-bytes B, or leave it out",
        untyped("agg_small_grads_max_group"),
    ),
    Rule(
        lambda spec: bool(spec.exchange.repacking) and bool(spec.exchange.small_bytes),
        "--gradient-repacking cannot be combined with --agg-small-grads-max-bytes: "
        "it makes chunks of one size, so no small gradient is left",
        "leave --agg-small-grads-max-bytes out",
        to("exchange", small_bytes=0),
    ),
    Rule(
        lambda spec: spec.exchange.ps_spread and spec.variable_update != "parameter_server",
        "--ps gpu:spread cannot be combined with --variable-update {spec.variable_update}: "
        "each device has its own copy",
        "leave --ps out, or use --variable-update parameter_server",
        to("exchange", ps_spread=False),
    ),
    Rule(
        lambda spec: spec.grad_reduce == "sum" and spec.variable_update == "independent",
        "--grad-reduce sum cannot be combined with --variable-update independent: nothing is reduced",
        "leave --grad-reduce out, or use --variable-update replicated",
        to(grad_reduce="mean"),
    ),
)


MAX_CHUNKS = 1024  # each is some ops more for every tower; more is probably a typing mistake


def require_exchange(spec: RunSpec) -> None:
    """Raise UsageError for what cannot be: one line why, and the nearest that works."""
    if spec.variable_update == "parameter_server":
        _require_server(spec)
    else:
        _require_copies(spec)
    if spec.variable_update == "replicated":
        asked = all_reduce.require(spec.all_reduce or "copy", spec.backend, len(spec.devices))
        _require_groups(spec, asked.name)
        _require_packing(spec)
        return
    _refuse_reduction(spec)


def _refuse_reduction(spec: RunSpec) -> None:
    exchange = spec.exchange
    replicated = "use --variable-update replicated"
    for option, given, hint in (
        (f"--all-reduce {spec.all_reduce}", spec.all_reduce is not None, replicated),
        ("relaxed consistency", exchange.relaxed, f"{replicated}, or staged weights"),
        ("gradient repacking", bool(exchange.repacking), replicated),
        ("packing of small gradients", bool(exchange.small_bytes), replicated),
        ("transfer of gradients in fp16", exchange.transfer != "fp32", replicated),
    ):
        if given:
            raise UsageError(
                f"{option} cannot be combined with --variable-update {spec.variable_update}: "
                "nothing is reduced between replicas",
                hint,
            )


def _require_server(spec: RunSpec) -> None:
    exchange = spec.exchange
    if exchange.staged and exchange.asynchronous:
        raise UsageError(
            "staged weights cannot be combined with asynchronous updates: they need synchronous steps",
            "leave one of the two out",
        )
    if exchange.ps_spread and spec.ps_device is not None:
        raise UsageError(
            f"the variables cannot be spread and on {spec.ps_device} at once", "give one of the two places"
        )
    _require_scale(spec)


def _require_copies(spec: RunSpec) -> None:
    exchange = spec.exchange
    server = "use --variable-update parameter_server"
    for option, given, nearest in (
        ("staged weights", exchange.staged, "or relaxed consistency with replicated"),
        ("asynchronous updates", exchange.asynchronous, "or independent, which exchanges nothing"),
        ("a spread of the variables", exchange.ps_spread, "or leave the spread out"),
    ):
        if given:
            raise UsageError(
                f"{option} cannot be combined with --variable-update {spec.variable_update}: "
                "every tower has its own variables",
                f"{server}, {nearest}",
            )
    _require_scale(spec)


def _require_scale(spec: RunSpec) -> None:
    """Raise UsageError for an automatic loss scale with delayed gradients, which have another scale."""
    exchange = spec.exchange
    if not spec.precision.auto_loss_scale:
        return
    for option, given in (
        ("staged weights", exchange.staged),
        ("relaxed consistency", exchange.relaxed),
        ("asynchronous updates", exchange.asynchronous),
    ):
        if given:
            raise UsageError(
                f"an automatic loss scale cannot be combined with {option}: "
                "the gradients that are applied are not those of one step and one scale",
                "give a fixed loss scale",
            )


def _require_groups(spec: RunSpec, name: str) -> None:
    groups = spec.exchange.groups
    if name != "hierarchical" or not groups:
        return
    members = sorted(tower for group in groups for tower in group)
    if members != list(range(len(spec.devices))) or not all(groups):
        raise UsageError(
            f"the groups {list(map(list, groups))} do not have each of the {len(spec.devices)} towers once",
            "name every tower in one group, or leave the groups out",
        )


def _require_packing(spec: RunSpec) -> None:
    exchange = spec.exchange
    for what, number, minimum in (
        ("gradients cannot be repacked into", exchange.repacking, 0),
        ("small gradients cannot have bytes", exchange.small_bytes, 0),
        ("small gradients cannot be joined in groups of", exchange.small_group, 1),
    ):
        if number < minimum:
            raise UsageError(f"{what} {number}", f"give {minimum} or more")
    if exchange.repacking > MAX_CHUNKS:
        raise UsageError(
            f"gradients cannot be repacked into {exchange.repacking} chunks", f"give {MAX_CHUNKS} at most"
        )


def _other_data(spec: RunSpec) -> bool:
    own = data_of(spec.model)
    return spec.data.folder is not None and own is not None and spec.data.name != own


def _real_only(data: Data) -> bool:
    """Whether anything is asked that synthetic examples do not have."""
    return data.folder is None and data != _synthetic(data)


def _synthetic(data: Data) -> Data:
    return Data(source=data.source, feed=data.feed, prefetch=data.prefetch)


def _made_in_python(data: Data) -> bool:
    return data.folder is None and data.source == "python"


# Options of one optimizer, by name.
_OF_AN_OPTIMIZER: dict[OptimizerName, tuple[str, ...]] = {
    "momentum": ("momentum", "nesterov"),
    "rmsprop": ("rmsprop_decay", "rmsprop_momentum", "rmsprop_epsilon"),
    "adam": ("adam_beta1", "adam_beta2", "adam_epsilon"),
}


def _of_another(optimizer: OptimizerName) -> Callable[[RunSpec], bool]:
    return lambda spec: spec.optimization.optimizer != optimizer


NUMBER_RULES: tuple[Rule, ...] = (
    *(
        rule
        for optimizer, names in _OF_AN_OPTIMIZER.items()
        for rule in needless(
            names,
            _of_another(optimizer),
            f"cannot be combined with --optimizer {{spec.optimization.optimizer}}: "
            f"a parameter of {optimizer}",
            f"use --optimizer {optimizer}, or leave it out",
        )
    ),
    Rule(
        lambda spec: (
            spec.precision.compute != "fp16"
            and (spec.precision.auto_loss_scale or spec.precision.loss_scale != Precision().loss_scale)
        ),
        "--loss-scale cannot be combined with --precision {spec.precision.compute}: "
        "only fp16 gradients can underflow",
        "leave --loss-scale out, or use --precision fp16",
        to("precision", auto_loss_scale=False, loss_scale=1.0),
    ),
    Rule(
        lambda spec: (
            spec.precision.auto_loss_scale
            and (spec.exchange.staged or spec.exchange.relaxed or spec.exchange.asynchronous)
        ),
        "--loss-scale auto cannot be combined with --staged-vars, --async or relaxed consistency: "
        "the gradients that are applied are not those of one step and one scale",
        "give a fixed one: --loss-scale 128",
        to("precision", auto_loss_scale=False),
    ),
    Rule(
        lambda spec: (
            spec.backend == "cpu"
            and (spec.runtime.gpu_thread_mode, spec.runtime.per_gpu_threads, spec.runtime.memory_limit_mib)
            != (Runtime().gpu_thread_mode, Runtime().per_gpu_threads, None)
        ),
        "--gpu-thread-mode, --per-gpu-thread-count and --gpu-memory-limit are for GPUs, "
        "and this run is on CPU devices",
        "leave them out; --num-intra-threads and --num-inter-threads count on the CPU",
        to("runtime", gpu_thread_mode="gpu_private", per_gpu_threads=2, memory_limit_mib=None),
    ),
)

SCHEDULE_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: (
            spec.asked.get("learning_rate_schedule") == "model"
            and spec.optimization.schedule.kind == "constant"
        ),
        "--learning-rate-schedule model cannot be combined with --model {spec.model}: "
        "its authors use a constant rate",
        "leave it out, or give one, such as --learning-rate-schedule cosine:5000",
        untyped("learning_rate_schedule"),
    ),
)

DATA_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: _real_only(spec.data),
        "--distortions, --resize-method, --datasets-num-private-threads, --cache and --bad-records are for "
        "real examples, and there is no --data-dir",
        "add --data-dir DIR, or leave them out",
        lambda spec: replaced(spec, data=_synthetic(spec.data)),
    ),
    Rule(
        lambda spec: spec.data.folder is not None and data_of(spec.model) == "numbers",
        "--data-dir has images, and --model {spec.model} needs numbers",
        "leave --data-dir out, or use --model resnet20",
        lambda spec: replaced(spec, data=Data()),
    ),
    *needless(
        ("data_name",),
        lambda spec: spec.data.folder is None and data_of(spec.model) is None,
        "cannot be combined with --model {spec.model} without --data-dir: synthetic ones have its shape",
        "leave it out, or add --data-dir DIR",
    ),
    *needless(
        ("data_format",),
        lambda spec: data_of(spec.model) == "numbers",
        "cannot be combined with --model {spec.model}: its input is not images",
        "leave it out",
    ),
    Rule(
        _other_data,
        "--model {spec.model} cannot train on {spec.data.name}",
        "leave --data-name out, or choose a --model of that data",
        lambda spec: replaced(spec, "data", name=data_of(spec.model)),
    ),
    Rule(
        lambda spec: spec.data.folder is not None and (spec.data.source, spec.data.feed) != ("gpu", "sync"),
        "--data-source and --feed are for synthetic examples, and --data-dir has real ones",
        "leave --data-source and --feed out, or leave --data-dir out",
        to("data", source="gpu", feed="sync"),
    ),
    Rule(
        lambda spec: (
            spec.data.folder is None and spec.data.source == "gpu" and spec.data.prefetch != Data().prefetch
        ),
        "--prefetch is for an input pipeline, and examples made once on the devices have none",
        "use --data-source cpu, or leave it out",
        to("data", source="cpu"),
    ),
    Rule(
        lambda spec: spec.data.folder is None and spec.data.feed != "sync" and spec.data.source != "python",
        "--feed {spec.data.feed} cannot be combined with --data-source {spec.data.source}: "
        "it is for batches made in Python",
        "use --data-source python, or leave --feed out",
        to("data", source="python"),
    ),
    *needless(
        ("prefetch",),
        lambda spec: _made_in_python(spec.data) and spec.data.feed == "sync",
        "cannot be combined with --feed sync: each batch is made on demand",
        "use --feed queue, or leave --prefetch out",
    ),
    Rule(
        lambda spec: _made_in_python(spec.data) and spec.data.feed != "sync" and spec.data.prefetch == 0,
        "--prefetch 0 cannot be combined with --feed {spec.data.feed}, which makes batches ahead",
        "use --feed sync, without --prefetch",
        lambda spec: untyped("prefetch")(replaced(spec, "data", feed="sync", prefetch=Data().prefetch)),
    ),
    *needless(
        ("resize_method", "cache"),
        lambda spec: spec.data.folder is not None and spec.data.name == "cifar10",
        "cannot be combined with CIFAR-10: its images keep their size, and all are in memory",
        "leave it out",
    ),
    *needless(
        ("distortions", "cache"),
        lambda spec: spec.task == "eval",
        "cannot be combined with --eval: it reads every image once, undistorted",
        "leave it out",
    ),
)


RULES: tuple[Rule, ...] = (
    *HOSTS_RULES,
    *TRAINER_RULES,
    *TASK_RULES,
    *EXCHANGE_RULES,
    *NUMBER_RULES,
    *SCHEDULE_RULES,
    *DATA_RULES,
    *KEPT_RULES,
)


@dataclass(frozen=True)
class Clash:
    """Options that do not go together. `nearest`: the run that comes closest and does not clash here."""

    what: str
    use: str
    nearest: RunSpec


def clash(spec: RunSpec) -> Clash | None:
    """Return the first clash of a spec; None if all its options go together."""
    for rule in RULES:
        if rule.when(spec):
            what, use = rule.what.format(spec=spec), rule.use.format(spec=spec)
            return Clash(what, use, rule.nearest(spec))
    return _reduction_clash(spec)


def check(spec: RunSpec) -> None:
    """Raise UsageError for options that do not go together."""
    found = clash(spec)
    if found is not None:
        raise UsageError(found.what, found.use)
    # What the trainers themselves refuse, should the tables be incomplete.
    if spec.strategy is not None:
        require_strategy(spec)
    elif spec.task == "train" and spec.method is None:
        require_exchange(spec)


def _reduction_clash(spec: RunSpec) -> Clash | None:
    if spec.all_reduce is None:
        return None
    asked = all_reduce.parse(spec.all_reduce)
    why_not = asked.why_not(spec.backend, len(spec.devices))
    if why_not is None:
        return None
    reason, nearest = why_not
    return Clash(
        f"--all-reduce {asked.written} cannot be used: {reason}",
        f"use --all-reduce {nearest}",
        replaced(spec, all_reduce=nearest),
    )


_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_OFF = ("0", "false")  # what TensorFlow's ReadBoolFromEnvVar takes for no, in any case


def require_numerics(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Raise UsageError for settings that cannot work. `environment`: that of the worker."""
    _require_layout(spec, environment)
    _require_loss_scale(spec)
    _require_schedule(spec.optimization.schedule)
    _require_optimization(spec)


def remarks(spec: RunSpec) -> tuple[str, ...]:
    """Return notes on the numerics for the result."""
    if spec.backend == "cpu" and spec.precision.compute == "fp16" and not spec.precision.xla:
        return ("Most CPUs have no fp16 arithmetic: it is emulated here, and slower than fp32.",)
    return ()


def _require_layout(spec: RunSpec, environment: Mapping[str, str]) -> None:
    off = environment.get(_ONEDNN, "").lower() in _OFF
    if spec.backend == "cpu" and spec.data_format == "NCHW" and off and not spec.precision.xla:
        raise UsageError(
            f"--data-format NCHW needs oneDNN on CPU devices, and {_ONEDNN}={environment[_ONEDNN]} "
            "turns it off",
            f"use --data-format NHWC, or unset {_ONEDNN}",
        )


def _require_loss_scale(spec: RunSpec) -> None:
    precision = spec.precision
    if not (math.isfinite(precision.loss_scale) and precision.loss_scale > 0):
        raise UsageError(f"--loss-scale cannot be {precision.loss_scale}", "give a number such as 128")
    if precision.auto_loss_scale and precision.loss_scale_steps < 1:
        raise UsageError(
            f"a loss scale cannot double after {precision.loss_scale_steps} good steps",
            "give 1 or more; 1000 is usual",
        )


def _require_schedule(schedule: Schedule) -> None:
    if schedule.warmup_steps < 0:
        raise UsageError(
            f"a warm-up of the learning rate cannot have {schedule.warmup_steps} steps", "give 0 or more"
        )
    if schedule.kind == "piecewise":
        _require_stairs(schedule)
    elif schedule.kind != "constant" and schedule.decay_steps < 1:
        raise UsageError(
            f"a {schedule.kind} learning rate cannot fall in {schedule.decay_steps} steps",
            "give the number of steps: 1 or more",
        )


def _require_stairs(schedule: Schedule) -> None:
    boundaries, factors = schedule.boundaries, schedule.factors
    if len(factors) != len(boundaries) + 1:
        raise UsageError(
            f"a piecewise learning rate has {len(boundaries)} boundaries and {len(factors)} factors",
            "give one factor more than boundaries: the last one holds for ever",
        )
    # Equal ones are valid: with a batch beyond the data set epochs are steps, and a factor has no step.
    if any(later < earlier for earlier, later in pairwise(boundaries)):
        raise UsageError(
            f"the boundaries of the learning rate decrease: {', '.join(map(str, boundaries))}",
            "give the steps in their order",
        )


def _require_optimization(spec: RunSpec) -> None:
    asked = spec.optimization
    if asked.nesterov and asked.optimizer != "momentum":
        raise UsageError(
            f"Nesterov's form cannot be combined with --optimizer {asked.optimizer}: it is one of momentum",
            "use --optimizer momentum, or leave --nesterov out",
        )
    for option, value in (
        ("gradient-clip", asked.gradient_clip),
        ("gradient-clip-norm", asked.gradient_clip_norm),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{option} cannot be {value}", "give a number above 0, or leave it out")
