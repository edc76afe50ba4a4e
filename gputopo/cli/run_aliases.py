"""Other spellings of run's options: underscores, and the flags of tf_cnn_benchmarks and tensorpack. Pure.

Their meaning is that of tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py (--help), and of
tensorpack/benchmarks, other-wrappers and ResNet-MultiGPU/resnet-multigpu.py. absl's ways to write a yes or
no are read too: `--staged_vars=true`, `--nostaged_vars`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

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
# What gputopo does not have, and why or what does it.
_REFUSED = {
    "--trace-file": "give the steps to profile: --trace 10",
    "--display-every": "leave it out: every tenth step is shown, and events.jsonl holds all",
    "--device": "leave it out: --num-gpus N takes CPU devices where there is no GPU",
    "--fp16-vars": "leave it out: variables stay fp32; --precision fp16 computes in fp16",
    "--job-name": "leave it out: gputopo trains on one host",
    "--worker-hosts": "leave it out: gputopo trains on one host",
    "--ps-hosts": "leave it out: gputopo trains on one host",
    "--network-topology": "leave it out: --all-reduce hierarchical takes its groups from the machine's links",
}
_YES, _NO = ("true", "1", "yes", "t"), ("false", "0", "no", "f")


def translate(arguments: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Give the arguments in gputopo's spelling, up to a `--`; what follows it belongs to a program.

    `flags`: gputopo's own options that take no value. Raises UsageError for a flag of tf_cnn_benchmarks that
    gputopo does not have, and for a value that it cannot have.
    """
    own, rest = _before_program(arguments)
    known = frozenset(flags)
    words: list[str] = []
    position = 0
    while position < len(own):
        word = own[position]
        position += 1
        if not word.startswith("--"):
            words.append(word)
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
            words += _by_value(name, value, values)
        else:
            words = _taken(words, name, value if equals else None, known)
    return [*words, *rest]


def _taken(words: list[str], name: str, value: str | None, flags: frozenset[str]) -> list[str]:
    """Give the words with one option more. A switch that is turned off takes back what it turned on."""
    if name in _REFUSED:
        raise UsageError(
            f"{name} is an option of tf_cnn_benchmarks that gputopo does not have", _REFUSED[name]
        )
    negated = f"--{name[4:]}" if name.startswith("--no") else ""
    if negated.startswith("--") and (negated in _SWITCHES or negated in flags) and name not in flags:
        return _switched(words, negated, on=False)
    if name in _SWITCHES or (name in flags and value is not None and value.lower() in (*_YES, *_NO)):
        return _switched(words, name, on=_is_yes(name, value))
    renamed = _RENAMED.get(name, name)
    return [*words, renamed if value is None else f"{renamed}={value}"]


def _switched(words: list[str], name: str, *, on: bool) -> list[str]:
    yes, no = _SWITCHES.get(name, ((name,), ()))
    return [*_without(words, no if on else yes), *(yes if on else no)]


def _without(words: list[str], taken_back: tuple[str, ...]) -> list[str]:
    """Give the words without the last run of them that is `taken_back`."""
    length = len(taken_back)
    for begin in range(len(words) - length, -1, -1):
        if length and tuple(words[begin : begin + length]) == taken_back:
            return words[:begin] + words[begin + length :]
    return words


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
