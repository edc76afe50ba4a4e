"""Each GPU of a machine by the same job, with its clock: how much of a difference the clock explains.

A clock that is N % lower explains at most N %: a step that waits for memory loses less.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.measurements.cells import holds, key, ratio_noise
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement
from gputopo.values.study import RUN_TO_RUN, Cell, ClockRow, ClockTable, CpuTable


def clock_tables(cells: Sequence[Cell], machines: Mapping[str, Machine]) -> tuple[ClockTable, ...]:
    """Return a table for each job that ran on several GPUs of one machine one by one, or independently."""
    jobs = grouped(
        (
            key(cell.of, ("gpus", "gpu")),
            _Alone(cell, cell.of.gpus[0], cell.of.gpu, cell.images_per_sec),
        )
        for cell in cells
        if cell.of.n_gpus == 1 == len(cell.of.gpus) and cell.images_per_sec is not None
    )
    together = grouped(
        (cell.number, _Alone(cell, device.number, device.name, device.images_per_sec))
        for cell in cells
        if cell.of.variable_update == "independent" and cell.of.backend != "cpu" and cell.images_per_sec
        for device in cell.of.devices
        if device.images_per_sec
    )
    ordered = (sorted(some, key=lambda one: one.gpu) for some in (*jobs.values(), *together.values()))
    return tuple(_table(some, machines) for some in ordered if len(some) > 1)


class _Alone(NamedTuple):
    """A GPU that waited for no other GPU, and the cell with its images/sec."""

    cell: Cell
    gpu: int
    name: str | None
    images_per_sec: float


def _table(some: Sequence[_Alone], machines: Mapping[str, Machine]) -> ClockTable:
    first = some[0]
    of = first.cell.of
    return ClockTable(
        machine=of.machine,
        model=of.model,
        reference=first.gpu,
        rows=tuple(_row(one, first, machines) for one in some),
        cells=tuple(dict.fromkeys(one.cell.number for one in some)),
    )


def _row(one: _Alone, first: _Alone, machines: Mapping[str, Machine]) -> ClockRow:
    share = one.images_per_sec / first.images_per_sec
    under = 100 * (1 - share)
    noise = ratio_noise(one.cell, first.cell) or 2**0.5 * (one.cell.noise or RUN_TO_RUN)
    clock, reference = _clock_of(one, machines), _clock_of(first, machines)
    ratio = clock[1] / reference[1] if clock and reference and clock[0] == reference[0] else None
    explained = min(under, max(0.0, 100 * (1 - ratio))) if ratio is not None and under > 0 else None
    return ClockRow(
        gpu=one.gpu,
        name=one.name,
        images_per_sec=one.images_per_sec,
        percent=100 * share,
        clock=clock[0] if clock else None,
        clock_mhz=clock[1] if clock else None,
        clock_percent=None if ratio is None else 100 * ratio,
        under_percent=under,
        explained_percent=explained,
        unexplained_percent=None if explained is None else under - explained,
        holds=share < 1 and holds(share, noise) and not one.cell.spoilt and not first.cell.spoilt,
    )


def _clock_of(one: _Alone, machines: Mapping[str, Machine]) -> tuple[str, float] | None:
    """Return the core clock of the run, else of the machine; the memory clock if only that is known."""
    device = next((device for device in one.cell.of.devices if device.number == one.gpu), None)
    if device is not None and device.graphics_mhz:
        return "core", device.graphics_mhz
    if device is not None and device.memory_mhz:
        return "memory", device.memory_mhz
    machine = machines.get(one.cell.of.machine or "")
    gpu = next((gpu for gpu in machine.gpus if gpu.index == one.gpu), None) if machine else None
    core = gpu.clocks_mhz.graphics if gpu else None
    known = core and (core.boost or core.max)
    return ("core", float(known)) if known else None


def cpu_tables(cells: Sequence[Cell]) -> tuple[CpuTable, ...]:
    """Return a table for each job that ran with several CPUs, in the order of the cells."""
    free = ("cpu", "machine", "model", "batch_per_gpu")
    jobs = grouped((key(cell.of, free), cell) for cell in cells if cell.of.cpu is not None)
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
