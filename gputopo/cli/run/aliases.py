"""Other spellings of options: underscores, and the flags of other programs (`other_flags`). Pure.

absl's forms of yes and no are read too: `--staged_vars=true`, `--nostaged_vars`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gputopo.cli.run.other_flags import (
    PARAMETER_DEVICE,
    PLACES,
    REFUSED,
    REFUSED_VALUES,
    RENAMED,
    SHORT_FOR,
    SWITCHES,
    VALUES,
)
from gputopo.values.errors import UsageError

_YES, _NO = ("true", "1", "yes", "t"), ("false", "0", "no", "f")


@dataclass(frozen=True)
class _Part:
    """Arguments in gputopo's spelling, and the `flag` that was typed for them; "" for a bare word.

    `denied`: options that a switch turns off, each with its value if it has one.
    """

    flag: str
    words: tuple[str, ...]
    denied: tuple[tuple[str, ...], ...] = ()


def translate(arguments: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Return the arguments in gputopo's spelling, up to a `--`; what follows it belongs to a program.

    `flags`: gputopo's own options that take no value. Raises UsageError for a flag of tf_cnn_benchmarks that
    gputopo does not have, for a value that it cannot have, and for two flags that are one option here and do
    not agree: with two values, or one of them turned off and the other on. Of one flag the last counts.
    """
    own, rest = _before_program(arguments)
    known = frozenset(flags)
    parts: list[_Part] = []
    position = 0
    while position < len(own):
        word = own[position]
        position += 1
        if not word.startswith("--"):
            parts.append(_Part("", (word,)))
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
            parts.append(_Part(name, _by_value(name, value, values)))
        else:
            parts = _taken(parts, name, value if has_value else None, known)
    _require_agreement(parts)
    return [*(word for part in parts for word in part.words), *rest]


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
    return [*parts, _Part(name, (renamed if value is None else f"{renamed}={value}",))]


def _switched(parts: list[_Part], name: str, *, on: bool) -> list[_Part]:
    """Return the words with a switch, which replaces an earlier one of the same flag."""
    yes, no = SWITCHES.get(name, ((name,), ()))
    put, denied = (yes, no) if on else (no, yes)
    short_for = () if on else SHORT_FOR.get(name, ())
    others = [part for part in parts if part.flag != name]
    return [*others, _Part(name, put, tuple(words for words in (denied, short_for) if words))]


def _require_agreement(parts: Sequence[_Part]) -> None:
    """Raise UsageError where two flags stand for one option here, with different values."""
    seen: dict[str, tuple[str, str]] = {}
    on: dict[tuple[str, ...], str] = {}
    for number, part in enumerate(parts):
        after = parts[number + 1].words[0] if number + 1 < len(parts) and not parts[number + 1].flag else ""
        for option, value in _settings(part, after):
            other, before = seen.setdefault(option, (part.flag, value))
            if part.flag != other and value != before:
                raise UsageError(
                    f"{other} and {part.flag} both are {option} here, with different values",
                    f"leave one of them out, or write {option} alone",
                )
            on.setdefault((option,), _typed(part))
            on.setdefault((option, value), _typed(part))
    for part in parts:
        for words in part.denied:
            if words in on:
                asked = " ".join(words)
                other = asked if on[words] == words[0] else f"{on[words]}, which is {asked} here"
                raise UsageError(f"{_typed(part)} contradicts {other}", "leave one of them out")


def _typed(part: _Part) -> str:
    """Return the flag as it may be typed: with its no for a switch that is off."""
    yes, _ = SWITCHES.get(part.flag, ((part.flag,), ()))
    is_off = (part.flag in SWITCHES or part.denied) and part.words != yes
    return f"--no{part.flag[2:]}" if is_off else part.flag


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
