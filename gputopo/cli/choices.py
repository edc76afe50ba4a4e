"""Checks of option values: what was given, and the nearest that can be."""

from collections.abc import Iterable
from typing import TypeVar

from gputopo.values.errors import UsageError

Choice = TypeVar("Choice", bound=str)


def nearest(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Give the known words that look like `word`, best first, three at most. No match: empty."""
    import difflib  # only when something is wrong

    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.5)
    return tuple(by_lower[name] for name in found)


def require_choice(option: str, value: str, choices: tuple[Choice, ...]) -> Choice:
    """Give `value` if it is one of `choices`. Raises UsageError that names the nearest, or all of them."""
    for choice in choices:
        if value == choice:
            return choice
    near = nearest(value, choices)
    hint = f"did you mean {near[0]}? It takes {listed(choices)}" if near else f"it takes {listed(choices)}"
    raise UsageError(f"{option} cannot be {shown(value)}", hint)


def listed(words: Iterable[str], joint: str = "or") -> str:
    """Give words as `a, b or c`."""
    *head, last = words
    return f"{', '.join(head)} {joint} {last}" if head else last


def shown(value: str) -> str:
    """Give what a user typed in quotes on one line, cut where it is very long."""
    quoted = ascii(value) if not value.isprintable() else f"'{value}'"
    return quoted if len(quoted) <= 60 else f"{quoted[:56]}...'"


def shape_of(asked: str | None, formats: tuple[Choice, ...], *, json: bool) -> Choice:
    """Give how a result is printed, by `--format` and its short form `--json`. Raises UsageError for two."""
    if asked is None:
        return require_choice("--format", "json" if json else "table", formats)
    shape = require_choice("--format", asked, formats)
    if json and shape != "json":
        raise UsageError(f"--json and --format {shape} contradict one another", "leave one of them out")
    return shape
