"""Ratios of measurements that differ in one condition, by the declared comparisons, with medians."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from gputopo.measurements.cells import Cell, ratio_noise
from gputopo.measurements.conditions import (
    COMPARISONS,
    MODE,
    SET,
    Comparison,
    holds,
    key,
    value_words,
)
from gputopo.measurements.scaling import Scaling


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One ratio: cell `above` over cell `below`. `noise`: standard error as a share; `holds`: beyond it."""

    above: int
    below: int
    n_gpus: int
    value: float
    noise: float
    holds: bool


class MedianRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The median of `of` ratios. `n_gpus`: of those of this number of GPUs, None: of all."""

    n_gpus: int | None
    value: float
    of: int


class RatioTable(msgspec.Struct, frozen=True, kw_only=True):
    """All ratios of the comparison `id` between two values; `above`, `below`: these in words."""

    id: str
    title: str
    above: str
    below: str
    rows: tuple[Ratio, ...]
    medians: tuple[MedianRatio, ...]


def ratio_tables(cells: Sequence[Cell], scalings: Sequence[Scaling]) -> tuple[RatioTable, ...]:
    """Return all comparisons that the cells allow, and the effect of the batch on scaling."""
    measured = [cell for cell in cells if cell.images_per_sec is not None]
    found = [table for one in COMPARISONS for table in _tables(one, measured)]
    return (*found, *_batch_on_scaling(cells, scalings))


def _tables(comparison: Comparison, cells: Iterable[Cell]) -> list[RatioTable]:
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        # One GPU exchanges nothing: its mode is no condition.
        free = (*MODE, "gpus") if cell.of.n_gpus == 1 and comparison.id != "gpu" else ()
        groups[key(cell.of, (comparison.by, *comparison.free, *free))].append(cell)
    rows: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for group in groups.values():
        for above, below in _pairs(comparison, group):
            names = tuple(
                value_words(comparison.by, getattr(one.of, comparison.by))
                if comparison.by != "framework"
                else one.of.program or "not stated"
                for one in (above, below)
            )
            rows[names[0], names[1]].append(ratio(above, below))
    return [
        _table(comparison.id, comparison.title, *names, some)
        if comparison.over or comparison.by == "batch_per_gpu"
        else _faster_above(comparison, names, some)
        for names, some in rows.items()
    ]


def _faster_above(comparison: Comparison, names: tuple[str, str], rows: Sequence[Ratio]) -> RatioTable:
    """Return the table with what is faster on the fewest GPUs above: names have no order of their own."""
    fewest = min(row.n_gpus for row in rows)
    if median(row.value for row in rows if row.n_gpus == fewest) >= 1:
        return _table(comparison.id, comparison.title, *names, rows)
    turned = [
        msgspec.structs.replace(row, above=row.below, below=row.above, value=1 / row.value) for row in rows
    ]
    return _table(comparison.id, comparison.title, names[1], names[0], turned)


def _pairs(comparison: Comparison, group: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    by: dict[Any, list[Cell]] = defaultdict(list)
    for cell in group:
        value = getattr(cell.of, comparison.by)
        if value is not None:
            by[(value, cell.of.method) if comparison.by == "framework" else value].append(cell)
    if comparison.over:
        wanted = [(above, below) for above, below in comparison.over if above in by and below in by]
    else:
        values = sorted(by, key=_order)
        wanted = [(value, values[0]) for value in values[1:]]
    for above, below in wanted:
        for one in by[above]:
            other = _best_match(one, by[below])
            if other is not None:
                yield one, other


def _order(value: Any) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _best_match(one: Cell, others: Sequence[Cell]) -> Cell | None:
    """Return the cell that is alike in most of what is free too, so that each has one partner."""
    return max(others, key=lambda other: _alike(one, other), default=None)


def _alike(one: Cell, other: Cell) -> int:
    names = (*MODE, *SET, "machine", "cpu", "version", "method", "distortions")
    return sum(getattr(one.of, name) == getattr(other.of, name) for name in names)


def ratio(above: Cell, below: Cell) -> Ratio:
    """Return the ratio of two cells that have figures."""
    value = (above.images_per_sec or 0.0) / (below.images_per_sec or 1.0)
    noise = ratio_noise(above, below)
    return Ratio(
        above=above.number,
        below=below.number,
        n_gpus=above.of.n_gpus,
        value=value,
        noise=noise,
        holds=holds(value, noise),
    )


def _table(id: str, title: str, above: str, below: str, rows: Sequence[Ratio]) -> RatioTable:
    numbers = sorted({row.n_gpus for row in rows})
    parts = [(number, [row.value for row in rows if row.n_gpus == number]) for number in numbers]
    medians = [MedianRatio(n_gpus=n, value=median(values), of=len(values)) for n, values in parts]
    total = MedianRatio(n_gpus=None, value=median(row.value for row in rows), of=len(rows))
    return RatioTable(
        id=id, title=title, above=above, below=below, rows=tuple(rows), medians=(*medians, total)
    )


def _batch_on_scaling(cells: Sequence[Cell], scalings: Sequence[Scaling]) -> list[RatioTable]:
    """Return the ratios of speedups with different batches: what the batch does to scaling alone."""
    by_job: dict[tuple[Any, ...], dict[int, Any]] = defaultdict(dict)
    for scaling in scalings:
        for row in scaling.rows:
            of = cells[row.cell].of
            free = ("batch_per_gpu", *MODE) if row.n_gpus == 1 else ("batch_per_gpu",)
            by_job[key(of, free)][of.batch_per_gpu or 0] = row
    rows: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for by_batch in by_job.values():
        smallest, *larger = sorted(by_batch)
        for batch in larger:
            one, other = by_batch[batch], by_batch[smallest]
            noise = (one.noise**2 + other.noise**2) ** 0.5
            value = one.speedup / other.speedup
            rows[str(batch), str(smallest)].append(
                Ratio(
                    above=one.cell,
                    below=other.cell,
                    n_gpus=one.n_gpus,
                    value=value,
                    noise=noise,
                    holds=holds(value, noise),
                )
            )
    return [
        _table("batch-scaling", "Larger batch over smaller, speedup", *names, some)
        for names, some in rows.items()
    ]
