"""The words for cells of a study in tables."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gputopo.values.run.measurement import CONDITIONS
from gputopo.values.study import Cell


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


def devices_word(cells: Iterable[Cell]) -> str:
    """Return what the devices of cells are: `GPUs`, `CPU devices`; `devices` where there are both."""
    words = {cell.of.device_word for cell in cells}
    return f"{words.pop()}s" if len(words) == 1 else "devices"


def speed_unit(cells: Iterable[Cell]) -> str:
    """Return the unit of the speeds of cells: `images/sec`; `per second` if they count different things."""
    units = {cell.of.unit for cell in cells}
    return f"{units.pop()}/sec" if len(units) == 1 else "per second"
