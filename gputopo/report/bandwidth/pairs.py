"""Pairs of GPUs: how far each way to copy reaches, and as matrices (row: from where, column: to where)."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.report.bandwidth.numbers import ENGINE, Numbers, cell, number
from gputopo.report.bandwidth.part import Part
from gputopo.report.layout import FAILED, NOT_ASKED, Column
from gputopo.values.bandwidth import Kind, Method, Path

_ANY: tuple[Method | None, ...] = (*ENGINE, "kernel_read", "kernel_write")
_Cell = Callable[[int, int], str]


class _Way(NamedTuple):
    """A way to copy between two GPUs: its name in a list, the title of its matrix, and its cells."""

    name: str
    title: str
    of: _Cell
    expected: _Cell | None = None
    is_time: bool = False  # the larger the number, the slower


def pair_parts(numbers: Numbers, *, matrices: bool) -> list[Part]:
    """Give a matrix for each way between GPUs that was measured or tried, or one table of their ranges.

    The heat map tells the better way of each pair, so the matrices are for those who ask.
    """
    if not matrices:
        ranges = _ranges(numbers)
        return [] if ranges is None else [ranges]
    parts: list[Part | None] = []
    for way in _ways(numbers):
        parts.append(matrix(numbers.gpus, way.title, way.of))
        if way.expected is not None:
            parts.append(matrix(numbers.gpus, f"{way.title.partition(',')[0]}: expected, GB/s", way.expected))
    return [part for part in parts if part is not None]


def matrix(gpus: Sequence[int], title: str, of: _Cell) -> Part | None:
    """Give the matrix of a number for each ordered pair, None where no pair has one."""
    rows = [[NOT_ASKED if a == b else of(a, b) for b in gpus] for a in gpus]
    if all(one == NOT_ASKED for row in rows for one in row):
        return None
    for place, row in enumerate(rows):
        row[place] = ""
    columns = tuple(
        Column(f"GPU{gpu}", tuple(row[place] for row in rows), side="right") for place, gpu in enumerate(gpus)
    )
    return Part(title, head=Column("", tuple(f"GPU{gpu}" for gpu in gpus)), groups=(columns,))


def _ranges(numbers: Numbers) -> Part | None:
    """Give a row for each way: its slowest pair, median and fastest, and of how many pairs it is told."""
    ordered = [(a, b) for a in numbers.gpus for b in numbers.gpus if a != b]
    rows: list[tuple[str, ...]] = []
    for way in _ways(numbers):
        cells = {pair: way.of(*pair) for pair in ordered}
        told = {pair: float(one) for pair, one in cells.items() if one not in (NOT_ASKED, FAILED)}
        failed = sum(one == FAILED for one in cells.values())
        if not told and not failed:
            continue
        slow, fast = (max, min) if way.is_time else (min, max)
        slowest = slow(told, key=told.__getitem__, default=None)
        fastest = fast(told, key=told.__getitem__, default=None)
        rows.append(
            (
                way.name,
                NOT_ASKED if slowest is None else cells[slowest],
                NOT_ASKED if slowest is None else f"{slowest[0]} to {slowest[1]}",
                number(median(told.values())) if told else NOT_ASKED,
                NOT_ASKED if fastest is None else cells[fastest],
                _expected(way, told),
                f"{len(told)} of {len(ordered)}",
                str(failed) if failed else NOT_ASKED,
            )
        )
    if not rows:
        return None
    names, *columns = zip(*rows, strict=True)
    heads = ("slowest", "(pair)", "median", "fastest", "expected", "pairs", "failed")
    shown = tuple(
        Column(head, cells, side="right")
        for head, cells in zip(heads, columns, strict=True)
        if any(one not in (NOT_ASKED, f"{len(ordered)} of {len(ordered)}") for one in cells)
    )
    return Part(
        "Between GPUs, GB/s (both ways: the sum of the two)",
        head=Column("", names),
        groups=(shown,),
        notes=("--matrices shows each pair of each way; --json has every number.",),
    )


def _expected(way: _Way, told: dict[tuple[int, int], float]) -> str:
    """Give what the pairs should carry, from the least to the most of them."""
    cells = [way.expected(*pair) for pair in told] if way.expected else []
    found = sorted({one for one in cells if one != NOT_ASKED}, key=float)
    return NOT_ASKED if not found else found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _ways(numbers: Numbers) -> list[_Way]:
    def speed(kind: Kind, methods: Sequence[Method | None] = ENGINE, path: Path | None = None) -> _Cell:
        return lambda a, b: cell(
            numbers.between(kind, a, b, path=path, methods=methods),
            numbers.failure(kind, a, b, path=path, methods=methods),
        )

    def expected(kind: Kind) -> _Cell:
        def shown(a: int, b: int) -> str:
            sample = numbers.between(kind, a, b)
            return number(None if sample is None else sample.expected_gb_per_s)

        return shown

    return [
        _Way(
            "direct",
            "Direct copies, GB/s (row to column)",
            speed("p2p_direct"),
            expected("p2p_direct"),
        ),
        _Way(
            "through the host",
            "Staged through the host, GB/s (row to column)",
            speed("p2p_staged"),
            expected("p2p_staged"),
        ),
        _Way(
            "a kernel reads",
            "Direct, read by a kernel on the column's GPU, GB/s",
            speed("p2p_direct", ("kernel_read",)),
        ),
        _Way(
            "a kernel writes",
            "Direct, written by a kernel on the row's GPU, GB/s",
            speed("p2p_direct", ("kernel_write",)),
        ),
        _Way(
            "both ways, direct",
            "Both ways at once, direct, GB/s (sum)",
            speed("bidirectional", _ANY, "direct"),
        ),
        _Way(
            "both ways, host",
            "Both ways at once, staged, GB/s (sum)",
            speed("bidirectional", _ANY, "staged"),
        ),
        _Way(
            "latency us, direct",
            "Latency, direct, us (row to column)",
            speed("latency", _ANY, "direct"),
            is_time=True,
        ),
        _Way(
            "latency us, host",
            "Latency, staged, us (row to column)",
            speed("latency", _ANY, "staged"),
            is_time=True,
        ),
    ]
