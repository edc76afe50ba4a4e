"""Pairs of GPUs: the range of each kind of copy, and as matrices (row: source, column: destination)."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gputopo.report.bandwidth.numbers import ENGINE, Numbers, cell, number, value_of
from gputopo.report.bandwidth.part import Part
from gputopo.report.layout import NOT_ASKED, Column
from gputopo.values.bandwidth import Failure, Kind, Method, Path, Sample

_Pair = tuple[int, int]
_Found = tuple[Sample | None, Failure | None]


class _PairCopy(NamedTuple):
    """A kind of copy between two GPUs: its name in the list, the title of its matrix, its samples.

    `expected`: the title of the matrix of what is expected, None for copies without.
    """

    name: str
    title: str
    kind: Kind
    path: Path | None = None
    methods: tuple[Method | None, ...] = ENGINE
    expected: str | None = None

    def of(self, numbers: Numbers, a: int, b: int) -> _Found:
        """Return what was measured from GPU `a` to GPU `b`, and what failed."""
        return (
            numbers.between(self.kind, a, b, path=self.path, methods=self.methods),
            numbers.failure(self.kind, a, b, path=self.path, methods=self.methods),
        )


_READ: tuple[Method, ...] = ("kernel_read",)
_WRITE: tuple[Method, ...] = ("kernel_write",)
_ANY: tuple[Method | None, ...] = (*ENGINE, *_READ, *_WRITE)
_DIRECT, _STAGED = "Direct copies", "Staged through the host"
_ROW = "(row to column)"
_COPIES = (
    _PairCopy("direct", f"{_DIRECT}, GB/s {_ROW}", "p2p_direct", expected=f"{_DIRECT}: expected, GB/s"),
    _PairCopy(
        "through the host", f"{_STAGED}, GB/s {_ROW}", "p2p_staged", expected=f"{_STAGED}: expected, GB/s"
    ),
    _PairCopy(
        "a kernel reads",
        "Direct, read by a kernel on the column's GPU, GB/s",
        "p2p_direct",
        methods=_READ,
    ),
    _PairCopy(
        "a kernel writes",
        "Direct, written by a kernel on the row's GPU, GB/s",
        "p2p_direct",
        methods=_WRITE,
    ),
    _PairCopy("bidirectional, direct", "Bidirectional, direct, GB/s (sum)", "bidirectional", "direct", _ANY),
    _PairCopy("bidirectional, host", "Bidirectional, staged, GB/s (sum)", "bidirectional", "staged", _ANY),
    _PairCopy("latency us, direct", f"Latency, direct, us {_ROW}", "latency", "direct", _ANY),
    _PairCopy("latency us, host", f"Latency, staged, us {_ROW}", "latency", "staged", _ANY),
)


def pair_parts(numbers: Numbers, *, matrices: bool) -> list[Part]:
    """Return a matrix for each kind of copy that was measured or tried, or one table of their ranges.

    The heat map shows the better path of each pair, so the matrices are made only where they are asked for.
    """
    if not matrices:
        ranges = _ranges(numbers)
        return [] if ranges is None else [ranges]
    parts: list[Part | None] = []
    for copy in _COPIES:
        found = _found(numbers, copy)
        shown = {pair: cell(*one) for pair, one in found.items() if _is_known(one)}
        parts.append(_matrix(numbers.gpus, copy.title, shown))
        if copy.expected is not None:
            limits = {pair: number(_expected_of(one)) for pair, one in found.items() if _expected_of(one)}
            parts.append(_matrix(numbers.gpus, copy.expected, limits))
    return [part for part in parts if part is not None]


def _matrix(gpus: Sequence[int], title: str, cells: dict[_Pair, str]) -> Part | None:
    """Return the matrix of these ordered pairs, None if there are none."""
    if not cells:
        return None
    columns = tuple(
        Column(f"GPU{b}", tuple("" if a == b else cells.get((a, b), NOT_ASKED) for a in gpus), side="right")
        for b in gpus
    )
    return Part(title, head=Column("", tuple(f"GPU{gpu}" for gpu in gpus)), groups=(columns,))


def _ranges(numbers: Numbers) -> Part | None:
    """Return a row for each kind of copy: slowest pair, median, fastest, and how many pairs were measured."""
    found = [(copy, _found(numbers, copy)) for copy in _COPIES]
    rows = [(copy, pairs) for copy, pairs in found if any(map(_is_known, pairs.values()))]
    if not rows:
        return None
    names, cells = [copy.name for copy, _ in rows], [_range(copy, pairs) for copy, pairs in rows]
    heads = ("slowest", "(pair)", "median", "fastest", "expected", "pairs", "failed")
    shown = [
        Column(head, column, side="right")
        for head, column in zip(heads, zip(*cells, strict=True), strict=True)
        if any(one != NOT_ASKED for one in column)
    ]
    if all(_is_whole(pairs) for _, pairs in rows):
        shown = [column for column in shown if column.head != "pairs"]
    return Part(
        "Between GPUs, GB/s (bidirectional: the sum of both)",
        head=Column("", tuple(names)),
        groups=(tuple(shown),),
        notes=("--matrices shows each pair of each kind of copy; --json has every number.",),
    )


def _range(copy: _PairCopy, pairs: dict[_Pair, _Found]) -> tuple[str, ...]:
    values = {pair: value for pair, (sample, _) in pairs.items() if (value := value_of(sample)) is not None}
    failed = sum(failure is not None and pair not in values for pair, (_, failure) in pairs.items())
    low, high = min(values.values(), default=None), max(values.values(), default=None)
    slow, fast = (high, low) if copy.kind == "latency" else (low, high)
    a, b = next((pair for pair, value in values.items() if value == slow), (None, None))
    limits = [_expected_of(pairs[pair]) for pair in values] if copy.expected else []
    return (
        number(slow),
        NOT_ASKED if a is None else f"{a} to {b}",
        number(median(values.values()) if values else None),
        number(fast),
        _span([limit for limit in limits if limit is not None]),
        f"{len(values)} of {len(pairs)}",
        str(failed) if failed else NOT_ASKED,
    )


def _span(values: Sequence[float]) -> str:
    """Return the smallest and the largest number, or the one that both are."""
    if not values:
        return NOT_ASKED
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _found(numbers: Numbers, copy: _PairCopy) -> dict[_Pair, _Found]:
    """Return what was found of each ordered pair."""
    return {(a, b): copy.of(numbers, a, b) for a in numbers.gpus for b in numbers.gpus if a != b}


def _is_known(found: _Found) -> bool:
    """Whether a pair was measured or tried."""
    sample, failure = found
    return value_of(sample) is not None or failure is not None


def _is_whole(pairs: dict[_Pair, _Found]) -> bool:
    return all(value_of(sample) is not None for sample, _ in pairs.values())


def _expected_of(found: _Found) -> float | None:
    sample, _ = found
    return None if sample is None else sample.expected_gb_per_s
