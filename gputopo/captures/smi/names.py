"""Which name of `nvidia-smi` stands for which fact, and which names are known at all, by output format."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from gputopo.captures.smi import known, table
from gputopo.captures.smi.table import Dialect, Row


class Named(NamedTuple):
    """A row, and how good this one of its names is: 0 is the best."""

    row: Row
    rank: int


class Names(NamedTuple):
    """The names of one output format."""

    facts: dict[str, Named]
    processes: dict[str, Row]
    driver: dict[str, Named]
    sections: frozenset[str]
    unplaced: frozenset[str]
    prefixes: tuple[str, ...]

    def is_unplaced(self, path: str) -> bool:
        """Return whether a name is known and has no place in a Machine; so are all names below it.

        A name that a field declares has one, also where `known` lists it.
        """
        if path in self.facts:
            return False
        at = len(path)
        while at > 0:
            if path[:at] in self.unplaced:
                return True
            at = path.rfind("/", 0, at)
        return path.startswith(self.prefixes)

    def nearest(self, above: Sequence[str], name: str) -> str | None:
        """Return the path of a name under the nearest of the headings above where it is known by itself."""
        for depth in range(len(above), -1, -1):
            path = "/".join([*above[:depth], name])
            listed = (self.facts, self.processes, self.sections, self.unplaced)
            if any(path in paths for paths in listed) or path.startswith(self.prefixes):
                return path
        return None

    def below(self, section: str) -> list[Named]:
        """Return the facts that are reported under a section."""
        return [named for name, named in self.facts.items() if name.startswith(f"{section}/")]


_UNPLACED: dict[Dialect, tuple[str, ...]] = {
    "xml": tuple(known.XML),
    "text": known.TEXT,
    "csv": tuple(known.CSV),
}


@functools.cache
def names(dialect: Dialect) -> Names:
    """Return the names of one output format, in lower case."""
    facts = _by_name(table.GPU, dialect)
    processes = (
        {name: row for row in table.PROCESS for name in row.names(dialect)} if dialect != "csv" else {}
    )
    unplaced = [name for name in _UNPLACED[dialect] if not name.endswith("*")]
    paths = [*facts, *processes, *_UNPLACED[dialect]]
    sections = {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    return Names(
        facts=facts,
        processes=processes,
        driver=_by_name(table.DRIVER, dialect),
        sections=frozenset(sections),
        unplaced=frozenset(unplaced),
        prefixes=tuple(name[:-1] for name in _UNPLACED[dialect] if name.endswith("*")),
    )


def _by_name(rows: tuple[Row, ...], dialect: Dialect) -> dict[str, Named]:
    return {name: Named(row, rank) for row in rows for rank, name in enumerate(row.names(dialect))}
