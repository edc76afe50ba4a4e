"""Ratios of measurements that differ in one condition, by the declared comparisons, with medians."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any

from gputopo.measurements.cells import COMPARISONS, SET, Comparison, holds, key, ratio_holds, ratio_noise
from gputopo.values.grouping import grouped
from gputopo.values.machine import Hop, Machine
from gputopo.values.run.measurement import MODE
from gputopo.values.study import (
    RUN_TO_RUN,
    Cell,
    MedianRatio,
    MedianScaling,
    PairRow,
    PairTable,
    Ratio,
    RatioTable,
    Scaling,
    ScalingRow,
)


def scalings_of(cells: Sequence[Cell]) -> tuple[Scaling, ...]:
    """Return the scaling of each job that ran on one GPU and on more, in the order of the cells.

    A job has the same batch per GPU for all numbers of GPUs (weak scaling). If a number of GPUs ran on
    several sets, each set has its own row. One-GPU figures without a mode, or with another mode, are used if
    there is none of the same mode.
    """
    measured = [cell for cell in cells if cell.images_per_sec is not None]
    alone = grouped((key(cell.of, (*SET, *MODE)), cell) for cell in measured if cell.of.n_gpus == 1)
    jobs = grouped((key(cell.of, SET), cell) for cell in measured if cell.of.n_gpus != 1)
    scalings = []
    for group in jobs.values():
        baselines = alone.get(key(group[0].of, (*SET, *MODE)), [])
        if not baselines:
            continue
        several = sorted(group, key=lambda cell: (cell.of.n_gpus, cell.of.gpus))
        rows = [_row(cell, _baseline(cell, baselines)) for cell in several]
        first = _baseline(several[0], baselines)
        scalings.append(Scaling(rows=(_row(first, first), *rows)))
    return tuple(scalings)


def medians_of(scalings: Iterable[Scaling]) -> tuple[MedianScaling, ...]:
    """Return the medians over all jobs, by number of GPUs, without the one-GPU figures."""
    by_number = grouped((row.n_gpus, row) for scaling in scalings for row in scaling.rows[1:])
    return tuple(
        MedianScaling(
            n_gpus=number,
            speedup=median(row.speedup for row in rows),
            efficiency_percent=median(row.efficiency_percent for row in rows),
            of=len(rows),
        )
        for number, rows in sorted(by_number.items())
    )


def _baseline(cell: Cell, alone: Sequence[Cell]) -> Cell:
    """Return the one-GPU figure of the same mode, else of a GPU of the set, else the fastest."""

    def rank(baseline: Cell) -> tuple[bool, bool, float]:
        shares_gpus = bool(set(baseline.of.gpus) & set(cell.of.gpus))
        return baseline.of.mode == cell.of.mode, shares_gpus, baseline.images_per_sec or 0.0

    return max(alone, key=rank)


def _row(cell: Cell, baseline: Cell) -> ScalingRow:
    speed = cell.images_per_sec or 0.0
    speedup = speed / (baseline.images_per_sec or 0.0)
    return ScalingRow(
        cell=cell.number,
        baseline=baseline.number,
        n_gpus=cell.of.n_gpus,
        gpus=cell.of.gpus,
        images_per_sec=speed,
        speedup=speedup,
        efficiency_percent=100 * speedup / cell.of.n_gpus,
        noise=ratio_noise(cell, baseline),
        same_mode=cell.of.mode == baseline.of.mode,
    )


def ratio_tables(cells: Sequence[Cell], scalings: Sequence[Scaling]) -> tuple[RatioTable, ...]:
    """Return all comparisons that the cells allow, and the effect of the batch on scaling."""
    measured = [cell for cell in cells if cell.images_per_sec is not None]
    tables = [table for comparison in COMPARISONS for table in _tables(comparison, measured)]
    return (*tables, *_batch_on_scaling(cells, scalings))


def _tables(comparison: Comparison, cells: Iterable[Cell]) -> list[RatioTable]:
    # One GPU exchanges nothing, so its mode is not a condition.
    of_one = () if comparison.id == "gpu" else (*MODE, "gpus")
    free = (comparison.by, *comparison.free)
    groups = grouped(
        (key(cell.of, (*free, *of_one) if cell.of.n_gpus == 1 else free), cell) for cell in cells
    )
    pairs = grouped(
        ((_value_words(comparison, above), _value_words(comparison, below)), (above, below))
        for group in groups.values()
        for above, below in _pairs(comparison, group)
    )
    tables = []
    for (above, below), same in pairs.items():
        rows = [_ratio(*pair) for pair in same]
        # If the values have no order, the faster one on the fewest GPUs is above.
        if not comparison.over and comparison.by != "batch_per_gpu":
            fewest = min(row.n_gpus for row in rows)
            if median(row.value for row in rows if row.n_gpus == fewest) < 1:
                above, below, rows = below, above, [_ratio(lower, upper) for upper, lower in same]
        tables.append(_table(comparison.id, comparison.title, above, below, rows))
    return tables


def _value_words(comparison: Comparison, cell: Cell) -> str:
    if comparison.by == "framework":
        return cell.of.program or "not stated"
    return cell.of.value_words(comparison.by)


def _pairs(comparison: Comparison, group: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    known = ((getattr(cell.of, comparison.by), cell) for cell in group)
    by: dict[Any, list[Cell]] = grouped(
        ((value, cell.of.method) if comparison.by == "framework" else value, cell)
        for value, cell in known
        if value is not None
    )
    values = sorted(by, key=lambda value: (value if isinstance(value, int) else 0, str(value)))
    for above, below in comparison.over or [(value, values[0]) for value in values[1:]]:
        if above in by and below in by:
            yield from ((cell, max(by[below], key=partial(_alike, cell))) for cell in by[above])


def _alike(cell: Cell, other: Cell) -> int:
    names = (*MODE, *SET, "machine", "cpu", "version", "method", "distortions")
    return sum(getattr(cell.of, name) == getattr(other.of, name) for name in names)


def _ratio(above: Cell, below: Cell) -> Ratio:
    return Ratio(
        above=above.number,
        below=below.number,
        n_gpus=above.of.n_gpus,
        value=(above.images_per_sec or 0.0) / (below.images_per_sec or 1.0),
        noise=ratio_noise(above, below),
        holds=ratio_holds(above, below),
    )


def _table(id: str, title: str, above: str, below: str, rows: Sequence[Ratio]) -> RatioTable:
    parts = grouped((row.n_gpus, row.value) for row in sorted(rows, key=lambda row: row.n_gpus))
    medians = [MedianRatio(n_gpus=n, value=median(values), of=len(values)) for n, values in parts.items()]
    total = MedianRatio(n_gpus=None, value=median(row.value for row in rows), of=len(rows))
    return RatioTable(
        id=id, title=title, above=above, below=below, rows=tuple(rows), medians=(*medians, total)
    )


def _batch_on_scaling(cells: Sequence[Cell], scalings: Sequence[Scaling]) -> list[RatioTable]:
    """Return the ratios of speedups with different batches: the effect of the batch on scaling only."""
    free = ("batch_per_gpu",)
    jobs = grouped(
        (key(cells[row.cell].of, (*free, *MODE) if row.n_gpus == 1 else free), row)
        for scaling in scalings
        for row in scaling.rows
    )
    by_batch = ({cells[row.cell].of.batch_per_gpu or 0: row for row in rows} for rows in jobs.values())
    ordered = (sorted(rows.items()) for rows in by_batch)
    ratios = grouped(
        ((str(batch), str(smallest)), _speedup_ratio(cells, above, below))
        for (smallest, below), *larger in ordered
        for batch, above in larger
    )
    title = "Larger batch over smaller, speedup"
    return [_table("batch-scaling", title, *names, rows) for names, rows in ratios.items()]


def _speedup_ratio(cells: Sequence[Cell], above: ScalingRow, below: ScalingRow) -> Ratio:
    noise, value = math.hypot(above.noise, below.noise), above.speedup / below.speedup
    is_clean = not any(cells[n].spoilt for row in (above, below) for n in (row.cell, row.baseline))
    return Ratio(
        above=above.cell,
        below=below.cell,
        n_gpus=above.n_gpus,
        value=value,
        noise=noise,
        holds=is_clean and holds(value, noise),
    )


def pair_tables(cells: Sequence[Cell], machines: Mapping[str, Machine]) -> tuple[PairTable, ...]:
    """Return a table for each job that ran on pairs of GPUs with different paths. `machines`: by name."""
    jobs = grouped(
        (key(cell.of, ("gpus",)), cell)
        for cell in cells
        if cell.of.n_gpus == 2 == len(cell.of.gpus) and cell.images_per_sec is not None
    )
    rows = grouped(
        ((group[0].of.machine or "", group[0].of.model), row)
        for group in jobs.values()
        if (machine := machines.get(group[0].of.machine or "")) is not None
        and (row := _pair_row(group, machine)) is not None
    )
    return tuple(
        PairTable(machine=machine, model=model, rows=tuple(pairs)) for (machine, model), pairs in rows.items()
    )


def _pair_row(group: Sequence[Cell], machine: Machine) -> PairRow | None:
    links = machine.links_by_pair
    by_path: dict[str, list[Cell]] = {}
    for cell in group:
        link = links.get((min(cell.of.gpus), max(cell.of.gpus)))
        if link is not None and (link.nvlinks or link.hop is not None):
            path = "NVLink" if link.nvlinks or link.hop is None else link.hop.value
            by_path.setdefault(path, []).append(cell)
    if len(by_path) < 2:
        return None
    order = ["NVLink", *(hop.value for hop in Hop)]  # as nvidia-smi writes them
    near_path, *_, far_path = sorted(by_path, key=order.index)
    near, far = by_path[near_path], by_path[far_path]
    gain, noise = _mean(near) / _mean(far), math.hypot(_noise(near), _noise(far))
    return PairRow(
        mode=group[0].of.mode,
        near_path=near_path,
        far_path=far_path,
        near=tuple(cell.number for cell in near),
        far=tuple(cell.number for cell in far),
        gain=gain,
        noise=noise,
        holds=holds(gain, noise) and not any(cell.spoilt for cell in (*near, *far)),
    )


def _mean(cells: Sequence[Cell]) -> float:
    return fmean(cell.images_per_sec or 0.0 for cell in cells)


def _noise(cells: Sequence[Cell]) -> float:
    """Return the standard error of the mean of several cells, as a share."""
    return fmean(cell.noise or RUN_TO_RUN for cell in cells) / math.sqrt(len(cells))
