"""Pairs of GPUs as matrices: a row is where a copy comes from, a column where it goes."""

from collections.abc import Callable, Sequence

from gputopo.bandwidth import Kind, Method, Path
from gputopo.report.bandwidths.numbers import ENGINE, Numbers, cell, number
from gputopo.report.bandwidths.part import Part
from gputopo.report.layout import NOT_ASKED, Column

_ANY: tuple[Method | None, ...] = (*ENGINE, "kernel_read", "kernel_write")
_Cell = Callable[[int, int], str]


def pair_parts(numbers: Numbers) -> list[Part]:
    """Give a matrix for each way to copy between GPUs that was measured or tried."""
    parts = [matrix(numbers.gpus, title, of) for title, of in _matrices(numbers)]
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


def _matrices(numbers: Numbers) -> list[tuple[str, _Cell]]:
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
        ("Direct copies, GB/s (row to column)", speed("p2p_direct")),
        ("Direct copies: expected, GB/s", expected("p2p_direct")),
        ("Staged through the host, GB/s (row to column)", speed("p2p_staged")),
        ("Staged through the host: expected, GB/s", expected("p2p_staged")),
        ("Direct, read by a kernel on the column's GPU, GB/s", speed("p2p_direct", ("kernel_read",))),
        ("Direct, written by a kernel on the row's GPU, GB/s", speed("p2p_direct", ("kernel_write",))),
        ("Both ways at once, direct, GB/s (sum)", speed("bidirectional", _ANY, "direct")),
        ("Both ways at once, staged, GB/s (sum)", speed("bidirectional", _ANY, "staged")),
        ("Latency, direct, us (row to column)", speed("latency", _ANY, "direct")),
        ("Latency, staged, us (row to column)", speed("latency", _ANY, "staged")),
    ]
