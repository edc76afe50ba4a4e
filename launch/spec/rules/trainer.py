"""Rules of the trainers beside our own towers: Keras methods and tf.distribute's strategies. Pure."""

from gputopo.launch.spec.rules.rule import Rule, moves_gradients, needless, replaced, to
from gputopo.launch.spec.run_spec import Exchange, RunSpec
from gputopo.launch.spec.strategy_names import read
from gputopo.values.plan import VariableUpdate


def _other(spec: RunSpec) -> bool:
    """Whether others than our own towers take the steps."""
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
    """Where such a trainer has its variables: on each device, or in one place."""
    return "replicated" if _has_copies(spec) else "parameter_server"


def _moves(spec: RunSpec) -> bool:
    """Whether another way to move weights and gradients was asked for than the trainer's own."""
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


TRAINER_RULES: tuple[Rule, ...] = (
    Rule(
        lambda spec: spec.method is not None and spec.strategy is not None,
        "--method {spec.method} does not go with --strategy {spec.strategy}: each is a trainer of its own",
        "leave one of them out, such as --strategy",
        to(strategy=None),
    ),
    Rule(
        lambda spec: _other(spec) and spec.task != "train",
        "--task {spec.task} does not go with a --method or --strategy: they are ways to train",
        "leave --method and --strategy out",
        to(method=None, strategy=None),
    ),
    Rule(
        lambda spec: spec.method is not None and _moves(spec),
        "--method {spec.method} moves weights and gradients in its own way",
        "leave --variable-update and the options of the exchange out; --ps places its variables",
        _to_own_exchange,
    ),
    *needless(
        ("ps",),
        _has_copies,
        "does not go with --strategy {spec.strategy}: the variables are where the strategy has them",
        "leave it out, or use --strategy central, which has one set of variables there",
    ),
    *needless(
        ("variable_update",),
        _has_copies,
        "does not go with --strategy {spec.strategy}: the variables are where the strategy has them",
        "leave it out",
    ),
    Rule(
        lambda spec: spec.strategy is not None and _moves(spec),
        "--strategy {spec.strategy} moves weights and gradients in its own way",
        "leave --variable-update and the options of the exchange out; a strategy's name has its reduction, "
        "such as --strategy mirrored:one",
        _to_own_exchange,
    ),
    Rule(
        lambda spec: _other(spec) and spec.exchange != Exchange(),
        "--ps gpu:spread does not go with a --method or --strategy: their variables are in one place",
        "use --ps cpu or --ps gpu:N",
        _to_own_exchange,
    ),
    Rule(
        lambda spec: spec.method is not None and spec.grad_reduce == "sum",
        "--grad-reduce sum does not go with --method {spec.method}: it has one loss, a mean",
        "leave --grad-reduce out",
        to(grad_reduce="mean"),
    ),
    Rule(
        lambda spec: _other(spec) and bool(spec.extra_forward),
        "--add-work does not go with a --method or --strategy: it is for our own towers",
        "leave --add-work out",
        to(extra_forward={}),
    ),
    Rule(
        lambda spec: _other(spec) and spec.lifecycle.training_accuracy,
        "--print-training-accuracy does not go with a --method or --strategy: our own towers count it",
        "leave --print-training-accuracy out",
        to("lifecycle", training_accuracy=False),
    ),
    Rule(
        lambda spec: _is(spec, reduction="nccl") and spec.backend == "cpu",
        "--strategy {spec.strategy} needs GPUs: NCCL has no kernel for CPU devices",
        "use --strategy mirrored, which reduces in a ring there",
        to(strategy="mirrored"),
    ),
    Rule(
        lambda spec: _is(spec, reduction="hierarchical") and len(spec.devices) % 2 == 1,
        "--strategy {spec.strategy} silently loses the gradients of one device where their number is odd",
        "use an even --num-gpus, or --strategy mirrored:one",
        to(strategy="mirrored:one"),
    ),
    Rule(
        lambda spec: _is(spec, kind="one-device") and len(spec.devices) != 1,
        "--strategy {spec.strategy} takes one device, and this run has more",
        "use --num-gpus 1, or --strategy mirrored",
        to(strategy="mirrored"),
    ),
)
