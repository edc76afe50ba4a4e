"""Which options of a run go together."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from gputopo.launch.spec.model_names import data_of
from gputopo.values.errors import UsageError
from gputopo.values.option import Refusal, refuse
from gputopo.values.run import all_reduce
from gputopo.values.run.drill import SLOW_WEIGHTS
from gputopo.values.run.names import MULTI_WORKER, Kind, Reduction, read
from gputopo.values.run.spec import Exchange, RunSpec

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# Flags of CPUs with instructions for bfloat16, fastest first. Measured with AMX on two cores that other
# programs also used, medians of 3 runs: lenet 2.2, resnet20 1.5, alexnet 1.8 times as fast as fp32.
_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16"}
_OFF = ("0", "false")  # values that TensorFlow's ReadBoolFromEnvVar reads as false, in any case


def check(spec: RunSpec) -> None:
    """Raise UsageError for options that do not go together."""
    refuse(REFUSALS, spec, spec=spec)
    method = None if spec.all_reduce is None else all_reduce.parse(spec.all_reduce)
    if method is not None and (why_not := method.why_not(spec.backend, len(spec.devices))) is not None:
        reason, near = why_not
        raise UsageError(
            f"--all-reduce {method.written} cannot be used: {reason}", f"use --all-reduce {near}"
        )


def check_layout(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a layout that needs oneDNN if the worker's environment disables oneDNN."""
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


def bf16_remark(spec: RunSpec, cpu_flags: Collection[str]) -> tuple[str, ...]:
    """Return a note if bfloat16 is faster on the CPU. `cpu_flags`: from /proc/cpuinfo."""
    names = [name for flag, name in _BF16.items() if flag in cpu_flags]
    if not names or spec.backend == "gpu" or spec.task == "input" or spec.precision.compute != "fp32":
        return ()
    return (f"This CPU has {names[0]}: --precision bf16 is usually 1.5 to 2 times as fast here.",)


def is_multi_worker(spec: RunSpec) -> bool:
    """Whether each host trains with its own process, by a strategy of tf.distribute."""
    return _kind(spec) == MULTI_WORKER


def _kind(spec: RunSpec) -> Kind | None:
    return None if spec.strategy is None else read(spec.strategy).kind


def _devices_of_hosts(spec: RunSpec) -> list[int]:
    return list(Counter(device.rank for device in spec.devices).values())


def _has_copies(spec: RunSpec) -> bool:
    """Whether the strategy has variables on each device."""
    return _kind(spec) not in (None, "central")


def _moves(spec: RunSpec) -> bool:
    """Whether an exchange of weights and gradients other than the trainer's default was requested."""
    default = "replicated" if _has_copies(spec) else "parameter_server"
    exchange = spec.exchange
    plain = Exchange(ps_spread=exchange.ps_spread, groups=exchange.groups, small_group=exchange.small_group)
    return spec.variable_update != default or spec.all_reduce is not None or exchange != plain


def _last_step(spec: RunSpec) -> float:
    """Return the number of the last possible step: an evaluation counts from 0, all others from 1."""
    if spec.batch_limit is None:
        return math.inf
    return spec.batch_limit - 1 if spec.task == "eval" else spec.batch_limit


def _reduction(spec: RunSpec) -> Reduction | None:
    return None if spec.strategy is None else read(spec.strategy).reduction


def _has_late_trace(spec: RunSpec) -> bool:
    return max(spec.lifecycle.trace_steps, default=0) > _last_step(spec)


def asked(*names: str) -> Callable[[RunSpec], list[str]]:
    """Return a condition: one of the options was typed."""
    return lambda spec: [f"--{name.replace('_', '-')}" for name in names if spec.asked.get(name) is not None]


def _asked_as(spec: RunSpec, name: str, value: str) -> bool:
    return str(spec.asked.get(name)).lower() == value


_TRAINS = (
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
    "all_reduce",
    "grad_reduce",
    "staged_vars",
    "variable_consistency",
    "async",
    "gradient_repacking",
    "agg_small_grads_max_bytes",
    "agg_small_grads_max_group",
    "fp16_transfer",
    "drill",
    "checkpoint_steps",
    "keep_checkpoints",
    "resume",
    "export",
)
REFUSALS: tuple[Refusal[RunSpec], ...] = (
    Refusal(
        (asked(*_TRAINS, "checkpoints"), lambda s: s.task == "forward"),
        "{options} cannot be combined with --task forward, which uses the initial weights and updates none",
        "remove {them}, or use --task train",
    ),
    Refusal(
        (asked(*_TRAINS, "num_warmup_batches", "distortions", "cache"), lambda s: s.task == "eval"),
        "{options} cannot be combined with --task eval: each example is read once, and no weights change",
        "remove {them}, or use --task train",
    ),
    Refusal(
        (
            asked(
                *_TRAINS, "checkpoints", "ps", "variable_update", "precision", "xla", "trace", "tensorboard"
            ),
            lambda s: s.task == "input",
        ),
        "{options} cannot be combined with --task input: it has no model",
        "remove {them}, or use --task train",
    ),
    Refusal(
        (lambda s: s.servers and not is_multi_worker(s) and s.precision.deterministic,),
        "--deterministic is for one host, but this run has several",
        "remove it, add --num-hosts 1, or use --strategy multi_worker_mirrored",
    ),
    Refusal(
        (lambda s: s.servers and not is_multi_worker(s) and s.data.bad_records == "skip",),
        "--bad-records skip is for one host, but this run has several",
        "remove it and repair the reported files, or add --num-hosts 1",
    ),
    Refusal(
        (lambda s: s.servers and s.method,),
        "--strategy {spec.method} is for one host, but this run has several",
        "remove --strategy, or add --num-hosts 1",
    ),
    Refusal(
        (lambda s: s.servers and s.strategy and not is_multi_worker(s),),
        "--strategy {spec.strategy} is for one host, but this run has several",
        "use --strategy multi_worker_mirrored, remove --strategy, or add --num-hosts 1",
    ),
    Refusal(
        (lambda s: is_multi_worker(s) and not s.servers,),
        "--strategy {spec.strategy} is for several hosts, but this run has one",
        "use --strategy mirrored, or start it on several hosts: gputopo explain hosts",
    ),
    Refusal(
        (
            lambda s: (
                is_multi_worker(s)
                and s.backend == "cpu"
                and not s.rehearsal_of
                and max(_devices_of_hosts(s)) > 1
            ),
        ),
        "--strategy {spec.strategy} uses one CPU device of each host, as TensorFlow's strategy does",
        "use --num-gpus with the number of hosts, or remove --strategy",
    ),
    Refusal(
        (lambda s: is_multi_worker(s) and len(set(_devices_of_hosts(s))) > 1,),
        "--strategy {spec.strategy} needs the same number of GPUs on each host",
        "use --num-gpus with a multiple of the number of hosts, or remove --strategy",
    ),
    Refusal(
        (lambda s: s.servers and s.all_reduce == "nccl_op",),
        "--all-reduce {spec.all_reduce} works within one process, but each host has its own",
        "use --all-reduce hierarchical, or add --num-hosts 1",
    ),
    Refusal(
        (lambda s: (s.method or s.strategy) and not is_multi_worker(s) and s.task != "train",),
        "--task {spec.task} cannot be combined with this --strategy, which only trains",
        "remove --strategy",
    ),
    Refusal(
        (lambda s: is_multi_worker(s) and s.task == "input",),
        "--task input cannot be combined with --strategy {spec.strategy}, which does not read examples",
        "remove --strategy",
    ),
    Refusal(
        (lambda s: s.method and _moves(s),),
        "--strategy {spec.method} has its own exchange of weights and gradients",
        "remove --variable-update and the options of the exchange; --ps places its variables",
    ),
    Refusal(
        (asked("ps"), lambda s: _has_copies(s)),
        "--ps cannot be combined with --strategy {spec.strategy}, which places the variables itself",
        "remove it, or use --strategy central, which supports --ps",
    ),
    Refusal(
        (asked("variable_update"), lambda s: _has_copies(s)),
        "--variable-update cannot be combined with --strategy {spec.strategy}, which places the "
        "variables itself",
        "remove it",
    ),
    Refusal(
        (lambda s: s.strategy and _moves(s),),
        "--strategy {spec.strategy} has its own exchange of weights and gradients",
        "remove --variable-update and the options of the exchange; a strategy's name has its reduction, "
        "such as --strategy mirrored:one",
    ),
    Refusal(
        (lambda s: (s.method or s.strategy) and s.exchange.ps_spread,),
        "--ps gpu:spread cannot be combined with --strategy, whose variables are on one device",
        "use --ps cpu or --ps gpu:N",
    ),
    Refusal(
        (lambda s: s.method and isinstance(s.batch_size, tuple),),
        "--batch-size with a number for each device cannot be combined with --strategy {spec.method}: it "
        "splits one batch evenly",
        "give one number, or remove --strategy",
    ),
    Refusal(
        (lambda s: s.method and s.grad_reduce == "sum",),
        "--grad-reduce sum cannot be combined with --strategy {spec.method}: it has one loss, a mean",
        "remove --grad-reduce",
    ),
    Refusal(
        (lambda s: (s.method or s.strategy) and s.drills,),
        "--drill cannot be combined with --strategy: only the built-in trainer injects faults",
        "remove --drill",
    ),
    Refusal(
        (lambda s: s.backend == "cpu" and _kind(s) == "mirrored" and _reduction(s) == "nccl",),
        "--strategy {spec.strategy} needs GPUs: NCCL has no kernel for CPU devices",
        "use --strategy mirrored, which reduces in a ring there",
    ),
    Refusal(
        (lambda s: s.backend == "cpu" and _kind(s) == "multi_worker_mirrored" and _reduction(s) == "nccl",),
        "--strategy {spec.strategy} needs GPUs: NCCL has no kernel for CPU devices",
        "use --strategy multi_worker_mirrored, which reduces in a ring there",
    ),
    Refusal(
        (lambda s: _kind(s) == "mirrored" and _reduction(s) == "hierarchical" and len(s.devices) % 2 == 1,),
        "--strategy {spec.strategy} silently loses the gradients of one device if the number of devices "
        "is odd",
        "use an even --num-gpus, or --strategy mirrored:one",
    ),
    Refusal(
        (lambda s: _kind(s) == "one-device" and len(s.devices) != 1,),
        "--strategy {spec.strategy} uses one device, but this run has more",
        "use --num-gpus 1, or --strategy mirrored",
    ),
    Refusal(
        (lambda s: s.task == "eval" and not s.lifecycle.checkpoints,),
        "--task eval needs a checkpoint",
        "add --checkpoints DIR, or train with --task train",
    ),
    Refusal(
        (lambda s: s.task == "input" and not s.data.folder and s.data.source == "gpu",),
        "--task input has nothing to measure: there is no input pipeline if examples are created once on "
        "the devices",
        "use an input: --data-dir DIR, --data-source cpu or --data-source python",
    ),
    Refusal(
        (lambda s: max((drill.step for drill in s.drills), default=0) > _last_step(s),),
        "--drill uses a step after the end of the run, which has at most {spec.batch_limit} counted steps",
        "use earlier steps with --drill, or give more steps with --num-batches",
    ),
    Refusal(
        (
            lambda s: (
                any(drill.fault == SLOW_WEIGHTS for drill in s.drills)
                and s.variable_update != "parameter_server"
            ),
        ),
        "--drill slow-weights cannot be combined with --variable-update {spec.variable_update}: each "
        "device has its own copy of the weights",
        "remove --drill, or use --variable-update parameter_server",
    ),
    Refusal(
        (
            lambda s: (
                (s.exchange.staged or s.exchange.asynchronous)
                and (
                    s.exchange.relaxed
                    or s.exchange.transfer == "fp16"
                    or s.exchange.repacking
                    or s.exchange.small_bytes
                )
            ),
        ),
        "--staged-vars and --async are modes of a parameter server: they cannot be combined with packed "
        "or fp16 gradients, or with relaxed consistency",
        "remove --staged-vars and --async, and use --variable-update replicated",
    ),
    Refusal(
        (lambda s: s.precision.deterministic and s.exchange.asynchronous,),
        "--deterministic cannot be combined with --async: the order of its updates differs from run to run",
        "use only one of them, for example without --async",
    ),
    Refusal(
        (lambda s: s.exchange.staged and s.exchange.asynchronous,),
        "--staged-vars cannot be combined with --async: --staged-vars needs synchronous steps",
        "use only one of them, for example without --async",
    ),
    Refusal(
        (lambda s: s.exchange.staged and s.variable_update != "parameter_server",),
        "--staged-vars cannot be combined with --variable-update {spec.variable_update}: it stages a "
        "server's weights",
        "use --variable-update parameter_server, or remove --staged-vars",
    ),
    Refusal(
        (lambda s: s.exchange.asynchronous and s.variable_update != "parameter_server",),
        "--async cannot be combined with --variable-update {spec.variable_update}: it updates shared "
        "variables",
        "use --variable-update parameter_server, or remove --async",
    ),
    Refusal(
        (lambda s: s.exchange.relaxed and s.variable_update != "replicated",),
        "--variable-consistency relaxed cannot be combined with --variable-update "
        "{spec.variable_update}: it delays reduced gradients",
        "use --variable-update replicated, or remove --variable-consistency",
    ),
    Refusal(
        (lambda s: s.all_reduce and s.variable_update != "replicated",),
        "--all-reduce {spec.all_reduce} cannot be combined with --variable-update "
        "{spec.variable_update}: nothing is reduced between replicas",
        "use --variable-update replicated, or remove --all-reduce",
    ),
    Refusal(
        (lambda s: s.exchange.repacking and s.variable_update != "replicated",),
        "--gradient-repacking cannot be combined with --variable-update {spec.variable_update}: nothing "
        "is reduced between replicas",
        "use --variable-update replicated, or remove --gradient-repacking",
    ),
    Refusal(
        (lambda s: s.exchange.small_bytes and s.variable_update != "replicated",),
        "--agg-small-grads-max-bytes cannot be combined with --variable-update {spec.variable_update}: "
        "nothing is reduced between replicas",
        "use --variable-update replicated, or remove --agg-small-grads-max-bytes",
    ),
    Refusal(
        (lambda s: s.exchange.transfer == "fp16" and s.variable_update != "replicated",),
        "--fp16-transfer cannot be combined with --variable-update {spec.variable_update}: nothing is "
        "reduced between replicas",
        "use --variable-update replicated, or remove --fp16-transfer",
    ),
    Refusal(
        (lambda s: s.exchange.ps_spread and s.variable_update != "parameter_server",),
        "--ps gpu:spread cannot be combined with --variable-update {spec.variable_update}: each device "
        "has its own copy",
        "use --variable-update parameter_server, or remove --ps",
    ),
    Refusal(
        (asked("agg_small_grads_max_group"), lambda s: not s.exchange.small_bytes),
        "--agg-small-grads-max-group needs a size of small gradients",
        "add --agg-small-grads-max-bytes B, or remove it",
    ),
    Refusal(
        (lambda s: s.exchange.repacking and s.exchange.small_bytes,),
        "--gradient-repacking cannot be combined with --agg-small-grads-max-bytes: it makes chunks of "
        "one size, so no small gradient is left",
        "remove --agg-small-grads-max-bytes",
    ),
    Refusal(
        (lambda s: s.grad_reduce == "sum" and s.variable_update == "independent",),
        "--grad-reduce sum cannot be combined with --variable-update independent: nothing is reduced",
        "remove --grad-reduce, or use --variable-update replicated",
    ),
    Refusal(
        (asked("momentum", "nesterov"), lambda s: s.optimization.optimizer != "momentum"),
        "{option} cannot be combined with --optimizer {spec.optimization.optimizer}: it is a parameter "
        "of momentum",
        "use --optimizer momentum, or remove it",
    ),
    Refusal(
        (
            lambda s: (
                s.precision.compute != "fp16"
                and (s.precision.auto_loss_scale or s.precision.loss_scale != 1.0)
            ),
        ),
        "--loss-scale cannot be combined with --precision {spec.precision.compute}: only fp16 gradients "
        "can underflow",
        "remove --loss-scale, or use --precision fp16",
    ),
    Refusal(
        (
            lambda s: (
                s.precision.auto_loss_scale
                and (s.exchange.staged or s.exchange.relaxed or s.exchange.asynchronous)
            ),
        ),
        "--loss-scale auto cannot be combined with --staged-vars, --async or relaxed consistency: the "
        "applied gradients come from several steps and scales",
        "give a fixed one: --loss-scale 128",
    ),
    Refusal(
        (
            lambda s: (
                s.backend == "cpu"
                and (
                    s.precision.tf32 != "on"
                    or s.runtime.gpu_thread_mode != "gpu_private"
                    or s.runtime.per_gpu_threads != 2
                    or s.runtime.memory_limit_mib
                )
            ),
        ),
        "--tf32, --gpu-thread-mode, --per-gpu-thread-count and --gpu-memory-limit are for GPUs, but this "
        "run uses CPU devices",
        "remove them; use --num-intra-threads and --num-inter-threads on the CPU",
    ),
    Refusal(
        (
            lambda s: (
                _asked_as(s, "learning_rate_schedule", "model") and s.optimization.schedule.kind == "constant"
            ),
        ),
        "--learning-rate-schedule model cannot be combined with --model {spec.model}: its authors use a "
        "constant rate",
        "remove it, or use another schedule, such as --learning-rate-schedule cosine:5000",
    ),
    Refusal(
        (
            lambda s: (
                not s.data.folder
                and (
                    s.data.distortions
                    or s.data.resize != "bilinear"
                    or s.data.private_threads
                    or s.data.cache
                    or s.data.bad_records != "stop"
                    or s.data.name
                )
            ),
        ),
        "--distortions, --resize-method, --datasets-num-private-threads, --cache and --bad-records are "
        "for real examples, but there is no --data-dir",
        "add --data-dir DIR, or remove them",
    ),
    Refusal(
        (lambda s: s.data.folder and data_of(s.model) == "numbers",),
        "--data-dir has images, and --model {spec.model} needs numbers",
        "remove --data-dir, or use --model resnet20",
    ),
    Refusal(
        (asked("data_name"), lambda s: not s.data.folder and not data_of(s.model) is not None),
        "--data-name cannot be combined with --model {spec.model} without --data-dir: synthetic examples "
        "already have the model's shape",
        "remove it, or add --data-dir DIR",
    ),
    Refusal(
        (asked("data_format"), lambda s: data_of(s.model) == "numbers"),
        "--data-format cannot be combined with --model {spec.model}: its input is not images",
        "remove it",
    ),
    Refusal(
        (lambda s: s.data.folder and data_of(s.model) not in (None, s.data.name),),
        "--model {spec.model} cannot train on {spec.data.name}",
        "remove --data-name, or choose a --model of that data",
    ),
    Refusal(
        (lambda s: s.data.folder and (s.data.source != "gpu" or s.data.feed != "sync"),),
        "--data-source and --feed are for synthetic examples, and --data-dir has real ones",
        "remove --data-source and --feed, or remove --data-dir",
    ),
    Refusal(
        (lambda s: not s.data.folder and s.data.source == "gpu" and (s.data.prefetch or 1) != 1,),
        "--prefetch is for an input pipeline, but examples created once on the devices have none",
        "use --data-source cpu, or remove it",
    ),
    Refusal(
        (lambda s: not s.data.folder and s.data.feed != "sync" and s.data.source != "python",),
        "--feed {spec.data.feed} cannot be combined with --data-source {spec.data.source}: it is for "
        "batches made in Python",
        "use --data-source python, or remove --feed",
    ),
    Refusal(
        (
            asked("prefetch"),
            lambda s: not s.data.folder and s.data.source == "python" and s.data.feed == "sync",
        ),
        "--prefetch cannot be combined with --feed sync: each batch is made on demand",
        "use --feed queue, or remove --prefetch",
    ),
    Refusal(
        (
            lambda s: (
                _asked_as(s, "prefetch", "0")
                and not s.data.folder
                and s.data.source == "python"
                and s.data.feed != "sync"
            ),
        ),
        "--prefetch 0 cannot be combined with --feed {spec.data.feed}, which makes batches ahead",
        "use --feed sync, without --prefetch",
    ),
    Refusal(
        (asked("resize_method", "cache"), lambda s: s.data.folder and s.data.name == "cifar10"),
        "{option} cannot be combined with CIFAR-10: its images keep their size, and all are in memory",
        "remove it",
    ),
    Refusal(
        (lambda s: not s.lifecycle.checkpoints and (s.lifecycle.resume or s.lifecycle.resume_or_start),),
        "--resume needs the folder of the checkpoints",
        "add --checkpoints DIR, or remove --resume",
    ),
    Refusal(
        (
            lambda s: (
                not s.lifecycle.checkpoints
                and (s.lifecycle.checkpoint_steps or s.lifecycle.keep_checkpoints != 5)
            ),
        ),
        "--checkpoint-steps and --keep-checkpoints need a folder of checkpoints",
        "add --checkpoints DIR",
    ),
    Refusal(
        (lambda s: s.task == "eval" and _has_late_trace(s),),
        "--trace uses a step that the evaluation does not have: it has at most {spec.batch_limit} steps, "
        "and the first, which compiles, is step 0",
        "use earlier steps with --trace, or give more steps with --num-batches",
    ),
    Refusal(
        (lambda s: s.task != "eval" and _has_late_trace(s),),
        "--trace uses a step after the end of the run, which has at most {spec.batch_limit} counted steps",
        "use earlier steps with --trace, or give more steps with --num-batches",
    ),
)
