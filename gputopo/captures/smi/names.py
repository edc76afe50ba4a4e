"""The names of each fact in the three dialects of `nvidia-smi`: XML, text and CSV.

Fields declare their names themselves (gputopo.values.gpu). Names of facts without a field are in
gputopo.captures.smi.key_names.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gputopo.captures.smi import unplaced_names
from gputopo.captures.smi.key_names import OF_KEYS
from gputopo.values.fields import Smi, fields_of
from gputopo.values.machine import Driver, Gpu, GpuProcess

_NO_TAG = re.compile(r"[^a-z0-9*/]+")  # characters of text headings that are `_` in XML tags

Dialect = Literal["xml", "text", "csv"]


class NameRow(NamedTuple):
    """A fact by its path in the Gpu, how its value is written (see values.py), and its names."""

    fact: str
    kind: str
    smi: Smi

    def names(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the names in one dialect in lower case, the preferred one first."""
        listed = getattr(self.smi, dialect)
        return tuple(map(str.lower, (listed,) if isinstance(listed, str) else listed))


def _declared(kind: type[msgspec.Struct]) -> Iterable[NameRow]:
    for path, field in fields_of(kind).items():
        if field.smi is not None and field.leaf and "[]" not in path:
            yield NameRow(path, field.smi.kind or field.unit, field.smi)


DRIVER = tuple(_declared(Driver))
PROCESS = tuple(_declared(GpuProcess))
GPU = (*_declared(Gpu), *(NameRow(fact, smi.kind or "", smi) for fact, smi in OF_KEYS.items()))


class Named(NamedTuple):
    """A fact and how its value is written, as in a `NameRow`; `rank`: of this name, 0 is the best."""

    fact: str
    kind: str
    rank: int


class Names(NamedTuple):
    """The names of one output format."""

    facts: dict[str, Named]
    processes: dict[str, Named]
    driver: dict[str, Named]
    sections: frozenset[str]
    unplaced: frozenset[str]
    prefixes: tuple[str, ...]

    def is_unplaced(self, path: str) -> bool:
        """Return whether a name, or a name above it, is known and has no place in a Machine.

        A name that a field declares has a place, even if a name above it has none.
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
        """Return the path of a name under the nearest heading above that has such a name."""
        for depth in range(len(above), -1, -1):
            path = "/".join([*above[:depth], name])
            listed = (self.facts, self.processes, self.sections, self.unplaced)
            if any(path in paths for paths in listed) or path.startswith(self.prefixes):
                return path
        return None

    def completed(self, path: str) -> str:
        """Return the path of a fragment with the headings cut off above it, if exactly one path fits."""
        known = {*self.facts, *self.processes, *self.sections}
        whole = [one for one in known if one.endswith(f"/{path}")] if path not in known else []
        return whole[0] if len(whole) == 1 else path

    def below(self, section: str) -> list[Named]:
        """Return the facts that are reported under a section."""
        return [named for name, named in self.facts.items() if name.startswith(f"{section}/")]


@functools.cache
def names(dialect: Dialect) -> Names:
    """Return the names of one output format, in lower case."""
    facts = _by_name(GPU, dialect)
    processes = _by_name(PROCESS, dialect)
    passed = {
        "text": unplaced_names.TEXT,
        "xml": (*unplaced_names.XML, *(_NO_TAG.sub("_", path) for path in unplaced_names.TEXT)),
        "csv": unplaced_names.CSV,
    }[dialect]
    unplaced = [name for name in passed if not name.endswith("*")]
    paths = [*facts, *processes, *passed]
    sections = {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    return Names(
        facts=facts,
        processes=processes,
        driver=_by_name(DRIVER, dialect),
        sections=frozenset(sections),
        unplaced=frozenset(unplaced),
        prefixes=tuple(name[:-1] for name in passed if name.endswith("*")),
    )


def _by_name(rows: tuple[NameRow, ...], dialect: Dialect) -> dict[str, Named]:
    return {
        name: Named(row.fact, row.kind, rank) for row in rows for rank, name in enumerate(row.names(dialect))
    }
