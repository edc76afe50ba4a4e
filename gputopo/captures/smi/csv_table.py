"""`nvidia-smi --query-gpu=... --format=csv`, with units or without: text in, Machine out.

The first line names the columns. Where it was left out (`noheader`) the columns are unknown: then
only what is known by its form is read (a PCI address, a UUID, a performance state), one GPU a line, and
every line is Unread. A report of a GPU without an answer is a GPU, wherever it stands. Several queries
in one text are tables of one machine.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gputopo.captures import merge
from gputopo.captures.smi import unanswered, values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import machine, unread
from gputopo.captures.smi.names import Named, names
from gputopo.captures.smi.unanswered import Unanswered
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

SOURCE = "nvidia-smi --query-gpu"
READS = "`nvidia-smi --query-gpu=... --format=csv` with its first line"

_HINT = "capture again with --format=csv (not noheader), and copy all lines"
_LONGEST = 200  # the longest name of a column is far shorter
# Around the rows stand prompts and talk; these words of a line there are a message of the tool.
_PROMPT = re.compile(r"(?:\(\w+\) )?[^\s$%#>]{0,80}(?: \S{1,80})?[$%#>](?: .*)?")
_COMMAND = re.compile(r"\s*[#$]|.*\bnvidia-smi\S* +-")  # a comment, a prompt, a command line
_TROUBLE = re.compile(r"\b(?:error|unable|failed|failure|lost|not supported|unsupported)\b", re.IGNORECASE)
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_MEASURE = re.compile(r"-?\d[\d.]* (?:MiB|MHz|W|%)")
# What is known by its form, and its column.
_PROVEN = {
    "pci.bus_id": re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"),
    "uuid": re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "pstate": re.compile(r"P(?:\d|1[0-5])"),
}
# Columns of queries for programs and retired pages, which have a line for each of those.
_NOT_OF_GPUS = frozenset({"pid", "retired_pages.address", "retired_pages.cause"})
# By these a second reading of one GPU (`--loop`) differs from another GPU, the surest first; and their kinds.
_IDENTITIES = {
    "pci.bus_id": "address",
    "gpu_bus_id": "address",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "index": "count",
}


class _Line(NamedTuple):
    number: int
    text: str
    cells: tuple[str, ...]
    may_be_cut: bool


def recognise(text: str) -> bool:
    """Return whether the text has a line that names such columns, or is nothing but such lines without it."""
    lines = list(_lines(text))
    return any(map(_is_header, lines, _followers(lines))) or _is_headless(lines)


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line names the columns of a query, of whatever kind."""
    first, *below = _lines("\n".join(lines))
    return _is_header(first, next(iter(below), None)) or _is_other_query(first)


def parse(text: str, *, origin: str) -> Machine:
    """Read the GPUs, a line each. Raises InputError if no line fits the columns, or two have one index."""
    lines = list(_lines(text))
    tables: dict[tuple[str, ...], _Table] = {}
    table: _Table | None = None
    outside: list[_Line] = []
    for line, below in zip(lines, _followers(lines), strict=True):
        if _COMMAND.match(line.text):
            continue
        if _is_other_query(line):
            table = None
        elif _is_header(line, below):
            table = tables.setdefault(tuple(map(_column, line.cells)), _Table(origin, line))
        if table is None:
            outside.append(line)
        elif line is not table.head:
            table.take(line)
    if not tables:
        return _headless(lines)
    for line in outside:
        next(iter(tables.values())).take_unanswered(line)
    filled = [table for table in tables.values() if table.gpus or table.unanswered]
    if not filled:
        raise InputError(f"{origin}: the query's first line is there, and no GPU below it", _HINT)
    return merge.merge([table.machine() for table in filled])


def _lines(text: str) -> Iterator[_Line]:
    lines = text.splitlines()
    whole = text.endswith(("\n", "\r"))
    for number, line in enumerate(lines, start=1):
        if line.strip():
            last = number == len(lines) and not whole
            yield _Line(number, line, tuple(cell.strip() for cell in line.split(",")), last)


def _column(cell: str) -> str:
    return _UNIT.sub("", cell[:_LONGEST]).lower()


def _is_known(column: str) -> bool:
    known = names("csv")
    return column in known.facts or column in known.driver or known.is_unplaced(column)


def _followers(lines: Sequence[_Line]) -> list[_Line | None]:
    """Return the line below each."""
    return [*lines[1:], None][: len(lines)]


def _is_header(line: _Line, below: _Line | None) -> bool:
    """Return whether a line names the columns; where it names one only, a value must follow, and no list."""
    columns = [_column(cell) for cell in line.cells]
    if not all(columns) or _COMMAND.match(line.text) or _is_other_query(line):
        return False
    if len(columns) == 1:
        named = names("csv").facts.get(columns[0]) if "." in columns[0] or "[" in line.text else None
        return named is not None and below is not None and _is_value(named, below)
    known = sum(1 for column in columns if _is_known(column))
    return known >= 2 and 2 * known >= len(columns)


def _is_value(named: Named, line: _Line) -> bool:
    """Return whether a line is a value of a fact, or the reason why there is none."""
    silent = unanswered.read(line.text) is not None
    return silent or (len(line.cells) == 1 and not values.read(named.row.kind, line.text, bare=True).strange)


def _is_other_query(line: _Line) -> bool:
    """Return whether a line names the columns of a query for programs or for retired pages."""
    columns = [_column(cell) for cell in line.cells]
    return any(map(_is_known, columns)) and not _NOT_OF_GPUS.isdisjoint(columns)


def _is_headless(text: Sequence[_Line]) -> bool:
    lines = [line for line in text if unanswered.read(line.text) is None]
    if not lines or len({len(line.cells) for line in lines}) > 1 or len(lines[0].cells) < 2:
        return False
    return all(sum(1 for cell in line.cells if _is_value_cell(cell)) >= 2 for line in lines)


def _is_value_cell(cell: str) -> bool:
    return _MEASURE.fullmatch(cell) is not None or any(form.fullmatch(cell) for form in _PROVEN.values())


def _headless(lines: Sequence[_Line]) -> Machine:
    silent = [one for line in lines if (one := unanswered.read(line.text))]
    rows = [line for line in lines if unanswered.read(line.text) is None]
    gpus = {}
    for index, line in enumerate(rows):
        gpus[index] = ReportedGpu(names("csv"), queried=True)
        for column, form in _PROVEN.items():
            found = [cell for cell in line.cells if form.fullmatch(cell)]
            if len(found) == 1:
                gpus[index].add(Entry(column, found[0], line.number, line.text))
    return machine(
        SOURCE,
        unanswered.numbered(gpus, silent, names("csv"), own=False),
        driver_values=(),
        not_understood=[
            unread(SOURCE, line.number, f"{line.text} (no first line names the columns)") for line in rows
        ],
        attached=None,
        without_mask=False,
    )


@dataclass
class _Table:
    """The columns of one query, and the GPUs below them."""

    origin: str
    head: _Line
    gpus: dict[int, ReportedGpu] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # a GPU's identity: its index
    driver: list[tuple[Named, str]] = field(default_factory=list)
    attached: str | None = None
    unanswered: list[Unanswered] = field(default_factory=list)
    not_understood: list[Unread] = field(default_factory=list)
    between: list[_Line] = field(default_factory=list)  # lines of one cell since the last row

    def __post_init__(self) -> None:
        self.columns = [_column(cell) for cell in self.head.cells]
        self.numbers = "index" in self.columns
        for column, cell in zip(self.columns, self.head.cells, strict=True):
            if not _is_known(column):
                self._note(self.head.number, f"column {cell}")

    def take(self, line: _Line) -> None:
        """Take in a line: a GPU, the columns' names again, or something else."""
        if self.take_unanswered(line):
            return
        if [_column(cell) for cell in line.cells] == self.columns:
            self._settle(below_is_a_row=False)  # what stands above it came between two outputs
            return
        if len(line.cells) != len(self.columns) or self._is_talk(line):
            if len(line.cells) > 1:
                self._note(line.number, line.text)
            else:
                self.between.append(line)
            return
        self._settle(below_is_a_row=True)
        cells = dict(zip(self.columns, line.cells, strict=True))
        if line.may_be_cut and not values.is_whole(line.cells[-1]):
            self._note(line.number, f"{self.columns[-1]}: {line.cells[-1]} (the end, which may be cut)")
            del cells[self.columns[-1]]
        index = self._index(cells, line)
        if index is None:
            return
        gpu = self.gpus.setdefault(index, ReportedGpu(names("csv"), queried=True))
        gpu.visit += 1
        for column, cell in cells.items():
            self._cell(gpu, column, cell, line)

    def _is_talk(self, line: _Line) -> bool:
        """Return whether a line of one cell, below one column, is no value of it and no reason for none."""
        return len(self.columns) == 1 and not _is_value(names("csv").facts[self.columns[0]], line)

    def take_unanswered(self, line: _Line) -> bool:
        """Add a line if it reports that a GPU did not answer."""
        silent = unanswered.read(line.text)
        if silent is None:
            return False
        unanswered.lose(self.gpus, silent, own=self.numbers)
        self.unanswered.append(silent)
        return True

    def _settle(self, *, below_is_a_row: bool) -> None:
        """List the lines of one cell between two rows, and messages below them; prompts and talk are none."""
        for line in self.between:
            inside = below_is_a_row and self.gpus and _PROMPT.fullmatch(line.text.strip()) is None
            if inside or _TROUBLE.search(line.text):
                self._note(line.number, line.text)
        self.between = []

    def _index(self, cells: dict[str, str], line: _Line) -> int | None:
        read = ((name, values.read(kind, cells.get(name, ""))) for name, kind in _IDENTITIES.items())
        identity = next((f"{name} {value.value}" for name, value in read if value.value is not None), None)
        number = cells.get("index")
        if number is not None and re.fullmatch(r"\d{1,4}", number, re.ASCII) is None:
            self._note(line.number, line.text)
            return None
        index = len(self.gpus) if number is None else int(number)
        identity = identity or f"index {index}"
        if identity in self.seen:
            return self.seen[identity]
        if index in self.gpus:
            raise InputError(f"{self.origin}: line {line.number}: another GPU has the index {index}", _HINT)
        self.seen[identity] = index
        return index

    def _cell(self, gpu: ReportedGpu, column: str, cell: str, line: _Line) -> None:
        if column in names("csv").driver:
            self.driver.append((names("csv").driver[column], cell))
        elif column == "count":
            self.attached = self.attached or cell
        elif _is_known(column) and not gpu.add(Entry(column, cell, line.number, line.text)):
            self._note(line.number, f"{column}: {cell}")
        gpu.notice(cell)

    def machine(self) -> Machine:
        """Return the GPUs as a machine."""
        self._settle(below_is_a_row=False)
        return machine(
            SOURCE,
            unanswered.numbered(self.gpus, self.unanswered, names("csv"), own=self.numbers),
            driver_values=self.driver,
            not_understood=self.not_understood,
            attached=self.attached,
            without_mask=False,
        )

    def _note(self, line: int, text: str) -> None:
        self.not_understood.append(unread(SOURCE, line, text))
