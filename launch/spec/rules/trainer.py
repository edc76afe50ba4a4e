"""Rules of the trainers beside our own towers: Keras methods and tf.distribute's strategies. Pure."""

from gputopo.launch.spec.rules.rule import Rule, moves_gradients, needless, replaced, to
from gputopo.launch.spec.run_spec import Exchange, RunSpec
from gputopo.launch.spec.strategy_names import MULTI_WORKER, STRATEGIES, Kind, StrategyName, read
from gputopo.values.errors import UsageError
from gputopo.values.run.plan import VariableUpdate


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
        (bool(spec.drills), "cannot be combined with --drill", leave),
    ]
