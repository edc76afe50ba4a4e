"""Options that exclude or need one another: the rows of `refusals.csv`, so that all can be read as one text.

A row is of some commands, for options as they are typed, of `training`, for the fields of its spec, of
`losing`, for those of a training that is to go on without lost hosts, or of `run:moved`, of options that the
command has no more. It applies where every term of `when` does: names separated by `|`, of which one has to
be given; `!` before a term: none. `format=json`, `task!=train`: given with this value, with another one.
`asked.NAME` of a training is an option as it was typed, `@NAME` the terms of the row of that name.

`{option}` and `{other}` in the texts are the first option that is given of the first and the second term,
`{options}` all of the first. What depends on the machine or on a starter is refused where that is known.
"""

import csv
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gputopo.values.errors import UsageError
from gputopo.values.option import Text, listed

Given = Callable[[str], str | None]
"""Returns the value of an option or a field by its name as text in lower case; None where it is not given."""


class Exclusion(NamedTuple):
    """A row: what is wrong, and what works. A term: whether its names are to be given, and these."""

    terms: tuple[tuple[bool, tuple[str, ...]], ...]
    what: str
    use: str

    def found(self, given: Given) -> list[list[str]] | None:
        """Return what is given of each term, as flags; None where the row does not apply."""
        all_found = []
        for wanted, names in self.terms:
            found = [flag for name in names if (flag := _flag_of(name, given)) is not None]
            if bool(found) != wanted:
                return None
            all_found.append(found)
        return all_found


@cache
def refusals(command: str) -> tuple[Exclusion, ...]:
    """Return the rows of a command, or of `training`, in their order."""
    with (Path(__file__).parent / "refusals.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    joined = {row["command"]: row["when"] for row in rows if row["command"].startswith("@")}

    def term(text: str) -> tuple[bool, tuple[str, ...]]:
        names = text.removeprefix("!").split("|")
        each = (joined.get(name, name).split("|") for name in names)
        return not text.startswith("!"), tuple(name for some in each for name in some)

    return tuple(
        Exclusion(tuple(map(term, row["when"].split())), row["what"], row["use"])
        for row in rows
        if command in row["command"].split()
    )


def refuse(command: str, given: Given, **named: Any) -> None:
    """Raise UsageError for the first row that applies. `named`: what its texts name besides options."""
    for row in refusals(command):
        if (found := row.found(given)) is not None:
            option, other = (next(iter(of), "") for of in (*found, [])[:2])
            words = {**named, "option": option, "other": other, "options": listed(found[0] or [""], "and")}
            words["them"] = "it" if len(found[0]) == 1 else "them"
            raise UsageError(row.what.format(**words), row.use.format(**words))


def refuse_typed(command: str, texts: Mapping[str, Text]) -> None:
    """Raise UsageError for options of a command, as they were typed, that do not go together."""
    typed = {name.rstrip("_"): str(text).lower() for name, text in texts.items()}
    if typed.get("num_hosts") == "1":  # this host alone
        del typed["num_hosts"]
    refuse(command, typed.get)


def _flag_of(key: str, given: Given) -> str | None:
    """Return an option as it is typed, with its value where that counts; None where it is not given so."""
    name, has_value, value = key.partition("=")
    text = given(name.rstrip("!"))
    if text is None or (has_value and (text == value) == name.endswith("!")):
        return None
    flag = f"--{name.rstrip('!').removeprefix('asked.').replace('_', '-')}"
    return f"{flag} {text}" if has_value else flag
