"""Other spellings of options: underscores, and the flags of other programs (`other_flags`). Pure.

absl's forms of yes and no are read too: `--staged_vars=true`, `--nostaged_vars`.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gputopo.values.errors import UsageError

# Flags that are another word for an option that takes a value.
RENAMED = {
    "--all-reduce-spec": "--all-reduce",
    "--init-learning-rate": "--learning-rate",
    "--fp16-loss-scale": "--loss-scale",
    "--train-dir": "--checkpoints",
    "--save-model-steps": "--checkpoint-steps",
    "--max-ckpts-to-keep": "--keep-checkpoints",
    "--datasets-prefetch-buffer-size": "--prefetch",
    "--per-gpu-batch-size": "--batch-size",
    "--batch": "--batch-size",
    "--tf-random-seed": "--seed",
    "--gpu": "--gpus",
    "--worker-hosts": "--hosts",
    "--task-index": "--node-rank",
    "--nnodes": "--num-hosts",
    "--method": "--strategy",
}
# Flags without a value, own short ones first, and the options that they stand for: for yes, for no.
OWN_SHORT = 7
SWITCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--json": (("--format", "json"), ()),
    "--tf-cnn-log": (("--format", "tf-cnn-log"), ()),
    "--forward-only": (("--task", "forward"), ()),
    "--eval": (("--task", "eval"), ()),
    "--input-only": (("--task", "input"), ()),
    "--quick": (("--effort", "quick"), ()),
    "--full": (("--effort", "full"), ()),
    "--use-fp16": (("--precision", "fp16"), ()),
    "--fp16-enable-auto-loss-scale": (("--loss-scale", "auto"), ()),
    "--compact-gradient-transfer": (("--fp16-transfer",), ()),
    "--xla-compile": (("--xla",), ()),
    "--use-xla-compile": (("--xla",), ()),
    "--use-nccl": (("--all-reduce", "nccl"), ()),
    "--hierarchical-copy": (("--all-reduce", "hierarchical"), ()),
    "--datasets-use-caching": (("--cache", "raw"), ()),
    "--cross-replica-sync": ((), ("--async",)),
}
# Where variables are, or with copies on every device where their gradients are added.
PARAMETER_DEVICE = "--local-parameter-device"
PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "parameter_server": {"cpu": ("--ps", "cpu"), "gpu": ("--ps", "gpu:spread")},
    "replicated": {"cpu": ("--all-reduce", "pscpu"), "gpu": ("--all-reduce", "psgpu")},
    "independent": {"cpu": (), "gpu": ()},
}
# Values of a flag with another name here.
VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    PARAMETER_DEVICE: PLACES["parameter_server"],
    "--fake-location": {
        "gpu": ("--data-source", "gpu"),
        "cpu": ("--data-source", "cpu"),
        "python": ("--data-source", "python", "--feed", "queue"),
        "python-queue": ("--data-source", "python", "--feed", "queue"),
        "python-dataset": ("--data-source", "python", "--feed", "dataset"),
    },
    "--job-name": {"worker": ()},
    # Of RMSProp and Adam, which have these constants.
    "--rmsprop-decay": {"0.9": ()},
    "--rmsprop-momentum": {"0.9": ()},
    "--rmsprop-epsilon": {"1.0": (), "1": ()},
    "--adam-beta1": {"0.9": ()},
    "--adam-beta2": {"0.999": ()},
    "--adam-epsilon": {"1e-08": (), "1e-8": ()},
}
# Values of such a flag that gputopo does not have, and what to do instead.
REFUSED_VALUES = {
    ("--job-name", "ps"): "start no ps: the hosts that train store the variables",
    ("--job-name", "controller"): "start no controller: the host of rank 0 is",
}
# Flags that gputopo does not have, by the hint what to do instead.
_ELSEWHERE = {
    "give the steps to profile: --trace 10": ("trace_file", "use_chrome_trace_format", "tfprof_file"),
    "leave it out: events.jsonl holds every step's time, and any average can be taken of them": (
        "display_perf_ewma",
    ),
    "leave it out, or add --cpu for CPU devices (as many as --num-gpus says)": ("device", "horovod_device"),
    "leave it out: variables stay fp32; --precision fp16 computes in fp16": ("fp16_vars",),
    "leave it out: the hosts that train store the variables": ("ps_hosts",),
    "leave it out: the host of rank 0 is the controller": ("controller_host",),
    "leave it out: hosts are connected by gRPC": ("server_protocol",),
    "leave it out: hosts wait for one another in each step": ("use_python32_barrier",),
    "name all hosts by --hosts LIST, and this one by --node-rank N": ("job",),
    "leave it out: --all-reduce hierarchical gets its groups from the machine's links": ("network_topology",),
    "leave it out: examples come by tf.data, --prefetch N batches ahead of the step": (
        *("use_datasets", "datasets_use_prefetch", "batch_group_size", "input_preprocessor"),
        *("datasets_parallel_interleave_cycle_length", "datasets_parallel_interleave_prefetch"),
        *("datasets_sloppy_parallel_interleave", "multi_device_iterator_max_buffer_size"),
        *("fuse_decode_and_crop", "datasets_repeat_cached_sample"),
    ),
    "leave it out: a run takes the CPUs and memory near its GPUs unless --no-affinity is given": (
        "use_numa_affinity",
    ),
    "leave it out: colours are distorted without YIQ, which TensorFlow 2 lacks": ("distort_color_in_yiq",),
    "leave it out: it is always so in TensorFlow 2": ("use_resource_vars", "use_tf_layers"),
    "leave it out: TensorFlow optimizes the graph of a step by itself": (
        *("enable_optimizations", "rewriter_config", "allreduce_merge_scope", "compute_lr_on_cpu"),
        "freeze_when_forward_only",
    ),
    "leave it out: gputopo does not use TensorRT; --forward-only --xla compiles the forward pass": (
        *("trt_mode", "trt_max_workspace_size_bytes"),
    ),
    "leave it out: the loss shown is without weight decay, whose gradient is added beside it": (
        *("loss_type_to_report", "single_l2_loss_op"),
    ),
    "leave it out: it belongs to models or rules that gputopo does not have": (
        *("collect_eval_results_async", "sparse_to_dense_grads", "ml_perf", "ml_perf_compliance_logging"),
    ),
    "give the rate itself: --learning-rate X": ("resnet_base_lr",),
    "trace the ops of each device: --trace STEPS": (
        *("graph_file", "partitioned_graph_file_prefix", "debugger"),
    ),
    "time reductions alone: gputopo bench-reduction --model NAME": ("iters_per_step",),
    "leave it out: TensorFlow brings its own oneDNN; --num-intra-threads bounds its threads": (
        *("mkl", "kmp_blocktime", "kmp_affinity", "kmp_settings"),
    ),
    "leave it out: GPU memory is allocated as needed, up to --gpu-memory-limit": (
        *("allow_growth", "gpu_memory_frac_for_testing", "use_unified_memory", "force_gpu_compatible"),
        *("gpu_kt_max_interval", "gpu_kt_max_bytes", "gpu_kt_max_pending", "timestamped_allocator"),
    ),
    "give it in steps: --learning-rate-schedule piecewise:30=0.1,60=0.01": (
        *("piecewise_learning_rate_schedule", "num_epochs_per_decay", "learning_rate_decay_factor"),
        "minimum_learning_rate",
    ),
    "give it in steps: --learning-rate-warmup-steps N": ("num_learning_rate_warmup_epochs",),
    "give it in steps: --num-batches N": ("num_epochs", "num_eval_batches", "num_eval_epochs"),
    "give it in steps: --checkpoint-steps N": ("save_model_secs",),
    "leave it out: the scale doubles after 1000 good steps": ("fp16_inc_loss_scale_every_n",),
    "train with --checkpoints DIR, then judge them with --eval": (
        *("eval_interval_secs", "eval_dir", "eval_batch_size", "stop_at_top_1_accuracy"),
        *("eval_during_training_every_n_steps", "eval_during_training_every_n_epochs"),
        *("eval_during_training_at_specified_steps", "eval_during_training_at_specified_epochs"),
    ),
    "name a folder of checkpoints and go on from it: --checkpoints DIR --resume": (
        *("backbone_model_path", "load", "reset_optimizer_state"),
    ),
    "name a folder for TensorBoard: --tensorboard DIR": ("summary_verbosity", "save_summaries_steps"),
    "name the run's folder with --output DIR: it holds all results as JSON": (
        *("benchmark_log_dir", "benchmark_test_id", "result_storage"),
    ),
    "choose them with --gpus LIST": ("gpu_indices",),
    "leave it out: TensorFlow uses these algorithms; TF_ENABLE_WINOGRAD_NONFUSED=0 in the environment avoids "
    "them": ("winograd_nonfused",),
    "leave it out: it is on; TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=0 in the environment turns it off": (
        "batchnorm_persistent",
    ),
    "set it in the environment: TF_AUTOTUNE_THRESHOLD=N": ("autotune_threshold",),
    "leave it out: each step ends with a wait for all devices": ("sync_on_finish",),
}
REFUSED = {f"--{flag.replace('_', '-')}": hint for hint, flags in _ELSEWHERE.items() for flag in flags}


_YES, _NO = ("true", "1", "yes", "t"), ("false", "0", "no", "f")


class _Part(NamedTuple):
    """Arguments in gputopo's spelling, and the flag that was typed for them; "" for a bare word."""

    flag: str
    words: tuple[str, ...]
    typed: str


def translate(
    arguments: Sequence[str], flags: Iterable[str], options: Collection[str] | None = None
) -> list[str]:
    """Return the arguments in gputopo's spelling, up to a `--`; what follows it belongs to a program.

    `flags`: the command's own options that take no value; `options`: all of them, None: any. What stands for
    another option is left as it was typed. Raises UsageError for a flag of tf_cnn_benchmarks that
    gputopo does not have, for a value that it cannot have, and for two flags that are one option here, with
    two values. Of one flag the last counts.
    """
    own, rest = _before_program(arguments)
    known = frozenset(flags)
    parts: list[_Part] = []
    position = 0
    while position < len(own):
        word = own[position]
        position += 1
        if not word.startswith("--"):
            parts.append(_Part("", (word,), word))
            continue
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")
        if name in VALUES:
            if not has_value:
                if position == len(own):
                    raise UsageError(f"{name} needs a value", f"give one of {', '.join(VALUES[name])}")
                value = own[position]
                position += 1
            values = _places(own) if name == PARAMETER_DEVICE else VALUES[name]
            parts.append(_Part(name, _by_value(name, value, values), name))
        else:
            parts = _taken(parts, name, value if has_value else None, known)
    _require_agreement(parts)
    return [*(word for part in parts for word in _words_of(part, options)), *rest]


def _words_of(part: _Part, options: Collection[str] | None) -> tuple[str, ...]:
    first = part.words[0].partition("=")[0] if part.words else ""
    is_known = options is None or first in options or not first.startswith("--")
    return part.words if is_known or not part.flag else (part.typed,)


def _taken(parts: list[_Part], name: str, value: str | None, flags: frozenset[str]) -> list[_Part]:
    """Return the words with one option more."""
    negated = f"--{name[4:]}" if name.startswith("--no") else ""
    refused = next((flag for flag in (name, negated) if flag in REFUSED and name not in flags), None)
    if refused is not None:
        raise UsageError(
            f"{name} is an option of tf_cnn_benchmarks that gputopo does not have", REFUSED[refused]
        )
    if (negated in SWITCHES or negated in flags) and name not in flags:
        return _switched(parts, negated, on=False)
    if name in SWITCHES or (name in flags and (value is None or value.lower() in (*_YES, *_NO))):
        return _switched(parts, name, on=_is_yes(name, value))
    renamed = RENAMED.get(name, name)
    return [*parts, _Part(name, (renamed if value is None else f"{renamed}={value}",), name)]


def _switched(parts: list[_Part], name: str, *, on: bool) -> list[_Part]:
    """Return the words with a switch, which replaces an earlier one of the same flag."""
    yes, no = SWITCHES.get(name, ((name,), ()))
    others = [part for part in parts if part.flag != name]
    return [*others, _Part(name, yes if on else no, name if on else f"--no{name[2:]}")]


def _require_agreement(parts: Sequence[_Part]) -> None:
    """Raise UsageError where two flags stand for one option here, with different values."""
    seen: dict[str, tuple[str, str]] = {}
    for number, part in enumerate(parts):
        after = parts[number + 1].words[0] if number + 1 < len(parts) and not parts[number + 1].flag else ""
        for option, value in _settings(part, after):
            other, before = seen.setdefault(option, (part.flag, value))
            if part.flag != other and value != before:
                raise UsageError(
                    f"{other} and {part.flag} both are {option} here, with different values",
                    f"leave one of them out, or write {option} alone",
                )


def _settings(part: _Part, after: str) -> Iterable[tuple[str, str]]:
    """Return the options with their values; `after`: the bare word that follows."""
    words = part.words if part.flag else ()
    for number, word in enumerate(words):
        if word.startswith("--"):
            option, has_value, value = word.partition("=")
            following = words[number + 1] if number + 1 < len(words) else after
            yield option, value if has_value else following


def _is_yes(name: str, value: str | None) -> bool:
    if value is None or value.lower() in _YES:
        return True
    if value.lower() in _NO:
        return False
    raise UsageError(f"{name} cannot be {value!r}", f"write {name}, {name}=true or {name}=false")


def _by_value(name: str, value: str, values: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if (name, value) in REFUSED_VALUES:
        raise UsageError(
            f"{name} {value} is an option of tf_cnn_benchmarks that gputopo does not have",
            REFUSED_VALUES[name, value],
        )
    if value not in values:
        raise UsageError(f"{name} cannot be {value!r}", f"give one of {', '.join(values)}")
    return values[value]


def _places(own: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return what the parameter device stands for here; a named reduction takes precedence."""
    words = [word.replace("-", "_") for word in own]
    update = next((name for name in reversed(list(PLACES)) if _names(words, name)), "parameter_server")
    named = any(word.startswith(("__all_reduce", "__use_nccl")) for word in words)
    return PLACES["independent"] if update == "replicated" and named else PLACES[update]


def _names(words: Sequence[str], update: str) -> bool:
    spaced = any(pair == ("__variable_update", update) for pair in itertools.pairwise(words))
    return spaced or f"__variable_update={update}" in words


def _before_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    if "--" not in words:
        return words, []
    begin = words.index("--")
    return words[:begin], words[begin:]
