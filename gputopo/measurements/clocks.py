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
    by_job = grouped(
        (
            key(cell.of, ("gpus", "gpu")),
            _Alone(cell, cell.of.gpus[0], cell.of.gpu, cell.images_per_sec),
        )
        for cell in cells
        if cell.of.n_gpus == 1 == len(cell.of.gpus) and cell.images_per_sec is not None
    )
    independent = grouped(
        (cell.number, _Alone(cell, device.number, device.name, device.images_per_sec))
        for cell in cells
        if cell.of.variable_update == "independent" and cell.of.backend != "cpu" and cell.images_per_sec
        for device in cell.of.devices
        if device.images_per_sec
    )
    tables = []
    for gpus in (*by_job.values(), *independent.values()):
        first, *others = sorted(gpus, key=lambda gpu: gpu.number)
        if others:
            table = ClockTable(
                machine=first.cell.of.machine,
                model=first.cell.of.model,
                reference=first.number,
                rows=tuple(_row(gpu, first, machines) for gpu in (first, *others)),
                cells=tuple(dict.fromkeys(gpu.cell.number for gpu in (first, *others))),
            )
            tables.append(table)
    return tuple(tables)


class _Alone(NamedTuple):
    """A GPU that waited for no other GPU, and the cell with its images/sec."""

    cell: Cell
    number: int
    name: str | None
    images_per_sec: float


def _row(gpu: _Alone, first: _Alone, machines: Mapping[str, Machine]) -> ClockRow:
    share = gpu.images_per_sec / first.images_per_sec
    under = 100 * (1 - share)
    noise = ratio_noise(gpu.cell, first.cell) or 2**0.5 * (gpu.cell.noise or RUN_TO_RUN)
    domain, clock = _clock_of(gpu, machines)
    reference_domain, reference = _clock_of(first, machines)
    ratio = clock / reference if clock and reference and domain == reference_domain else None
    explained = min(under, max(0.0, 100 * (1 - ratio))) if ratio is not None and under > 0 else None
    return ClockRow(
        gpu=gpu.number,
        name=gpu.name,
        images_per_sec=gpu.images_per_sec,
        percent=100 * share,
        clock=domain,
        clock_mhz=clock,
        clock_percent=None if ratio is None else 100 * ratio,
        under_percent=under,
        explained_percent=explained,
        unexplained_percent=None if explained is None else under - explained,
        holds=share < 1 and holds(share, noise) and not gpu.cell.spoilt and not first.cell.spoilt,
    )


def _clock_of(gpu: _Alone, machines: Mapping[str, Machine]) -> tuple[str, float] | tuple[None, None]:
    """Return the core clock of the run, else of the machine; the memory clock if only that is known."""
    device = next((device for device in gpu.cell.of.devices if device.number == gpu.number), None)
    if device is not None and device.graphics_mhz:
        return "core", device.graphics_mhz
    if device is not None and device.memory_mhz:
        return "memory", device.memory_mhz
    machine = machines.get(gpu.cell.of.machine or "")
    in_machine = (other for other in (machine.gpus if machine else ()) if other.index == gpu.number)
    core = next((other.clocks_mhz.graphics for other in in_machine), None)
    known = core and (core.boost or core.max)
    return ("core", float(known)) if known else (None, None)


def cpu_tables(cells: Sequence[Cell]) -> tuple[CpuTable, ...]:
    """Return a table for each job that ran with several CPUs, in the order of the cells."""
    free = ("cpu", "machine", "model", "batch_per_gpu")
    jobs = grouped((key(cell.of, free), cell) for cell in cells if cell.of.cpu is not None)
    tables = []
    for group in jobs.values():
        cpus = tuple(dict.fromkeys(cell.of.cpu or "" for cell in group))
        models = tuple(dict.fromkeys(cell.of.model for cell in group))
        if len(cpus) < 2:
            continue
        known = {(cell.of.model, cell.of.cpu): cell.number for cell in group}
        rows = tuple(tuple(known.get((model, cpu)) for cpu in cpus) for model in models)
        tables.append(CpuTable(name=job_name(group[0].of), cpus=cpus, models=models, cells=rows))
    return tuple(tables)


def job_name(run: Measurement) -> str:
    """Return the name of a job as Lambda's scripts write it: `syn-replicated-nccl-4gpus`."""
    parts = ["real" if run.data == "real" else "syn", run.variable_update or "one"]
    parts += ["nccl"] if run.all_reduce == "nccl" else []
    parts += ["distortions"] if run.distortions else []
    return "-".join([*parts, f"{run.n_gpus}gpus"])
