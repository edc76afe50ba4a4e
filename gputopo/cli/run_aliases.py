"""Other spellings of run's options: underscores, and the flags of tf_cnn_benchmarks and tensorpack. Pure.

Their meaning is that of tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py (--help), and of
tensorpack/benchmarks, other-wrappers and ResNet-MultiGPU/resnet-multigpu.py. absl's ways to write a yes or
no are read too: `--staged_vars=true`, `--nostaged_vars`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gputopo.errors import UsageError

# Flags that are another word for an option that takes a value.
_RENAMED = {
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
}
# Flags that are yes or no there, and what they are here: words for yes, words for no.
_SWITCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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
# Own flags that are short for an option with a value: what is left off with them.
_SHORT_FOR = {
    "--forward-only": ("--task", "forward"),
    "--eval": ("--task", "eval"),
    "--input-only": ("--task", "input"),
    "--json": ("--format", "json"),
}
# Where variables are, or with copies on every device where their gradients are added.
_PARAMETER_DEVICE = "--local-parameter-device"
_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "parameter_server": {"cpu": ("--ps", "cpu"), "gpu": ("--ps", "gpu:spread")},
    "replicated": {"cpu": ("--all-reduce", "pscpu"), "gpu": ("--all-reduce", "copy")},
    "independent": {"cpu": (), "gpu": ()},
}
# A flag's value that is called otherwise here.
_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    _PARAMETER_DEVICE: _PLACES["parameter_server"],
    "--fake-location": {
        "gpu": ("--data-source", "gpu"),
        "cpu": ("--data-source", "cpu"),
        "python": ("--data-source", "python", "--feed", "queue"),
        "python-queue": ("--data-source", "python", "--feed", "queue"),
        "python-dataset": ("--data-source", "python", "--feed", "dataset"),
    },
}
# What gputopo does not have, by what to do in its place.
_ELSEWHERE = {
    "give the steps to profile: --trace 10": ("trace_file", "use_chrome_trace_format", "tfprof_file"),
    "leave it out: every tenth step is shown, and events.jsonl holds all": ("display_every",),
    "leave it out: --num-gpus N takes CPU devices where there is no GPU": ("device", "horovod_device"),
    "leave it out: variables stay fp32; --precision fp16 computes in fp16": ("fp16_vars",),
    "leave it out: gputopo trains on one host": (
        *("job_name", "worker_hosts", "ps_hosts", "controller_host", "task_index", "server_protocol", "job"),
    ),
    "leave it out: --all-reduce hierarchical takes its groups from the machine's links": (
        "network_topology",
    ),
    "leave it out: examples come by tf.data, --prefetch N batches ahead of the step": (
        *("use_datasets", "datasets_use_prefetch", "batch_group_size", "input_preprocessor"),
        *("datasets_parallel_interleave_cycle_length", "datasets_parallel_interleave_prefetch"),
        *("datasets_sloppy_parallel_interleave", "multi_device_iterator_max_buffer_size"),
        *("fuse_decode_and_crop", "datasets_repeat_cached_sample"),
    ),
    "leave it out: colours are distorted without YIQ, which TensorFlow 2 lacks": ("distort_color_in_yiq",),
    "leave it out: it is always so in TensorFlow 2": ("use_resource_vars", "use_tf_layers"),
    "leave it out: TensorFlow brings its own oneDNN; --num-intra-threads bounds its threads": (
        *("mkl", "kmp_blocktime", "kmp_affinity", "kmp_settings"),
    ),
    "leave it out: a GPU's memory is taken as needed, up to --gpu-memory-limit": (
        *("allow_growth", "gpu_memory_frac_for_testing", "use_unified_memory", "force_gpu_compatible"),
    ),
    "say it in steps: --learning-rate-schedule piecewise:30=0.1,60=0.01": (
        *("piecewise_learning_rate_schedule", "num_epochs_per_decay", "learning_rate_decay_factor"),
        "minimum_learning_rate",
    ),
    "say it in steps: --learning-rate-warmup-steps N": ("num_learning_rate_warmup_epochs",),
    "say it in steps: --num-batches N": ("num_epochs", "num_eval_batches", "num_eval_epochs"),
    "say it in steps: --checkpoint-steps N": ("save_model_secs",),
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
    "name the run's folder with --output DIR: it holds all figures as JSON": (
        *("benchmark_log_dir", "benchmark_test_id", "result_storage"),
    ),
    "choose them with --gpus LIST": ("gpu_indices",),
    "set it in the environment: TF_ENABLE_WINOGRAD_NONFUSED=1": ("winograd_nonfused",),
    "set it in the environment: TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=1": ("batchnorm_persistent",),
    "set it in the environment: TF_AUTOTUNE_THRESHOLD=N": ("autotune_threshold",),
    "set it in the environment: TF_SYNC_ON_FINISH=1": ("sync_on_finish",),
}
_REFUSED = {f"--{flag.replace('_', '-')}": hint for hint, flags in _ELSEWHERE.items() for flag in flags}
_YES, _NO = ("true", "1", "yes", "t"), ("false", "0", "no", "f")


@dataclass(frozen=True)
class _Piece:
    """A word or a few in gputopo's spelling, and the `flag` that was typed for them; "" for a bare word.

    `denied`: what a switch says that it is not, each an option with its value if it has one.
    """

    flag: str
    words: tuple[str, ...]
    denied: tuple[tuple[str, ...], ...] = ()


def translate(arguments: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Give the arguments in gputopo's spelling, up to a `--`; what follows it belongs to a program.

    `flags`: gputopo's own options that take no value. Raises UsageError for a flag of tf_cnn_benchmarks that
    gputopo does not have, for a value that it cannot have, and for two flags that are one option here and do
    not agree: with two values, or one of them turned off and the other on. Of one flag the last counts.
    """
    own, rest = _before_program(arguments)
    known = frozenset(flags)
    pieces: list[_Piece] = []
    position = 0
    while position < len(own):
        word = own[position]
        position += 1
        if not word.startswith("--"):
            pieces.append(_Piece("", (word,)))
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _VALUES:
            if not equals:
                if position == len(own):
                    raise UsageError(f"{name} needs a value", f"give one of {', '.join(_VALUES[name])}")
                value = own[position]
                position += 1
            values = _places(own) if name == _PARAMETER_DEVICE else _VALUES[name]
            pieces.append(_Piece(name, _by_value(name, value, values)))
        else:
            pieces = _taken(pieces, name, value if equals else None, known)
    _require_agreement(pieces)
    return [*(word for piece in pieces for word in piece.words), *rest]


def _taken(pieces: list[_Piece], name: str, value: str | None, flags: frozenset[str]) -> list[_Piece]:
    """Give the pieces with one option more."""
    negated = f"--{name[4:]}" if name.startswith("--no") else ""
    refused = next((flag for flag in (name, negated) if flag in _REFUSED and name not in flags), None)
    if refused is not None:
        raise UsageError(
            f"{name} is an option of tf_cnn_benchmarks that gputopo does not have", _REFUSED[refused]
        )
    if (negated in _SWITCHES or negated in flags) and name not in flags:
        return _switched(pieces, negated, on=False)
    if name in _SWITCHES or (name in flags and (value is None or value.lower() in (*_YES, *_NO))):
        return _switched(pieces, name, on=_is_yes(name, value))
    renamed = _RENAMED.get(name, name)
    return [*pieces, _Piece(name, (renamed if value is None else f"{renamed}={value}",))]


def _switched(pieces: list[_Piece], name: str, *, on: bool) -> list[_Piece]:
    """Give the pieces with a switch, which takes back what the same one said before."""
    yes, no = _SWITCHES.get(name, ((name,), ()))
    put, denied = (yes, no) if on else (no, yes)
    short_for = () if on else _SHORT_FOR.get(name, ())
    kept = [piece for piece in pieces if piece.flag != name]
    return [*kept, _Piece(name, put, tuple(words for words in (denied, short_for) if words))]


def _require_agreement(pieces: Sequence[_Piece]) -> None:
    """Raise UsageError where two flags are one option here, and one says other than the other."""
    seen: dict[str, tuple[str, str]] = {}
    on: dict[tuple[str, ...], str] = {}
    for number, piece in enumerate(pieces):
        after = (
            pieces[number + 1].words[0] if number + 1 < len(pieces) and not pieces[number + 1].flag else ""
        )
        for option, value in _settings(piece, after):
            other, before = seen.setdefault(option, (piece.flag, value))
            if piece.flag != other and value != before:
                raise UsageError(
                    f"{other} and {piece.flag} both are {option} here, with two values",
                    f"leave one of them out, or write {option} alone",
                )
            on.setdefault((option,), _typed(piece))
            on.setdefault((option, value), _typed(piece))
    for piece in pieces:
        for words in piece.denied:
            if words in on:
                asked = " ".join(words)
                other = asked if on[words] == words[0] else f"{on[words]}, which is {asked} here"
                raise UsageError(f"{_typed(piece)} contradicts {other}", "leave one of them out")


def _typed(piece: _Piece) -> str:
    """Give a piece's flag as it may be typed: a switch that is off with its no."""
    yes, _ = _SWITCHES.get(piece.flag, ((piece.flag,), ()))
    is_off = (piece.flag in _SWITCHES or piece.denied) and piece.words != yes
    return f"--no{piece.flag[2:]}" if is_off else piece.flag


def _settings(piece: _Piece, after: str) -> Iterable[tuple[str, str]]:
    """Give the options of a piece with their values; `after`: the bare word behind it."""
    words = piece.words if piece.flag else ()
    for number, word in enumerate(words):
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            following = words[number + 1] if number + 1 < len(words) else after
            yield option, value if equals else following


def _is_yes(name: str, value: str | None) -> bool:
    if value is None or value.lower() in _YES:
        return True
    if value.lower() in _NO:
        return False
    raise UsageError(f"{name} cannot be {value!r}", f"write {name}, {name}=true or {name}=false")


def _by_value(name: str, value: str, values: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if value not in values:
        raise UsageError(f"{name} cannot be {value!r}", f"give one of {', '.join(values)}")
    return values[value]


def _places(own: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Give what the parameter device stands for here; a reduction that is named goes before it."""
    words = [word.replace("-", "_") for word in own]
    update = next((name for name in reversed(list(_PLACES)) if _names(words, name)), "parameter_server")
    named = any(word.startswith(("__all_reduce", "__use_nccl")) for word in words)
    return _PLACES["independent"] if update == "replicated" and named else _PLACES[update]


def _names(words: Sequence[str], update: str) -> bool:
    spaced = any(pair == ("__variable_update", update) for pair in itertools.pairwise(words))
    return spaced or f"__variable_update={update}" in words


def _before_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    if "--" not in words:
        return words, []
    begin = words.index("--")
    return words[:begin], words[begin:]
