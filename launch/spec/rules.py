"""Which options of a run go together: tables of rules, of which the first that applies is reported. Pure.

Here are those of hosts, of other trainers and of the exchange between devices; `task_rules` has the others.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from gputopo.launch.spec.names import MULTI_WORKER, Kind, StrategyName, read
from gputopo.launch.spec.run_spec import Exchange, RunSpec
from gputopo.launch.spec.task_rules import (
    DATA_RULES,
    FILE_RULES,
    NUMBER_RULES,
    TASK_RULES,
    TaskRule,
    moves_gradients,
    needless,
    require_task,
)
from gputopo.values.errors import UsageError
from gputopo.values.run import all_reduce
from gputopo.values.run.plan import VariableUpdate

OF_ONE_PROCESS = ("nccl_op",)
_BY_NCCL: tuple[Kind, ...] = ("mirrored", MULTI_WORKER)
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_OFF = ("0", "false")  # what TensorFlow's ReadBoolFromEnvVar takes for no, in any case
_COPIES = "nothing is reduced between replicas"
# Options of one mode of --variable-update: whether a spec has it, the mode, and why no other.
_OF_MODES: tuple[tuple[str, Callable[[RunSpec], bool], VariableUpdate, str], ...] = (
    ("--staged-vars", lambda spec: spec.exchange.staged, "parameter_server", "it stages a server's weights"),
    ("--async", lambda spec: spec.exchange.asynchronous, "parameter_server", "it updates shared variables"),
    (
        "--variable-consistency relaxed",
        lambda spec: spec.exchange.relaxed,
        "replicated",
        "it delays reduced gradients",
    ),
    ("--all-reduce {spec.all_reduce}", lambda spec: spec.all_reduce is not None, "replicated", _COPIES),
    ("--gradient-repacking", lambda spec: bool(spec.exchange.repacking), "replicated", _COPIES),
    ("--agg-small-grads-max-bytes", lambda spec: bool(spec.exchange.small_bytes), "replicated", _COPIES),
    ("--fp16-transfer", lambda spec: spec.exchange.transfer == "fp16", "replicated", _COPIES),
    (
        "--ps gpu:spread",
        lambda spec: spec.exchange.ps_spread,
        "parameter_server",
        "each device has its own copy",
    ),
)


def check(spec: RunSpec) -> None:
    """Raise UsageError for options that do not go together."""
    require_task(spec)
    for rule in RULES:
        if rule.when(spec):
            raise UsageError(rule.what.format(spec=spec), rule.use.format(spec=spec))
    asked = None if spec.all_reduce is None else all_reduce.parse(spec.all_reduce)
    if asked is not None and (why_not := asked.why_not(spec.backend, len(spec.devices))) is not None:
        reason, near = why_not
        raise UsageError(f"--all-reduce {asked.written} cannot be used: {reason}", f"use --all-reduce {near}")


def check_layout(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a layout that needs oneDNN where the worker's environment turns that off."""
    off = environment.get(_ONEDNN, "").lower() in _OFF
    if spec.backend == "cpu" and spec.data_format == "NCHW" and off and not spec.precision.xla:
        raise UsageError(
            f"--data-format NCHW needs oneDNN on CPU devices, and {_ONEDNN}={environment[_ONEDNN]} "
            "turns it off",
            f"use --data-format NHWC, or unset {_ONEDNN}",
        )


def remarks(spec: RunSpec) -> tuple[str, ...]:
    """Return notes on the numerics for the result."""
    if spec.backend == "cpu" and spec.precision.compute == "fp16" and not spec.precision.xla:
        return ("Most CPUs have no fp16 arithmetic: it is emulated here, and slower than fp32.",)
    return ()


def is_multi_worker(spec: RunSpec) -> bool:
    """Whether each host trains with a process of its own, by a strategy of tf.distribute."""
    return spec.strategy is not None and read(spec.strategy).kind == MULTI_WORKER


def _on_cpus(spec: RunSpec) -> bool:
    return spec.backend == "cpu" and spec.rehearsal_of is None  # of GPUs, whose start is shown


def _devices_of_hosts(spec: RunSpec) -> list[int]:
    return list(Counter(device.rank for device in spec.devices).values())


def _other(spec: RunSpec) -> bool:
    """Whether another trainer than our own towers runs."""
    return spec.method is not None or spec.strategy is not None


def _passes_forward(spec: RunSpec) -> bool:
    return is_multi_worker(spec) and spec.task in ("eval", "forward")


def _strategy(spec: RunSpec) -> StrategyName | None:
    return None if spec.strategy is None else read(spec.strategy)


def _is_nccl_on_cpu(asked: StrategyName, spec: RunSpec) -> bool:
    return spec.backend == "cpu" and _strategy(spec) == asked


def _is_of_another(has: Callable[[RunSpec], bool], mode: VariableUpdate, spec: RunSpec) -> bool:
    return has(spec) and spec.variable_update != mode


def _has_copies(spec: RunSpec) -> bool:
    """Whether it is a strategy that has variables on each device."""
    asked = _strategy(spec)
    return asked is not None and asked.kind != "central"


def _moves(spec: RunSpec) -> bool:
    """Whether another exchange of weights and gradients was asked for than the trainer's own."""
    own = "replicated" if _has_copies(spec) else "parameter_server"
    return spec.variable_update != own or spec.all_reduce is not None or moves_gradients(spec.exchange)


HOSTS_RULES: tuple[TaskRule, ...] = (
    TaskRule(
        lambda spec: bool(spec.servers) and not is_multi_worker(spec) and spec.precision.deterministic,
        "--deterministic is for one host, and this is a training of several",
        "leave it out, add --num-hosts 1, or use --strategy multi_worker_mirrored",
    ),
    TaskRule(
        lambda spec: bool(spec.servers) and not is_multi_worker(spec) and spec.data.bad_records == "skip",
        "--bad-records skip is for one host, and this is a training of several",
        "leave it out, and repair the files that are named, or add --num-hosts 1",
    ),
    TaskRule(
        lambda spec: bool(spec.servers) and spec.method is not None,
        "--strategy {spec.method} is for one host, and this is a training of several",
        "leave --strategy out, or add --num-hosts 1",
    ),
    TaskRule(
        lambda spec: bool(spec.servers) and spec.strategy is not None and not is_multi_worker(spec),
        "--strategy {spec.strategy} is for one host, and this is a training of several",
        "use --strategy multi_worker_mirrored, leave --strategy out, or add --num-hosts 1",
    ),
    TaskRule(
        lambda spec: is_multi_worker(spec) and not spec.servers,
        "--strategy {spec.strategy} is for several hosts, and this is a training of one",
        "use --strategy mirrored, or start it on several hosts: gputopo explain hosts",
    ),
    TaskRule(
        lambda spec: is_multi_worker(spec) and _on_cpus(spec) and max(_devices_of_hosts(spec)) > 1,
        "--strategy {spec.strategy} uses one CPU device of each host, as TensorFlow's strategy does",
        "use --num-gpus with the number of hosts, or leave --strategy out",
    ),
    TaskRule(
        lambda spec: is_multi_worker(spec) and len(set(_devices_of_hosts(spec))) > 1,
        "--strategy {spec.strategy} needs as many GPUs on each host, and the hosts have unequal numbers",
        "use --num-gpus with a multiple of the number of hosts, or leave --strategy out",
    ),
    TaskRule(
        lambda spec: (
            bool(spec.servers)
            and spec.all_reduce is not None
            and all_reduce.parse(spec.all_reduce).name in OF_ONE_PROCESS
        ),
        "--all-reduce {spec.all_reduce} is within one process, and each host of this training has its own",
        "use --all-reduce hierarchical, or add --num-hosts 1",
    ),
)

TRAINER_RULES: tuple[TaskRule, ...] = (
    TaskRule(
        lambda spec: _other(spec) and not (spec.task == "train" or _passes_forward(spec)),
        "--task {spec.task} cannot be combined with this --strategy",
        "leave --strategy out",
    ),
    TaskRule(
        lambda spec: spec.method is not None and _moves(spec),
        "--strategy {spec.method} has its own exchange of weights and gradients",
        "leave --variable-update and the options of the exchange out; --ps places its variables",
    ),
    *needless(
        "ps",
        _has_copies,
        "cannot be combined with --strategy {spec.strategy}, which places the variables itself",
        "leave it out, or use --strategy central, whose variables are there",
    ),
    *needless(
        "variable_update",
        _has_copies,
        "cannot be combined with --strategy {spec.strategy}, which places the variables itself",
        "leave it out",
    ),
    TaskRule(
        lambda spec: spec.strategy is not None and _moves(spec),
        "--strategy {spec.strategy} has its own exchange of weights and gradients",
        "leave --variable-update and the options of the exchange out; a strategy's name has its reduction, "
        "such as --strategy mirrored:one",
    ),
    TaskRule(
        lambda spec: _other(spec) and spec.exchange != Exchange(),
        "--ps gpu:spread cannot be combined with --strategy, whose variables are in one place",
        "use --ps cpu or --ps gpu:N",
    ),
    TaskRule(
        lambda spec: spec.method is not None and isinstance(spec.batch_size, tuple),
        "--batch-size with a number for each device cannot be combined with --strategy {spec.method}: it "
        "cuts one joint batch evenly",
        "give one number, or leave --strategy out",
    ),
    TaskRule(
        lambda spec: spec.method is not None and spec.grad_reduce == "sum",
        "--grad-reduce sum cannot be combined with --strategy {spec.method}: it has one loss, a mean",
        "leave --grad-reduce out",
    ),
    TaskRule(
        lambda spec: _other(spec) and bool(spec.drills),
        "--drill cannot be combined with --strategy: only the built-in trainer injects faults",
        "leave --drill out",
    ),
    *(
        TaskRule(
            partial(_is_nccl_on_cpu, StrategyName(kind, "nccl")),
            "--strategy {spec.strategy} needs GPUs: NCCL has no kernel for CPU devices",
            f"use --strategy {kind}, which reduces in a ring there",
        )
        for kind in _BY_NCCL
    ),
    TaskRule(
        lambda spec: (
            _strategy(spec) == StrategyName("mirrored", "hierarchical") and len(spec.devices) % 2 == 1
        ),
        "--strategy {spec.strategy} silently loses the gradients of one device where their number is odd",
        "use an even --num-gpus, or --strategy mirrored:one",
    ),
    TaskRule(
        lambda spec: _strategy(spec) == StrategyName("one-device") and len(spec.devices) != 1,
        "--strategy {spec.strategy} uses one device, and this run has more",
        "use --num-gpus 1, or --strategy mirrored",
    ),
)

EXCHANGE_RULES: tuple[TaskRule, ...] = (
    TaskRule(
        lambda spec: (
            (spec.exchange.staged or spec.exchange.asynchronous)
            and (
                spec.exchange.relaxed
                or spec.exchange.transfer == "fp16"
                or bool(spec.exchange.repacking or spec.exchange.small_bytes)
            )
        ),
        "--staged-vars and --async are modes of a parameter server: they cannot be combined with packed or "
        "fp16 gradients, or with relaxed consistency",
        "leave --staged-vars and --async out, and use --variable-update replicated",
    ),
    TaskRule(
        lambda spec: spec.precision.deterministic and spec.exchange.asynchronous,
        "--deterministic cannot be combined with --async: the order of its updates differs from run to run",
        "leave one of them out, such as --async",
    ),
    TaskRule(
        lambda spec: spec.exchange.staged and spec.exchange.asynchronous,
        "--staged-vars cannot be combined with --async: --staged-vars needs synchronous steps",
        "leave one of them out, such as --async",
    ),
    *(
        TaskRule(
            partial(_is_of_another, has, mode),
            f"{option} cannot be combined with --variable-update {{spec.variable_update}}: {why}",
            f"use --variable-update {mode}, or leave {option.split()[0]} out",
        )
        for option, has, mode, why in _OF_MODES
    ),
    TaskRule(
        lambda spec: "agg_small_grads_max_group" in spec.asked and not spec.exchange.small_bytes,
        "--agg-small-grads-max-group needs a size of small gradients",
        "add --agg-small-grads-max-bytes B, or leave it out",
    ),
    TaskRule(
        lambda spec: bool(spec.exchange.repacking) and bool(spec.exchange.small_bytes),
        "--gradient-repacking cannot be combined with --agg-small-grads-max-bytes: "
        "it makes chunks of one size, so no small gradient is left",
        "leave --agg-small-grads-max-bytes out",
    ),
    TaskRule(
        lambda spec: spec.grad_reduce == "sum" and spec.variable_update == "independent",
        "--grad-reduce sum cannot be combined with --variable-update independent: nothing is reduced",
        "leave --grad-reduce out, or use --variable-update replicated",
    ),
)

RULES = (
    *HOSTS_RULES,
    *TRAINER_RULES,
    *TASK_RULES,
    *EXCHANGE_RULES,
    *NUMBER_RULES,
    *DATA_RULES,
    *FILE_RULES,
)
