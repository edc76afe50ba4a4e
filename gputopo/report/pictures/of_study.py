"""The pictures of a report: speedup and efficiency of a study; machines, links, devices and time of runs."""

from collections.abc import Callable, Sequence

from gputopo.report.bandwidth.numbers import Numbers
from gputopo.report.bandwidth.pairs import map_part
from gputopo.report.document import Block, Bullets, Picture, Section
from gputopo.report.pictures.charts import (
    MAX_NAMED,
    ChartPoint,
    ChartSeries,
    bars_picture,
    over_time_picture,
    scaling_picture,
)
from gputopo.report.pictures.topology import topology_picture
from gputopo.report.runs.devices import device_table
from gputopo.report.study_tables import devices_word
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from gputopo.values.run.over_time import OneRun
from gputopo.values.study import ClockRow, PairRow, ScalingRow, Study, varying

_MAX_CURVES = 64  # in one picture; the table has all


def with_pictures(
    sections: Sequence[Section], study: Study, runs: Sequence[OneRun], *, of: int
) -> list[Section]:
    """Return the sections of a study with pictures next to their tables, and the runs at their end.

    `runs`: the runs that are shown; `of`: the total number of runs.
    """
    drawn_of = {
        "Scaling": _scaling(study),
        "Pairs of GPUs": _pairs(study),
        "Each GPU and its clock": _clocks(study),
    }
    sections = [part._replace(blocks=(*drawn_of.get(part.title, ()), *part.blocks)) for part in sections]
    machines: list[tuple[Machine, Sequence[Finding]]] = []
    for run in runs:
        if run.machine is not None and all(run.machine != machine for machine, _ in machines):
            machines.append((run.machine, run.findings))
    drawn = [
        block
        for number, machine_and_findings in enumerate(machines, 1)
        for block in _machine(*machine_and_findings, number)
    ]
    if drawn:
        sections.insert(1, Section("Machine" if len(machines) == 1 else "Machines", tuple(drawn)))
    sections += [_run(run, number) for number, run in enumerate(runs, 1)]
    if of > len(runs):
        sections.append(Section("Other runs", (f"{of - len(runs)} runs have no pictures here.",)))
    return sections


def _scaling(study: Study) -> tuple[Picture, ...]:
    """Return speedup and efficiency, in the same colours. The lowest and highest of many jobs come first."""
    cells, scalings = study.figures.cells, study.figures.scalings[:_MAX_CURVES]
    names = varying(cells[scaling.largest.cell] for scaling in scalings)
    labelled = [(cells[scaling.largest.cell].of.job_words(names), scaling) for scaling in scalings]
    ordered = sorted(labelled, key=lambda job: job[1].largest.speedup)
    half = MAX_NAMED // 2
    jobs = [*ordered[:half], *ordered[half:][-half:], *ordered[half:-half]]

    def series(value_of: Callable[[ScalingRow], float]) -> list[ChartSeries]:
        return [
            ChartSeries(label, tuple(_point(row, value_of(row)) for row in scaling.rows))
            for label, scaling in jobs
        ]

    devices = devices_word(cells)
    title = f"Speedup over one {devices.removesuffix('s')}"
    speedups, efficiencies = series(lambda row: row.speedup), series(lambda row: row.efficiency_percent)
    pictures = (
        scaling_picture("speedup", title, "speedup", speedups, devices=devices, ideal=True),
        scaling_picture("efficiency", "Efficiency", "efficiency, %", efficiencies, devices=devices),
    )
    return tuple(picture for picture in pictures if picture is not None)


def _point(row: ScalingRow, value: float) -> ChartPoint:
    return ChartPoint(row.n_gpus, value, value * (1 - row.noise), value * (1 + row.noise))


def _pairs(study: Study) -> tuple[Picture, ...]:
    """Return the images/sec of each pair of GPUs, by mode."""
    cells = study.figures.cells

    def speeds(row: PairRow) -> list[tuple[str, float]]:
        paths = ((row.near_path, row.near), (row.far_path, row.far))
        pairs = [(path, cells[number]) for path, numbers in paths for number in numbers]
        return [
            (f"{path} {','.join(map(str, cell.of.gpus))}", cell.images_per_sec or 0.0) for path, cell in pairs
        ]

    return tuple(
        bars_picture(
            f"pairs-{number}",
            f"{table.machine}, {table.model}: pairs of GPUs",
            "images/sec",
            [(row.mode, speeds(row)) for row in table.rows],
        )
        for number, table in enumerate(study.figures.pairs, 1)
    )


def _clocks(study: Study) -> tuple[Picture, ...]:
    """Return the images/sec and the clock of each GPU, in percent of one GPU."""

    def percents(row: ClockRow) -> list[tuple[str, float]]:
        clock = [] if row.clock_percent is None else [(f"{row.clock} clock", row.clock_percent)]
        return [("images/sec", row.percent), *clock]

    return tuple(
        bars_picture(
            f"clocks-{number}",
            f"{table.where}: each GPU",
            f"% of GPU {table.reference}",
            [(f"GPU {row.gpu}", percents(row)) for row in table.rows],
        )
        for number, table in enumerate(study.figures.clocks, 1)
    )


def _run(run: OneRun, number: int) -> Section:
    rows = run.result.devices if len(run.result.devices) > 1 else ()
    verdicts = [row.verdict.says for row in rows if row.verdict is not None]
    failure = [] if run.result.failure is None else [run.result.failure.cause]
    says = tuple(dict.fromkeys((*run.result.says, *failure, *verdicts)))
    blocks: list[Block] = [Bullets(says)] if says else []
    blocks += [device_table(run.result)] if run.result.devices else []
    picture = run.over_time and over_time_picture(f"run-{number}", f"{run.result.unit}/sec", run.over_time)
    blocks += [] if picture is None else [picture]
    return Section(f"Run {run.name}", tuple(blocks), is_folded=number > 1)


def _machine(machine: Machine, findings: Sequence[Finding], number: int) -> list[Block]:
    """Return the topology of a machine and its measured rates. `number` makes the picture names unique."""
    bandwidth = machine.bandwidth
    picture = topology_picture(machine, findings)
    rates = None if bandwidth is None else map_part(Numbers(machine, bandwidth))
    return [
        *([] if picture is None else [picture._replace(name=f"{picture.name}-{number}")]),
        *([] if rates is None else [rates.title, *rates.blocks]),
    ]
