"""The pictures of a report: speedup and efficiency of a study; of a run machine, links, time and step."""

from collections.abc import Iterable, Sequence

from gputopo.findings import find, find_bandwidth
from gputopo.measurements.run_folders import OneRun
from gputopo.measurements.study import Study
from gputopo.measurements.words import devices_word
from gputopo.report.document import Block, Bullets, Document, Picture, Section
from gputopo.report.pictures.charts import (
    MAX_NAMED,
    BarGroup,
    ChartPoint,
    ChartSeries,
    bars_picture,
    heat_map_picture,
    over_time_picture,
    scaling_picture,
    step_picture,
)
from gputopo.report.pictures.topology import topology_picture
from gputopo.report.study import CLOCKS, PAIRS, SCALING, curves
from gputopo.values.machine import Machine

MAX_RUNS = 12  # with pictures of their own: a page of 5 MB holds no more


def with_pictures(document: Document, study: Study, runs: Sequence[OneRun], *, of: int) -> Document:
    """Return the document of a study with its pictures beside their tables, and the runs at its end.

    `runs`: those that are shown; `of`: how many there are.
    """
    drawn_of = {SCALING: _scaling(study), PAIRS: _pairs(study), CLOCKS: _clocks(study)}
    sections = [
        part._replace(blocks=(*drawn_of.get(part.title, ()), *part.blocks)) for part in document.sections
    ]
    machines: list[Machine] = []
    for run in runs:
        if run.machine is not None and run.machine not in machines:
            machines.append(run.machine)
    drawn = [picture for n, one in enumerate(machines, 1) for picture in machine_pictures(one, n)]
    if drawn:
        sections.insert(1, Section("Machine" if len(machines) == 1 else "Machines", tuple(drawn)))
    sections += [_run(run, number) for number, run in enumerate(runs, 1)]
    if of > len(runs):
        sections.append(Section("Other runs", (f"{of - len(runs)} runs have no pictures here.",)))
    return document._replace(sections=tuple(sections))


def _scaling(study: Study) -> tuple[Picture, ...]:
    speedups, efficiencies = [], []
    jobs = curves(study)
    last = sorted(jobs, key=lambda job: max(job[1].rows, key=lambda row: row.n_gpus).speedup)
    ends = jobs if len(jobs) <= MAX_NAMED else [*last[: MAX_NAMED // 2], *last[-MAX_NAMED // 2 :]]
    places = {label: place for place, (label, _) in enumerate(ends)}
    for label, scaling in jobs:
        place = places.get(label)
        rows = [(row, row.noise * row.speedup, row.noise * row.efficiency_percent) for row in scaling.rows]
        speedups.append(
            ChartSeries(label, tuple(_point(row.n_gpus, row.speedup, noise) for row, noise, _ in rows), place)
        )
        efficiencies.append(
            ChartSeries(
                label,
                tuple(_point(row.n_gpus, row.efficiency_percent, noise) for row, _, noise in rows),
                place,
            )
        )
    devices = devices_word(study.figures.cells)
    one = devices.removesuffix("s")
    found = (
        scaling_picture(
            "speedup", f"Speedup over one {one}", "speedup", speedups, devices=devices, ideal=True
        ),
        scaling_picture("efficiency", "Efficiency", "efficiency, %", efficiencies, devices=devices),
    )
    return tuple(picture for picture in found if picture is not None)


def _pairs(study: Study) -> tuple[Picture, ...]:
    """Return the images/sec of each pair of GPUs, by mode."""
    cells, found = study.figures.cells, []
    for number, one in enumerate(study.figures.pairs, 1):
        groups: list[BarGroup] = []
        for row in one.rows:
            paths = ((row.near_path, row.near), (row.far_path, row.far))
            pairs = [(path, cells[cell]) for path, numbers in paths for cell in numbers]
            values = [
                (f"{path} {','.join(map(str, cell.of.gpus))}", cell.images_per_sec or 0.0)
                for path, cell in pairs
            ]
            groups.append((row.mode, values))
        title = f"{one.machine}, {one.model}: pairs of GPUs"
        found.append(bars_picture(f"pairs-{number}", title, "images/sec", groups))
    return tuple(found)


def _clocks(study: Study) -> tuple[Picture, ...]:
    """Return the images/sec and the clock of each GPU, in percent of one."""
    found = []
    for number, one in enumerate(study.figures.clocks, 1):
        groups: list[BarGroup] = []
        for row in one.rows:
            clock = [] if row.clock_percent is None else [(f"{row.clock} clock", row.clock_percent)]
            groups.append((f"GPU {row.gpu}", [("images/sec", row.percent), *clock]))
        title = f"{', '.join(filter(None, (one.machine, one.model)))}: each GPU"
        found.append(bars_picture(f"clocks-{number}", title, f"% of GPU {one.reference}", groups))
    return tuple(found)


def _point(count: int, value: float, noise: float) -> ChartPoint:
    return ChartPoint(count, value, value - noise, value + noise)


def _run(run: OneRun, number: int) -> Section:
    verdicts = [row.verdict.says for row in run.result.devices if row.verdict is not None]
    failure = [] if run.result.failure is None else [run.result.failure.cause]
    says = tuple(dict.fromkeys((*run.result.says, *failure, *verdicts)))
    line = None if run.plan is None else run.plan.line
    pictures = (
        over_time_picture(f"run-{number}", "Images/sec and GPUs over time", run.over_time)
        if run.over_time is not None
        else None,
        step_picture(f"step-{number}", "A step, medians", line, run.result.devices),
    )
    blocks: list[Block] = [Bullets(says)] if says else []
    blocks += [one for one in pictures if one is not None]
    return Section(f"Run {run.name}", tuple(blocks), is_folded=number > 1)


def machine_pictures(machine: Machine, number: int = 1) -> Iterable[Picture]:
    """Iterate over topology and measured rates of a machine; `number` keeps the names of several apart."""
    bandwidth = machine.bandwidth
    findings = (*find(machine), *(find_bandwidth(machine) if bandwidth else ()))
    heat_map = None if bandwidth is None else heat_map_picture(machine, bandwidth)
    for picture in (topology_picture(machine, findings), heat_map):
        if picture is not None:
            yield picture if number == 1 else renamed(picture, f"{picture.name}-{number}")


def renamed(picture: Picture, name: str) -> Picture:
    """Return a picture under another name, its ids too."""
    svg = picture.svg.replace(f'"{picture.name}-', f'"{name}-').replace(f"#{picture.name}-", f"#{name}-")
    return picture._replace(name=name, svg=svg)
