"""The names of each fact in the three dialects of `nvidia-smi`: XML, text and CSV. One row a fact.

Fields declare their names themselves (gputopo.values.gpu). `names.csv` has those of what has no field of its
own (keys of dictionaries, questions that together make one fact), and with no fact known names without a
place in a Machine: a name stands for itself and all below it, `*` at the end for any ending. Its reasons are
called as in gputopo.reference.clock_events, its violation times (other counters than NVML's) as these.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gputopo.values.fields import fields_of, rows_of
from gputopo.values.machine import Driver, Gpu, GpuProcess


def _tags(path: str) -> str:
    """Return the tags of the XML for a heading of the text and those above it."""
    return "/".join(re.sub(r"[^a-z0-9*]+", "_", heading).strip("_") for heading in path.split("/"))


Dialect = Literal["xml", "text", "csv"]

_PLACE: dict[Dialect, int] = {"xml": 0, "text": 1, "csv": 2}


class NameRow(NamedTuple):
    """A fact of the Gpu (its path there), how its value is written (see values.py), and its names."""

    fact: str
    kind: str
    xml: str
    text: str
    csv: str = ""

    def names(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the names in one dialect, the preferred one first."""
        listed = (self.xml, self.text, self.csv)[_PLACE[dialect]].lower().split("|")
        return tuple(dict.fromkeys(name for name in listed if name))


def _declared(kind: type[msgspec.Struct]) -> Iterable[NameRow]:
    for path, field in fields_of(kind).items():
        if field.smi is not None and field.leaf and "[]" not in path:
            names = field.smi
            yield NameRow(path, names.kind or field.unit, names.xml, names.text, names.csv)


# Reported in every era: without these the list of reasons in force is not whole.
BASE_REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown")
# What a GPU needs before it can be used again. Drivers since 570 name the action (`GPU Recovery Action`),
# those from 530 answer two questions instead (nvml.h calls them deprecated in favour of the action).
RECOVERY = "recovery_action"
RESET_REQUIRED = f"{RECOVERY}.reset_required"
DRAIN_RECOMMENDED = f"{RECOVERY}.drain_and_reset_recommended"

# Fields that several rows make up: dictionaries, the list of reasons, the recovery action.
COLLECTED = ("throttle.reasons", "violation_ns", "ecc.counts", "fabric.health", RECOVERY)

_LISTED = tuple(NameRow(**row) for row in rows_of(__file__, "names.csv"))
DRIVER = tuple(_declared(Driver))
PROCESS = tuple(_declared(GpuProcess))
GPU = (*_declared(Gpu), *(row for row in _LISTED if row.fact))


class Named(NamedTuple):
    """A row, and how good this one of its names is: 0 is the best."""

    row: NameRow
    rank: int


class Names(NamedTuple):
    """The names of one output format."""

    facts: dict[str, Named]
    processes: dict[str, NameRow]
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

    def completed(self, path: str) -> str:
        """Return a path of a fragment with the headings above it that were cut off, if only one fits."""
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
    processes = {name: row for row in PROCESS for name in row.names(dialect)} if dialect != "csv" else {}
    passed = [name for row in _LISTED if not row.fact for name in row.names(dialect)]
    if dialect == "xml":  # its tags are the headings of the text, but for those with a name of their own
        passed += [_tags(name) for row in _LISTED if not row.fact for name in row.names("text")]
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
    return {name: Named(row, rank) for row in rows for rank, name in enumerate(row.names(dialect))}
