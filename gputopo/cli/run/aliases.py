"""Other spellings of options: underscores, and the flags of other programs (`other_flags.csv`).

absl's forms of yes and no are read too: `--staged_vars=true`, `--nostaged_vars`.
"""

import csv
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from gputopo.values.errors import UsageError

# Where variables are; if every device has a copy, where their gradients are added.
_PARAMETER_DEVICE = "--local-parameter-device"
_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "parameter_server": {"cpu": ("--ps", "cpu"), "gpu": ("--ps", "gpu:spread")},
    "replicated": {"cpu": ("--all-reduce", "pscpu"), "gpu": ("--all-reduce", "psgpu")},
    "independent": {"cpu": (), "gpu": ()},
}
_YES, _NO = ("true", "1", "yes", "t"), ("false", "0", "no", "f")


@cache
def _table() -> Mapping[str, Mapping[str, tuple[tuple[str, ...], str]]]:
    """Return for each flag and value the options that replace it, or what to do instead.

    The value is `*` if the flag is another name of an option with a value, `yes` or `no` for a switch, and ""
    for a flag that gputopo does not have.
    """
    text = resources.files("gputopo.reference.data").joinpath("other_flags.csv").read_text(encoding="utf-8")
    table: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {}
    for row in csv.DictReader(text.splitlines()):
        for flag in row["flags"].split():
            table.setdefault(flag, {})[row["value"]] = tuple(row["means"].split()), row["hint"]
    return table


@cache
def switches() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the flags without a value, own short ones first, with their replacements for yes and for no."""
    nothing: tuple[tuple[str, ...], str] = ((), "")
    return {
        flag: (values.get("yes", nothing)[0], values.get("no", nothing)[0])
        for flag, values in _table().items()
        if not values.keys().isdisjoint(("yes", "no"))
    }


def renamed(flag: str) -> str:
    """Return the option with the same value as a flag of another program; the flag itself if it has none."""
    return next(iter(_table().get(flag, {}).get("*", ((flag,), ""))[0]))


def is_on(value: str | None) -> bool | None:
    """Return whether a switch with a value is on; None if the value is neither yes nor no."""
    if value is None or value.lower() in _YES:
        return True
    return False if value.lower() in _NO else None


def values_of(flag: str, line: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the options that replace a flag of another program, by its value; nothing for other flags.

    `line`: all words of the command line.
    """
    if flag == _PARAMETER_DEVICE:
        words = [word.replace("-", "_") for word in line]
        pairs = {*itertools.pairwise(words), *(tuple(word.split("=", 1)) for word in words if "=" in word)}
        update = next(
            (name for name in reversed(_PLACES) if ("__variable_update", name) in pairs), "parameter_server"
        )
        # An explicit reduction takes precedence.
        is_reduced = any(word.startswith(("__all_reduce", "__use_nccl")) for word in words)
        return _PLACES["independent" if update == "replicated" and is_reduced else update]
    by_value = {} if flag in switches() else _table().get(flag, {})
    return {value: words for value, (words, hint) in by_value.items() if not hint and value != "*"}


def require_known(flag: str, value: str = "") -> None:
    """Raise UsageError for a flag or a value of tf_cnn_benchmarks that gputopo does not have."""
    for name in (flag, f"--{flag[4:]}") if flag.startswith("--no") else (flag,):
        _, hint = _table().get(name, {}).get(value, ((), ""))
        if hint:
            raise UsageError(
                f"{flag} {value}".rstrip() + " is an option of tf_cnn_benchmarks that gputopo does not have",
                hint,
            )
