"""The words for cells of a study."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gputopo.values.run.measurement import CONDITIONS, Measurement
from gputopo.values.study import Cell

_NEVER = frozenset({"backend", "dataset", "gpus", "n_gpus"})
_WITH_MACHINE = ("cpu", "gpu", "version", "data_format", "xla")


def varying(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the conditions that differ among cells, so that they must be named.

    Of what was not run most conditions are unknown, which makes no difference; what is the same in all cells
    of a machine goes without saying.
    """
    some = [cell.of for cell in cells]
    names = [name for name in CONDITIONS if name not in _NEVER and len(stated(some, name)) > 1]
    if "machine" in names:
        known = {
            name: {(one.machine, value) for one in some if (value := getattr(one, name)) is not None}
            for name in _WITH_MACHINE
        }
        own = {name for name, pairs in known.items() if len(pairs) == len(dict(pairs))}
        names = [name for name in names if name not in own]
    return tuple(name for name in CONDITIONS if name in names or name == "model")


def stated(some: Iterable[Measurement], name: str) -> frozenset[Any]:
    """Return the values of a condition; None is one of a run that does not state it."""
    values = ((getattr(one, name), one.is_run) for one in some)
    return frozenset(value for value, is_run in values if is_run or value not in (None, ()))


def row_words(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """Return a name for each cell of a table with the devices beside it, no two alike.

    Cells with one name have in addition what they differ in, runs with drills their source.
    """
    alike: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    words = [cell.of.job_words(names) for cell in cells]
    for text, cell in zip(words, cells, strict=True):
        alike[text, cell.of.n_gpus, cell.of.gpus].append(cell)
    found = []
    for text, cell in zip(words, cells, strict=True):
        group = alike[text, cell.of.n_gpus, cell.of.gpus]
        parts = [text] if text else []
        if len(group) > 1:
            apart = [name for name in CONDITIONS if len({getattr(one.of, name) for one in group}) > 1]
            parts += [f"{CONDITIONS[name]} {cell.of.value_words(name)}" for name in apart]
            parts += [cell.of.source] if cell.of.is_drill else []
        found.append(", ".join(parts))
    return found


def shared_words(cells: Sequence[Cell], numbers: Iterable[int], names: Iterable[str]) -> str:
    """Return the conditions, of those named, that some cells share."""
    some = [cells[number].of for number in numbers]
    return some[0].job_words([name for name in names if len({getattr(one, name) for one in some}) == 1])


def devices_word(cells: Iterable[Cell]) -> str:
    """Return what the devices of cells are: `GPUs`, `CPU devices`; `devices` where there are both."""
    words = {cell.of.device_word for cell in cells}
    return f"{words.pop()}s" if len(words) == 1 else "devices"


def speed_unit(cells: Iterable[Cell]) -> str:
    """Return the unit of the speeds of cells: `images/sec`; `per second` if they count different things."""
    units = {cell.of.unit for cell in cells}
    return f"{units.pop()}/sec" if len(units) == 1 else "per second"
