"""Other spellings of options: underscores, and the flags of other programs (`other_flags.csv`).

absl's forms of yes and no are read too: `--staged_vars=true`, `--nostaged_vars`.
"""

import csv
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from gputopo.values.errors import UsageError

OWN_SHORT = 7  # gputopo's own short switches; they come first
# Where variables are; if every device has a copy, where their gradients are added.
PARAMETER_DEVICE = "--local-parameter-device"
PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "parameter_server": {"cpu": ("--ps", "cpu"), "gpu": ("--ps", "gpu:spread")},
    "replicated": {"cpu": ("--all-reduce", "pscpu"), "gpu": ("--all-reduce", "psgpu")},
    "independent": {"cpu": (), "gpu": ()},
}


@cache
def _table() -> Mapping[str, Mapping[str, tuple[tuple[str, ...], str]]]:
    """Return for each flag and value the options that replace it, or what to do instead.

    The value is `*` if the flag is another name of an option with a value, `yes` or `no` for a switch, and ""
    for a flag that gputopo does not have.
    """
    text = resources.files("gputopo.reference.data").joinpath("other_flags.csv").read_text(encoding="utf-8")
    found: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {}
    for row in csv.DictReader(text.splitlines()):
        for flag in row["flags"].split():
            found.setdefault(flag, {})[row["value"]] = tuple(row["means"].split()), row["hint"]
    return found


@cache
def switches() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the flags without a value, own short ones first, with their replacements for yes and for no."""
    nothing: tuple[tuple[str, ...], str] = ((), "")
    return {
        flag: (of.get("yes", nothing)[0], of.get("no", nothing)[0])
        for flag, of in _table().items()
        if not of.keys().isdisjoint(("yes", "no"))
    }


def _refusal(flag: str, value: str = "") -> str:
    """Return what to do instead of a flag or value that gputopo does not have; "" for any other one."""
    return _table().get(flag, {}).get(value, ((), ""))[1]


def _values(flag: str, own: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the values of a flag that have other names here. `own`: the words of the command line."""
    if flag == PARAMETER_DEVICE:
        return _places(own)
    of = {} if flag in switches() else _table().get(flag, {})
    return {value: words for value, (words, hint) in of.items() if not hint and value != "*"}


_YES, _NO = ("true", "1", "yes", "t"), ("false", "0", "no", "f")


class _Part(NamedTuple):
    """Arguments in gputopo's spelling and the flag that was typed for them ("" for a word without a flag)."""

    flag: str
    words: tuple[str, ...]
    typed: str


def translate(
    arguments: Sequence[str], flags: Iterable[str], options: Collection[str] | None = None
) -> list[str]:
    """Return the arguments in gputopo's spelling, up to a `--`; the rest belongs to a program.

    `flags`: the command's own options without a value. `options`: all its options; None: any. A spelling of
    an option that is not in `options` stays as typed. If a flag is given twice, the last one wins.

    Raises UsageError for a flag of tf_cnn_benchmarks that gputopo does not have, for a value that is not
    allowed, and for two flags that set one option here to different values.
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
        if values := _values(name, own):
            if not has_value:
                if position == len(own):
                    raise UsageError(f"{name} needs a value", f"give one of {', '.join(values)}")
                value = own[position]
                position += 1
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
    """Return the words with one more option."""
    negated = f"--{name[4:]}" if name.startswith("--no") else ""
    refused = "" if name in flags else _refusal(name) or _refusal(negated)
    if refused:
        raise UsageError(f"{name} is an option of tf_cnn_benchmarks that gputopo does not have", refused)
    if (negated in switches() or negated in flags) and name not in flags:
        return _switched(parts, negated, on=False)
    if name in switches() or (name in flags and (value is None or value.lower() in (*_YES, *_NO))):
        return _switched(parts, name, on=_is_yes(name, value))
    renamed = next(iter(_table().get(name, {}).get("*", ((name,), ""))[0]))
    given = "" if value is None else f"={value}"
    return [*parts, _Part(name, (f"{renamed}{given}",), f"{name}{given}")]


def _switched(parts: list[_Part], name: str, *, on: bool) -> list[_Part]:
    """Return the words with a switch, which replaces an earlier one of the same flag."""
    yes, no = switches().get(name, ((name,), ()))
    others = [part for part in parts if part.flag != name]
    return [*others, _Part(name, yes if on else no, name if on else f"--no{name[2:]}")]


def _require_agreement(parts: Sequence[_Part]) -> None:
    """Raise UsageError if two flags set the same option here to different values."""
    seen: dict[str, tuple[str, str]] = {}
    for number, part in enumerate(parts):
        after = parts[number + 1].words[0] if number + 1 < len(parts) and not parts[number + 1].flag else ""
        for option, value in _settings(part, after):
            other, before = seen.setdefault(option, (part.flag, value))
            if part.flag != other and value != before:
                raise UsageError(
                    f"{other} and {part.flag} both mean {option}, with different values",
                    f"use only one of them, or only {option}",
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
    if refused := _refusal(name, value):
        raise UsageError(
            f"{name} {value} is an option of tf_cnn_benchmarks that gputopo does not have", refused
        )
    if value not in values:
        raise UsageError(f"{name} cannot be {value!r}", f"give one of {', '.join(values)}")
    return values[value]


def _places(own: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the replacement of the parameter device; an explicit reduction takes precedence."""
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
