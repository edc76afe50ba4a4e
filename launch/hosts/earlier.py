"""What earlier runs over the same devices of the same hosts say of a plan for these. Pure.

As of one machine (`gputopo.runs.past_runs`) their time marks are speeds of one GPU, of its own host, and
two jobs or more adjust the constants: what links reach is then what the network reaches, too. Runs over other
devices, or with one more host, say nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.launch.spec.job_spec import Server
from gputopo.planner.joint import HostPart, Joint, joint_of
from gputopo.planner.request import Request
from gputopo.prediction.calibration import MeasuredStep, learn
from gputopo.prediction.links.hosts import NetworkRate
from gputopo.prediction.one_gpu_speeds import Figure
from gputopo.prediction.programs import DEFAULT, require_program
from gputopo.runs.known import Together, together, together_of
from gputopo.runs.past_runs import MAX_JOBS, PastRun, PlacedJob, by_job, by_marks, figures_by_marks, past_run
from gputopo.values.run.plan import Candidate, Learned
from gputopo.values.run.result import Result
from gputopo.workload.workloads import Workload


class EarlierRuns(NamedTuple):
    """Runs of this host with others, the latest first. `workload_of`: the costs of a model, if known."""

    results: tuple[Result, ...]
    workload_of: Callable[[str], Workload | None]


class Shown(NamedTuple):
    """What they show: speeds of one GPU of each host, and what they change in the constants."""

    figures: tuple[tuple[Figure, ...], ...]
    learned: Learned | None


def shown_by(
    earlier: EarlierRuns,
    servers: Sequence[Server],
    parts: Sequence[HostPart],
    rates: Sequence[NetworkRate] | str,
) -> Shown | None:
    """Return what the runs over these devices show, None where there are none. `rates`: of the network."""
    wanted = _together(servers, parts)
    runs = [
        run for one in earlier.results if together(one.job) == wanted and (run := past_run(one)) is not None
    ]
    if not runs:
        return None
    figures = tuple(
        figures_by_marks(part.machine, own) for part, own in zip(parts, _of_each(parts, runs), strict=True)
    )
    return Shown(figures, None if isinstance(rates, str) else _learned(earlier, parts, rates, runs, figures))


def _together(servers: Sequence[Server], parts: Sequence[HostPart]) -> Together:
    names = [{gpu.index: gpu.name for gpu in part.machine.gpus} for part in parts]
    return together_of(
        [(one.host, one.address) for one in servers],
        [(rank, gpu, names[rank].get(gpu)) for rank, part in enumerate(parts) for gpu in part.gpus],
    )


def _of_each(parts: Sequence[HostPart], runs: Sequence[PastRun]) -> Iterator[list[PastRun]]:
    """Iterate over the hosts: the runs as those of its GPUs alone."""
    first = 0
    for part in parts:
        own = slice(first, first + len(part.gpus))
        yield [
            PastRun(
                run.job._replace(batches=run.job.batches[own], gpus=run.job.gpus[own]),
                run.step_s,
                run.marks[own],
            )
            for run in runs
        ]
        first += len(part.gpus)


def _learned(
    earlier: EarlierRuns,
    parts: Sequence[HostPart],
    rates: Sequence[NetworkRate],
    runs: Sequence[PastRun],
    figures: Sequence[Sequence[Figure]],
) -> Learned | None:
    jobs = by_job(runs)
    found: dict[PlacedJob, MeasuredStep] = {}
    for job, own in jobs.items():
        workload = earlier.workload_of(job.model)
        compute_s = by_marks(require_program(DEFAULT), own)
        if workload is None or compute_s is None:
            continue
        asked = Request(model=job.model, workload=workload, batch_size=job.batches, precision=job.precision)
        steps = joint_of(parts, asked, rates, figures)
        if isinstance(steps, Joint) and job.groups in ((), steps.groups):
            update, ps_device, all_reduce = job.placing
            placed = Candidate(
                gpus=parts[0].gpus, variable_update=update, ps_device=ps_device, all_reduce=all_reduce
            )
            found[job] = steps.run(placed, compute_s, median(run.step_s for run in own))
        if len(found) == MAX_JOBS:
            break
    number = sum(len(jobs[job]) for job in found)
    return learn(require_program(DEFAULT), list(found.values()), number)
