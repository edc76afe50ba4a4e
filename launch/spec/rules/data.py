"""Rules of the data, of the numbers that are computed with, and of the runtime. Pure."""

from collections.abc import Callable

from gputopo.launch.spec.model_names import data_of
from gputopo.launch.spec.rules.rule import Rule, needless, replaced, to, untyped
from gputopo.launch.spec.run_spec import Data, OptimizerName, Precision, RunSpec, Runtime


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
