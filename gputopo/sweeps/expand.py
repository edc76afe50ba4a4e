"""The cells of a matrix on a machine: all combinations, without duplicates; none is dropped silently.

The caller checks each cell against the rules of `gputopo run`. A cell that they refuse stays in the list,
with the reason.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Literal, NamedTuple

import msgspec

from gputopo.sweeps.matrix import AT_MOST, MAX_CELLS, Matrix, MatrixTable, Value, When, is_bound, text_of
from gputopo.values.errors import UsageError
from gputopo.values.grouping import grouped
from gputopo.values.run.several_runs import SweepCell

Choice = dict[str, Value]
PAIRS_OF_A_LINK = 2  # for pairs-by-link: two pairs show whether pairs of one kind are equal
MAX_NAME = 60  # characters of a folder's name, without its number and its repeat


class CellBox(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a machine that decide which cells exist."""

    backend: Literal["cpu", "gpu"]
    gpus: tuple[int, ...] = ()  # indices of the usable GPUs
    links: dict[tuple[int, int], str] = {}  # of each pair (lower index first): PIX, PHB, NV2
    default_devices: int = 2  # for a run that does not give a number
    why_cpu: str = "No NVIDIA device"  # why there are CPU devices
    asked: frozenset[str] = frozenset()  # flags of `gputopo sweep`, by name

    @property
    def usable(self) -> str:
        """How many GPUs it has, in words."""
        return f"this machine has {len(self.gpus)} usable GPU{'' if len(self.gpus) == 1 else 's'}"


class Expanded(NamedTuple):
    """The cells in the order of the matrix; how many were excluded without a reason or were duplicates."""

    cells: tuple[SweepCell, ...]
    excluded: int
    duplicates: int

    def differences(self, before: Iterable[SweepCell]) -> tuple[int, int]:
        """Return how many cells are new, and how many of the cells `before` no longer exist."""

        def known(cells: Iterable[SweepCell]) -> set[tuple[Any, ...]]:
            return {
                (cell.name, cell.table, cell.repeat, cell.counted_s, *sorted(cell.options.items()))
                for cell in cells
            }

        new, old = known(self.cells), known(before)
        return len(new - old), len(old - new)


def expand_matrix(matrix: Matrix, box: CellBox) -> Expanded:
    """Return the cells of a matrix on a machine. Raises UsageError for more than MAX_CELLS of them."""
    tables = [(table, _axes(table, box)) for table in matrix.tables]
    total = sum(
        math.prod(map(len, axes.values())) * (table.repeats or matrix.repeats) for table, axes in tables
    )
    if total > MAX_CELLS:
        raise UsageError(f"the matrix has {total} cells", f"at most {MAX_CELLS} are run; remove some values")
    options = {name: _values(name, value, box)[0] for name, value in matrix.options.items()}
    seen: set[tuple[Any, ...]] = set()
    cells: list[SweepCell] = []
    excluded = duplicates = 0
    for table, axes in tables:
        for values in product(*axes.values()):
            choice = {**options, **dict(zip(axes, (value for value, _ in values), strict=True))}
            why = next((reason for _, reason in values if reason), None)
            cell = _cell(matrix, table, _given(choice), why, box)
            if cell is None:
                excluded += 1
                continue
            key = (table.name, *sorted(cell.options.items()))
            if key in seen:
                duplicates += 1
                continue
            seen.add(key)
            repeats = 1 if cell.reason is not None else table.repeats or matrix.repeats
            for repeat in range(1, repeats + 1):
                number = len(cells) + 1
                name = _name(number, cell, table, repeat if repeats > 1 else None)
                cells.append(msgspec.structs.replace(cell, number=number, name=name, repeat=repeat))
    return Expanded(tuple(cells), excluded, duplicates)


def _axes(table: MatrixTable, box: CellBox) -> dict[str, list[tuple[Value, str | None]]]:
    """Return the values of each option on this machine; for a word without a value, it and the reason."""
    why = box.usable
    if box.backend == "cpu":
        why = f"{box.why_cpu}: CPU devices share all cores and are equal"
    axes: dict[str, list[tuple[Value, str | None]]] = {}
    for name, values in table.axes.items():
        axes[name] = []
        for value in values:
            on_box = _values(name, value, box)
            axes[name] += [(known, None) for known in on_box] if on_box else [(value, why)]
    return axes


def _values(name: str, value: Value, box: CellBox) -> Sequence[Value]:
    pairs = list(combinations(sorted(box.gpus), 2))
    if name == "gpus" and value == "each":
        return [str(gpu) for gpu in box.gpus]
    if name == "gpus" and value == "pairs-by-link":
        by_link = grouped((box.links.get(pair, "unknown"), pair) for pair in pairs)
        pairs = [pair for alike in by_link.values() for pair in alike[:PAIRS_OF_A_LINK]]
    if name == "gpus" and value in ("pairs", "pairs-by-link"):
        return [f"{a},{b}" for a, b in pairs]
    count = len(box.gpus) if box.backend == "gpu" else box.default_devices
    if name == "num_gpus" and is_bound(value):
        return [min(int(str(value).removeprefix(AT_MOST)), count)]
    if name == "num_gpus" and value in ("doubling", "counted"):
        return [n for n in range(1, count + 1) if value == "counted" or n & (n - 1) == 0 or n == count]
    return [value]


def _cell(
    matrix: Matrix, table: MatrixTable, choice: Choice, why: str | None, box: CellBox
) -> SweepCell | None:
    """Return the cell of a combination on this machine, without number; None if the matrix excludes it.

    `why`: why it is skipped.
    """
    notes: tuple[str, ...] = ()
    seconds = table.seconds or matrix.seconds
    for when in matrix.sets:
        if _matches(when, _facts(table, choice, box)):
            choice, seconds = _given({**choice, **when.sets}), when.seconds or seconds
            notes = notes if when.reason is None else (*notes, when.reason)
    facts = _facts(table, choice, box)
    if matrix.only and not any(_matches(when, facts) for when in matrix.only):
        return None
    for when in matrix.exclude:
        if _matches(when, facts):
            if when.reason is None:
                return None
            why = why or when.reason
    if table.asked is not None and table.asked not in box.asked:
        why = f"only with --{table.asked.replace('_', '-')}"
    count = choice.get("num_gpus")
    if box.backend == "gpu" and isinstance(count, int) and count > len(box.gpus) and "gpus" not in choice:
        why = why or box.usable
    return SweepCell(
        number=0,
        name="",
        table=table.name,
        options={name: True if value is True else text_of(value) for name, value in choice.items()},
        state="pending" if why is None else "left_out",
        reason=why,
        notes=notes if why is None else (),
        counted_s=seconds,
    )


def _given(choice: Mapping[str, Value]) -> Choice:
    """Return the options that are given. The value false means not given."""
    return {name: value for name, value in choice.items() if value is not False}


def _facts(table: MatrixTable, choice: Choice, box: CellBox) -> dict[str, Value]:
    devices: Value = box.default_devices
    if "gpus" in choice and "num_gpus" not in choice:
        devices = text_of(choice["gpus"]).count(",") + 1
    return {"devices": choice.get("num_gpus", devices), **choice, "backend": box.backend, "table": table.name}


def _matches(when: When, facts: Mapping[str, Value]) -> bool:
    return all(
        any(_same(facts.get(name, False), value) for value in values) for name, values in when.match.items()
    )


def _same(fact: Value, value: Value) -> bool:
    if isinstance(fact, bool) or isinstance(value, bool):
        return fact is value
    return text_of(fact).replace("-", "_") == text_of(value).replace("-", "_")


def _name(number: int, cell: SweepCell, table: MatrixTable, repeat: int | None) -> str:
    """Return the name of a cell's folder; it has only letters, digits, -, _ and `.`."""
    words = [
        name if value is True else re.sub(r"[^A-Za-z0-9.,_]+", "_", str(value))
        for name, value in cell.options.items()
        if name in table.axes
    ]
    body = "-".join(words).replace(",", "+").strip("-._")[:MAX_NAME]
    return "-".join(filter(None, (f"{number:04d}", body, None if repeat is None else f"r{repeat}")))
