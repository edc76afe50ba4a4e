"""Each GPU of a machine by the same job, with its clock: what of a difference the clock explains.

A clock that is N % lower explains N % at most: a step that waits for memory loses less.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gputopo.measurements.cells import RUN_TO_RUN, Cell, holds, key, ratio_noise
from gputopo.values.gpu import Gpu
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement


class ClockRow(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Percent are of the reference GPU.

    `under_percent`: by how much its images/sec are below; `explained_percent` of it by the clock at most,
    `unexplained_percent`: the rest; None where there is no clock, or nothing to explain.
    """

    gpu: int
    name: str | None
    images_per_sec: float
    percent: float
    clock: str | None = None  # which one, "core" or "memory", None: unknown
    clock_mhz: float | None = None
    clock_percent: float | None = None
    under_percent: float
    explained_percent: float | None = None
    unexplained_percent: float | None = None
    holds: bool = False


class ClockTable(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one machine by one job. `reference`: the GPU of 100 %, the first one. `cells`: numbers."""

    machine: str | None
    model: str
    reference: int
    rows: tuple[ClockRow, ...]
    cells: tuple[int, ...]


def clock_tables(cells: Sequence[Cell], machines: Mapping[str, Machine]) -> tuple[ClockTable, ...]:
    """Return a table for each job that ran on several GPUs of one machine one by one, or independently."""
    jobs: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.of.n_gpus == 1 == len(cell.of.gpus) and cell.images_per_sec is not None:
            jobs[key(cell.of, ("gpus", "gpu"))].append(cell)
    found = []
    for group in jobs.values():
        if len(group) > 1:
            found.append(_alone(sorted(group, key=lambda cell: cell.of.gpus), machines))
    found += [_together(cell, machines) for cell in cells if _is_independent(cell)]
    return tuple(found)


def _is_independent(cell: Cell) -> bool:
    """Whether its GPUs did not wait for one another, so that each has its own figure."""
    own = [one for one in cell.of.devices if one.images_per_sec]
    is_of_gpus = cell.of.variable_update == "independent" and cell.of.backend != "cpu"
    return is_of_gpus and cell.images_per_sec is not None and len(own) > 1


def _alone(group: Sequence[Cell], machines: Mapping[str, Machine]) -> ClockTable:
    first = group[0]
    numbers = [cell.of.gpus[0] for cell in group]
    clocks = [_clock_of(cell, number, machines) for cell, number in zip(group, numbers, strict=True)]
    rows = [
        _row(
            number,
            cell.of.gpu,
            cell.images_per_sec or 0.0,
            first.images_per_sec or 1.0,
            clock,
            clocks[0],
            0.0 if cell is first else ratio_noise(cell, first),
        )
        for cell, number, clock in zip(group, numbers, clocks, strict=True)
    ]
    return ClockTable(
        machine=first.of.machine,
        model=first.of.model,
        reference=numbers[0],
        rows=tuple(rows),
        cells=tuple(cell.number for cell in group),
    )


def _together(cell: Cell, machines: Mapping[str, Machine]) -> ClockTable:
    some = sorted((one for one in cell.of.devices if one.images_per_sec), key=lambda one: one.number)
    clocks = [_clock_of(cell, one.number, machines) for one in some]
    first = some[0]
    noise = 2**0.5 * (cell.noise or RUN_TO_RUN)
    rows = [
        _row(
            one.number,
            one.name,
            one.images_per_sec or 0.0,
            first.images_per_sec or 1.0,
            clock,
            clocks[0],
            0.0 if one is first else noise,
        )
        for one, clock in zip(some, clocks, strict=True)
    ]
    return ClockTable(
        machine=cell.of.machine,
        model=cell.of.model,
        reference=first.number,
        rows=tuple(rows),
        cells=(cell.number,),
    )


_Clock = tuple[str, float] | None


def _clock_of(cell: Cell, number: int, machines: Mapping[str, Machine]) -> _Clock:
    """Return the core clock of the run, else that of the machine; the memory's where only that is known."""
    device = next((one for one in cell.of.devices if one.number == number), None)
    if device is not None and device.graphics_mhz:
        return "core", device.graphics_mhz
    if device is not None and device.memory_mhz:
        return "memory", device.memory_mhz
    machine = machines.get(cell.of.machine or "")
    gpu = next((one for one in machine.gpus if one.index == number), None) if machine else None
    return _of_machine(gpu) if gpu is not None else None


def _of_machine(gpu: Gpu) -> _Clock:
    core = gpu.clocks_mhz.graphics
    known = core.boost or core.max
    return ("core", float(known)) if known else None


def _row(
    number: int,
    name: str | None,
    speed: float,
    reference: float,
    clock: _Clock,
    clock_of_reference: _Clock,
    noise: float,
) -> ClockRow:
    share = speed / reference
    under = 100 * (1 - share)
    is_slower = share < 1 and holds(share, noise) if noise else False
    comparable = clock is not None and clock_of_reference is not None and clock[0] == clock_of_reference[0]
    ratio = clock[1] / clock_of_reference[1] if comparable and clock and clock_of_reference else None
    explained = min(under, max(0.0, 100 * (1 - ratio))) if ratio is not None and under > 0 else None
    return ClockRow(
        gpu=number,
        name=name,
        images_per_sec=speed,
        percent=100 * share,
        clock=clock[0] if clock else None,
        clock_mhz=clock[1] if clock else None,
        clock_percent=None if ratio is None else 100 * ratio,
        under_percent=under,
        explained_percent=explained,
        unexplained_percent=None if explained is None else under - explained,
        holds=is_slower,
    )


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
