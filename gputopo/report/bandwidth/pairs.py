"""Pairs of GPUs: the range of each kind of copy, and as matrices (row: source, column: destination)."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.report.bandwidth.numbers import ENGINE, Numbers, cell, number, value_of
from gputopo.report.bandwidth.part import Part
from gputopo.report.layout import NOT_ASKED, Column
from gputopo.values.bandwidth import Failure, Kind, Method, Path, Sample

_ANY: tuple[Method | None, ...] = (*ENGINE, "kernel_read", "kernel_write")
_Pair = tuple[int, int]
_Found = tuple[Sample | None, Failure | None]


class _PairCopy(NamedTuple):
    """A kind of copy between two GPUs: its name in the list, the title of its matrix, its samples.

    `expected`: the title of the matrix of what is expected, None for copies without. `is_time`: the larger
    the number, the slower.
    """

    name: str
    title: str
    of: Callable[[int, int], _Found]
    expected: str | None = None
    is_time: bool = False


def pair_parts(numbers: Numbers, *, matrices: bool) -> list[Part]:
    """Return a matrix for each kind of copy that was measured or tried, or one table of their ranges.

    The heat map shows the better path of each pair, so the matrices are made only where they are asked for.
    """
    if not matrices:
        ranges = _ranges(numbers)
        return [] if ranges is None else [ranges]
    parts: list[Part | None] = []
    for copy in _copies(numbers):
        found = {pair: copy.of(*pair) for pair in _pairs(numbers)}
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
    found = [(copy, {pair: copy.of(*pair) for pair in _pairs(numbers)}) for copy in _copies(numbers)]
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
    slow, fast = (high, low) if copy.is_time else (low, high)
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


def _pairs(numbers: Numbers) -> list[_Pair]:
    return [(a, b) for a in numbers.gpus for b in numbers.gpus if a != b]


def _is_known(found: _Found) -> bool:
    """Whether a pair was measured or tried."""
    sample, failure = found
    return value_of(sample) is not None or failure is not None


def _is_whole(pairs: dict[_Pair, _Found]) -> bool:
    return all(value_of(sample) is not None for sample, _ in pairs.values())


def _expected_of(found: _Found) -> float | None:
    sample, _ = found
    return None if sample is None else sample.expected_gb_per_s


def _copies(numbers: Numbers) -> list[_PairCopy]:
    def speed(
        kind: Kind, methods: Sequence[Method | None] = ENGINE, path: Path | None = None
    ) -> Callable[[int, int], _Found]:
        return lambda a, b: (
            numbers.between(kind, a, b, path=path, methods=methods),
            numbers.failure(kind, a, b, path=path, methods=methods),
        )

    return [
        _PairCopy(
            "direct",
            "Direct copies, GB/s (row to column)",
            speed("p2p_direct"),
            "Direct copies: expected, GB/s",
        ),
        _PairCopy(
            "through the host",
            "Staged through the host, GB/s (row to column)",
            speed("p2p_staged"),
            "Staged through the host: expected, GB/s",
        ),
        _PairCopy(
            "a kernel reads",
            "Direct, read by a kernel on the column's GPU, GB/s",
            speed("p2p_direct", ("kernel_read",)),
        ),
        _PairCopy(
            "a kernel writes",
            "Direct, written by a kernel on the row's GPU, GB/s",
            speed("p2p_direct", ("kernel_write",)),
        ),
        _PairCopy(
            "bidirectional, direct",
            "Bidirectional, direct, GB/s (sum)",
            speed("bidirectional", _ANY, "direct"),
        ),
        _PairCopy(
            "bidirectional, host",
            "Bidirectional, staged, GB/s (sum)",
            speed("bidirectional", _ANY, "staged"),
        ),
        _PairCopy(
            "latency us, direct",
            "Latency, direct, us (row to column)",
            speed("latency", _ANY, "direct"),
            is_time=True,
        ),
        _PairCopy(
            "latency us, host",
            "Latency, staged, us (row to column)",
            speed("latency", _ANY, "staged"),
            is_time=True,
        ),
    ]
