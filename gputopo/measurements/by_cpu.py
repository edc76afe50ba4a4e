"""The same GPUs and jobs beside several CPUs: one table for each job, models by CPUs, as Lambda's summary."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from gputopo.measurements.cells import Cell
from gputopo.measurements.conditions import key
from gputopo.values.run.measurement import Measurement


class CpuTable(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `cells`: a row for each of `models`, a number for each of `cpus`; None: was not run.

    A cell without a figure failed: its number is there, and the cell has the reason.
    """

    name: str
    cpus: tuple[str, ...]
    models: tuple[str, ...]
    cells: tuple[tuple[int | None, ...], ...]


def cpu_tables(cells: Sequence[Cell]) -> tuple[CpuTable, ...]:
    """Return the table of each job that was run beside several CPUs; orders are those of the cells."""
    jobs: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.of.cpu is not None:
            jobs[key(cell.of, ("cpu", "machine", "model", "batch_per_gpu"))].append(cell)
    found = []
    for group in jobs.values():
        cpus = tuple(dict.fromkeys(cell.of.cpu or "" for cell in group))
        models = tuple(dict.fromkeys(cell.of.model for cell in group))
        if len(cpus) < 2:
            continue
        known = {(cell.of.model, cell.of.cpu): cell.number for cell in group}
        rows = tuple(tuple(known.get((model, cpu)) for cpu in cpus) for model in models)
        found.append(CpuTable(name=job_name(group[0].of), cpus=cpus, models=models, cells=rows))
    return tuple(found)


def job_name(one: Measurement) -> str:
    """Return the name of a job as Lambda's scripts write it: `syn-replicated-nccl-4gpus`."""
    data = "real" if one.data == "real" else "syn"
    parts = [data, one.variable_update or "one"]
    parts += ["nccl"] if one.all_reduce == "nccl" else []
    parts += ["distortions"] if one.distortions else []
    return "-".join([*parts, f"{one.n_gpus}gpus"])
