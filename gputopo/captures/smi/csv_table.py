"""`nvidia-smi --query-gpu=... --format=csv`, with units or without: text in, Machine out.

The first line has the column names. A line that reports a GPU without an answer adds that GPU, wherever the
line is. Several queries in one text are tables of one machine. Each reading in a log (`-l 1`) is a sample;
series.py decides which samples are stored.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.captures import merging
from gputopo.captures.ledger import Claims, Format, filled, unread
from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import Entry, ReportedGpu
from gputopo.captures.smi.machine import (
    Unanswered,
    machine,
    parse_unanswered,
    read_unanswered,
    with_unanswered,
)
from gputopo.captures.smi.names import Named, names
from gputopo.captures.smi.series import Clock, LogSeries, groups, is_fixed
from gputopo.values.errors import InputError
from gputopo.values.machine import Gap, Machine, Sample, Unread
from gputopo.values.samples import facts_of, of_sample, without_settings

SOURCE = "nvidia-smi --query-gpu"

_HINT = "capture again with --format=csv (not noheader), and copy all lines"
_LONGEST = 200  # the longest name of a column is far shorter
_COMMAND = re.compile(r"\s*[#$]|.*\bnvidia-smi\S* +-")  # a comment, a prompt, a command line
_QUERY = re.compile(r"\bnvidia-smi\b(?=.*\bnoheader\b).{0,200}?--query-gpu[= ]\"?([\w.,]{2,2000})\b")
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
# Columns of queries for programs and retired pages, whose lines are programs or pages, not GPUs.
_NOT_OF_GPUS = frozenset({"pid", "retired_pages.address", "retired_pages.cause"})
# Columns that identify a GPU, the most reliable first, and their kinds. They distinguish a second reading of
# one GPU (`--loop`) from another GPU.
_IDENTITIES = {
    "pci.bus_id": "address",
    "gpu_bus_id": "address",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "index": "count",
}


_LEFT_OUT = "(left out)"  # replaces a cell


class _Line(NamedTuple):
    number: int
    text: str
    cells: tuple[str, ...]
    may_be_cut: bool


_Rows = list[tuple[int, _Line]]  # the rows of one sample, each with its GPU's index


def detect(text: str) -> bool:
    """Return whether the text has a line of such column names."""
    followed = pairwise(chain(_lines(text), [None]))
    return any(line is not None and _is_header(line, below) for line, below in followed)


def is_whole(text: str) -> bool:
    """Return whether a text is one query's output from start to end; only its last line may be cut."""
    head = next(_lines(text.partition("\n")[0]), None)
    if head is None or len(head.cells) == 1 or not _is_header(head, None):
        return False
    return all(line.count(",") == len(head.cells) - 1 for line in text.splitlines()[:-1])


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line has the column names of a query, of any kind."""
    if "," not in lines[0] and not any(map(_names_column, _cells(lines[0]))):
        return False
    first, *below = _lines("\n".join(lines))
    return _is_header(first, next(iter(below), None)) or _is_other_query(first)


class _Scan(NamedTuple):
    """The tables of a text, the lines outside of them, and the numbers of the lines of other queries."""

    tables: list["_Table"]
    outside: list[_Line]
    known: set[int]


def _scan(text: str, origin: str) -> _Scan:
    tables: dict[tuple[str, ...], _Table] = {}
    table: _Table | None = None
    outside: list[_Line] = []
    known: set[int] = set()
    width = 0  # number of columns of another query
    for line, below in pairwise(chain(_lines(text), [None])):
        assert line is not None
        if table is not None and table.is_plain_row(line):
            table.rows.append(line)
            continue
        if _COMMAND.match(line.text):
            continue
        if _is_other_query(line):
            table, width = None, len(line.cells)
        elif _is_header(line, below):
            table = tables.setdefault(tuple(map(_column, line.cells)), _Table(origin, line))
        if table is None:
            if len(line.cells) == width:
                known.add(line.number)
            outside.append(line)
        elif line is not table.head:
            table.take(line)
    return _Scan([*tables.values()], outside, known)


def claims(text: str) -> Claims:
    """Return as read the column names and matching lines below, as known the lines of other queries."""
    scan = _scan(text, "")
    silent = {number for number, line in filled(text).items() if parse_unanswered(line)}
    return Claims(
        frozenset(silent.union(*(table.line_numbers() for table in scan.tables))), frozenset(scan.known)
    )


def parse(text: str, *, origin: str) -> Machine:
    """Read the GPUs, one per line. Raises InputError if no line fits the columns or GPUs share an index."""
    scan = _scan(text, origin)
    unanswered = read_unanswered(text.splitlines())
    tables = [table for table in scan.tables if table.rows] or scan.tables[: len(unanswered)]
    if not tables:
        raise InputError(f"{origin}: the query's first line is there, and no GPU below it", _HINT)
    return merging.merge([table.machine(unanswered) for table in tables])


def _lines(text: str) -> Iterator[_Line]:
    lines = text.splitlines()
    whole = text.endswith("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            last = number == len(lines) and not whole
            if query := _QUERY.search(line):  # the query's columns, which the output does not have
                line = query[1].replace(",", ", ")
            yield _Line(number, line, _cells(line), last)


def _cells(line: str) -> tuple[str, ...]:
    cells = line.strip().split(", ")  # as nvidia-smi writes them
    if len(cells) == line.count(",") + 1 and "  " not in line and "\t" not in line:
        return tuple(cells)
    return tuple([cell.strip() for cell in line.split(",")])


def _column(cell: str) -> str:
    return (_UNIT.sub("", cell[:_LONGEST]) if "[" in cell else cell[:_LONGEST]).lower()


def _is_known(column: str) -> bool:
    known = names("csv")
    return column in known.facts or column in known.driver or known.is_unplaced(column)


@functools.lru_cache(maxsize=4096)  # most cells of a log are repeated
def _names_column(cell: str) -> bool:
    return _is_known(_column(cell))


def _is_header(line: _Line, below: _Line | None) -> bool:
    """Return whether a line has the column names. A single name must precede a value, not a list."""
    known = sum(map(_names_column, line.cells))
    if known == 0 or _COMMAND.match(line.text) or _is_other_query(line):
        return False
    columns = [_column(cell) for cell in line.cells]
    if not all(columns):
        return False
    if len(columns) == 1:
        named = names("csv").facts.get(columns[0]) if "." in columns[0] or "[" in line.text else None
        return named is not None and below is not None and _is_value(named, below)
    return known >= 2 and 2 * known >= len(columns)


def _is_value(named: Named, line: _Line) -> bool:
    """Return whether a line is a value of a fact, or the reason why there is no value."""
    silent = parse_unanswered(line.text) is not None
    return silent or (len(line.cells) == 1 and not values.parse(named.kind, line.text, bare=True).strange)


def _is_other_query(line: _Line) -> bool:
    """Return whether a line has the column names of a query for programs or retired pages."""
    if not any(map(_names_column, line.cells)):
        return False
    return not _NOT_OF_GPUS.isdisjoint(map(_column, line.cells))


@dataclass
class _Table:
    """The columns of one query, and the rows below them."""

    origin: str
    head: _Line
    rows: list[_Line] = field(default_factory=list)
    heads: list[tuple[int, int]] = field(default_factory=list)  # repeated names: rows above, line
    index_of: dict[str, int] = field(default_factory=dict)  # index of each GPU, by its identity
    gaps: list[Gap] = field(default_factory=list)
    not_understood: list[Unread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [_column(cell) for cell in self.head.cells]
        self.numbers = "index" in self.columns
        self.identities = [at for at, column in enumerate(self.columns) if column in _IDENTITIES]
        self.indices: dict[tuple[str, ...], int | None] = {}  # indices of GPUs, by identifying cells
        for column, cell in zip(self.columns, self.head.cells, strict=True):
            if not _is_known(column):
                self._note(self.head.number, f"column {cell}")

    def is_plain_row(self, line: _Line) -> bool:
        """Return whether a line is surely a row: several cells, the first not a column name."""
        return (
            len(line.cells) == len(self.columns) > 1
            and not _names_column(line.cells[0])
            and not line.may_be_cut
            and line.text[0] not in "#$ \t"
            and "nvidia-smi" not in line.text
        )

    def take(self, line: _Line) -> None:
        """Read a line: a GPU, repeated column names, or something else."""
        if parse_unanswered(line.text):
            return
        if [_column(cell) for cell in line.cells] == self.columns:
            self.heads.append((len(self.rows), line.number))
            return
        if len(line.cells) != len(self.columns):
            return  # the ledger of lines lists it
        if len(self.columns) == 1 and not _is_value(names("csv").facts[self.columns[0]], line):
            return
        if line.may_be_cut and not values.is_whole(line.cells[-1]):
            self._note(line.number, f"{self.columns[-1]}: {line.cells[-1]} (the end, which may be cut)")
            line = line._replace(cells=(*line.cells[:-1], _LEFT_OUT))
        self.rows.append(line)

    def line_numbers(self) -> frozenset[int]:
        """Return the numbers of its lines."""
        return frozenset(
            (self.head.number, *(line for _, line in self.heads), *(line.number for line in self.rows))
        )

    def machine(self, unanswered: Iterable[Unanswered]) -> Machine:
        """Return the GPUs as a machine; if the text is a log, with the samples to store."""
        samples = self._samples()
        if len(samples) > 1:
            return self._series(samples, unanswered)
        return self._at(samples[0] if samples else [], unanswered)

    def _samples(self) -> list[_Rows]:
        """Return the rows of each sample, each with the index of its GPU."""
        keys = {tuple(line.cells[at] for at in self.identities): line for line in self.rows}
        if not self.identities or any(self._identity(line) is None for line in keys.values()):
            return [list(enumerate(self.rows[row] for row in rows)) for rows in self._groups()]
        samples: list[_Rows] = []
        seen: set[int] = set()
        for line in self.rows:
            key = tuple(line.cells[at] for at in self.identities)
            if key not in self.indices:
                self.indices[key] = self._new_index(line)
            index = self.indices[key]
            if index is None:
                continue
            if not samples or index in seen:
                samples.append([])
                seen = set()
            samples[-1].append((index, line))
            seen.add(index)
        return samples

    def _groups(self) -> list[range]:
        """Return the rows of each sample of a log whose rows do not identify their GPU."""
        clock, at = Clock(), self._place("timestamp")
        times = [None if at is None else clock.read(line.cells[at]) for line in self.rows]
        rows_of_samples = groups(times, [above for above, _ in self.heads])
        if left := len(self.rows) - sum(map(len, rows_of_samples)):
            words = f"{left} rows have no GPU and do not belong to a complete sample"
            self.gaps.append(Gap(source=SOURCE, text=words))
        return rows_of_samples

    def _place(self, column: str) -> int | None:
        return self.columns.index(column) if column in self.columns else None

    def _identity(self, line: _Line) -> str | None:
        """Return what identifies the GPU of a row, or None if the row has no identity."""
        cells = dict(zip(self.columns, line.cells, strict=True))
        read = ((name, values.parse(kind, cells.get(name, ""))) for name, kind in _IDENTITIES.items())
        return next((f"{name} {value.value}" for name, value in read if value.value is not None), None)

    def _new_index(self, line: _Line) -> int | None:
        at = self._place("index")
        number = None if at is None else line.cells[at]
        if number is not None and re.fullmatch(r"\d{1,4}", number, re.ASCII) is None:
            self._note(line.number, line.text)
            return None
        index = len(self.index_of) if number is None else int(number)
        identity = self._identity(line) or f"index {index}"
        if identity in self.index_of:
            return self.index_of[identity]
        if index in self.index_of.values():
            raise InputError(f"{self.origin}: line {line.number}: another GPU has the index {index}", _HINT)
        self.index_of[identity] = index
        return index

    def _at(self, rows: _Rows, unanswered: Iterable[Unanswered]) -> Machine:
        """Return the machine of these rows, and of GPUs that did not answer."""
        driver: list[tuple[Named, str]] = []
        attached: str | None = None
        gpus = {index: self._gpu(line) for index, line in rows}
        for _, line in rows:
            for column, cell in zip(self.columns, line.cells, strict=True):
                if column in names("csv").driver:
                    driver.append((names("csv").driver[column], cell))
                elif column == "count":
                    attached = attached or cell
        return machine(
            SOURCE,
            with_unanswered(gpus, unanswered, names("csv"), numbered=self.numbers),
            driver_values=driver,
            not_understood=self.not_understood,
            attached=attached,
            time=self._time(rows),
            without_mask=False,
            gaps=self.gaps,
        )

    def _gpu(self, line: _Line) -> ReportedGpu:
        gpu = ReportedGpu(names("csv"), queried=True)
        for column, cell in zip(self.columns, line.cells, strict=True):
            if cell is _LEFT_OUT:
                continue
            of_gpu = column not in names("csv").driver and column != "count" and _is_known(column)
            if of_gpu and not gpu.add(Entry(column, cell, line.number, line.text)):
                self._note(line.number, f"{column}: {cell}")
            gpu.notice(cell)
        return gpu

    def _time(self, rows: _Rows) -> str | None:
        at = self._place("timestamp")
        return None if at is None or not rows else rows[0][1].cells[at]

    def _sample(self, rows: _Rows) -> Sample:
        return Sample(
            source=SOURCE,
            time=values.parse_time(self._time(rows) or ""),
            gpus=tuple(
                {"index": index} | of_sample(facts_of(self._gpu(line).gpu(index)[0])) for index, line in rows
            ),
        )

    def _series(self, samples: Sequence[_Rows], unanswered: Iterable[Unanswered]) -> Machine:
        """Return the GPUs of a log: its last whole sample, the samples to store, and counts over all."""
        last: dict[int, tuple[int, _Line]] = {  # the last row of each GPU, and the place of its sample
            index: (place, line) for place, rows in enumerate(samples) for index, line in rows
        }
        whole = (place for place in reversed(range(len(samples))) if len(samples[place]) == len(last))
        shown = next(whole, len(samples) - 1)
        rows = dict(samples[shown])
        facts = names("csv").facts
        is_lasting = [column not in facts or is_fixed(facts[column]) for column in self.columns]
        others = {
            index: line._replace(
                cells=tuple(
                    cell if lasts else _LEFT_OUT for cell, lasts in zip(line.cells, is_lasting, strict=True)
                )
            )
            for index, (_, line) in last.items()
            if index not in rows
        }
        for index, (place, _) in sorted(last.items()):
            if place < len(samples) - 2:
                words = (
                    f"GPU {index} is in none of the last {len(samples) - 1 - place} of {len(samples)} samples"
                )
                self.gaps.append(Gap(source=SOURCE, text=words))
        series = LogSeries([facts.get(column) for column in self.columns])
        stored = [self._sample(samples[place]) for place in sorted({*series.stored(samples), shown})]
        clock = Clock()
        times = [clock.read(self._time(each) or "") for each in samples]
        whole_log = self._at(sorted({**rows, **others}.items()), unanswered if self.numbers else ())
        lasting = {gpu.index: facts_of(gpu) for gpu in whole_log.gpus}
        lost = [{"index": gpu.index, "lost": True} for gpu in whole_log.gpus if gpu.lost]
        if lost:
            stored.append(Sample(source=SOURCE, time=stored[-1].time, gpus=tuple(lost)))
        return replace(
            whole_log,
            samples=tuple(without_settings(sample, lasting) for sample in stored),
            series=series.histories(samples, times),
        )

    def _note(self, line: int, text: str) -> None:
        self.not_understood.append(unread(SOURCE, line, text))


FORMAT = Format(
    "`nvidia-smi --query-gpu=... --format=csv` with the header line",
    "the queried facts; with `-l` a series of samples",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
