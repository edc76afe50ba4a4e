"""What earlier runs of this machine show: the speed of placements, and the errors of predictions.

Only undisturbed trainings of several GPUs by gputopo's own towers are used: complete, without an anomaly,
with steady steps, on examples that are made once on the devices, and without options that the prediction does
not know. Runs of one job (the same model, batch, GPUs and placement) count once, with their median; this
includes the short runs of `--autotune`.

The compute time of a job's GPUs comes from a run of one such GPU with this job, else from the marks of the
runs themselves. These marks also give a speed of one GPU for other plans. A published speed is not used,
because its error would be attributed to the links.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.prediction import (
    DEFAULT_PROGRAM,
    Figure,
    ModelCosts,
    Placement,
    ProgramConstants,
    StepPredictor,
    paths_of,
    require_program,
    single_gpu_speeds,
)
from gputopo.runs.first_part import MIN_STEPS
from gputopo.runs.history import Past
from gputopo.runs.ran import exchange_words
from gputopo.topology import Groups
from gputopo.topology.same_machine import fingerprint
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.run.plan import MIN_JOBS, Learned, MeasuredSpeed, Plan
from gputopo.values.run.result import Result
from gputopo.values.run.spec import JobSpec, RunSpec
from gputopo.workload import Workload

MAX_JOBS = 12  # the latest jobs: each takes some ms, and two numbers need few
# Share of the mean speed: a run with a larger standard error does not show a few percent.
MAX_UNCERTAINTY = 0.02
# Share of the counted steps: if more steps came before the run was steady, their median is not a steady step.
MAX_UNSTEADY = 0.25
MAX_FACTOR = 2.0  # Not measured; chosen because a run that is farther from its prediction is disturbed.


class PlacedJob(NamedTuple):
    """What was trained, on which GPUs, and where the variables were. `batches` and `gpus` are by tower."""

    model: str
    precision: str
    batches: tuple[int, ...]
    gpus: tuple[int, ...]  # indices in their machine; with several hosts, each in its own
    placing: Placement
    groups: Groups = ()  # of towers, of a hierarchical reduction


class PastRun(NamedTuple):
    """One run of a job. `marks`: seconds of each tower's weights and compute; empty if it has no marks.

    `peak_bytes`: the highest peak of a GPU's memory, if all batches are equal.
    """

    job: PlacedJob
    step_s: float
    marks: tuple[tuple[float, float], ...]
    peak_bytes: int | None = None


def measured_before(
    machine: Machine, past: Sequence[Past], workload_of: Callable[[str], Workload | None]
) -> tuple[tuple[Figure, ...], Learned | None]:
    """Return the speeds of one GPU in earlier runs, and what runs of this machine show about several GPUs.

    `past`: latest first, also of other machines. `workload_of`: returns the costs of a model, or None.
    """
    speeds, key = past_speeds(run.result for run in past), fingerprint(machine)
    of_machine = [placed for run in past if run.fingerprint == key if (placed := past_run(run.result))]
    shown = learned(machine, of_machine, speeds, workload_of)
    return (*speeds, *figures_by_marks(machine, of_machine)), shown


def learned(
    machine: Machine,
    past: Iterable[PastRun],
    figures: Sequence[Figure],
    workload_of: Callable[[str], Workload | None],
) -> Learned | None:
    """Return what earlier runs of this machine show about several GPUs; None if none of them can be used.

    `past`: runs of this machine, latest first. `figures`: of one GPU. `workload_of`: returns the costs of a
    model, or None if unknown.
    """
    present = {gpu.index for gpu in machine.gpus}
    jobs = grouped((run.job, run) for run in past if present.issuperset(run.job.gpus))
    if not jobs:
        return None
    steps = _measured_over_predicted(machine, jobs, figures, workload_of)
    return Learned(
        runs=sum(len(jobs[job]) for job in steps),
        jobs=len(steps),
        step_factor=step_factor(list(steps.values())),
        speeds=tuple(_measured_speed(job, runs) for job, runs in jobs.items()),
    )


def _measured_speed(job: PlacedJob, runs: Sequence[PastRun]) -> MeasuredSpeed:
    """Return the median speed of a job's runs."""
    count, speed = len(runs), sum(job.batches) / median(run.step_s for run in runs)
    return MeasuredSpeed(
        model=job.model,
        precision=job.precision,
        batch=sum(job.batches) / len(job.batches),
        gpus=job.gpus,
        variable_update=job.placing.variable_update,
        ps_device=job.placing.ps_device,
        all_reduce=job.placing.all_reduce,
        images_per_sec=round(speed, 2),
        conditions=f"batches {job.batches}",
        says="an earlier run here" if count == 1 else f"{count} earlier runs here",
    )


def step_factor(ratios: Sequence[float]) -> float:
    """Return the median of measured over predicted seconds of the jobs of one machine; 1 if there are few."""
    if len(ratios) < MIN_JOBS:
        return 1.0
    return round(min(max(median(ratios), 1 / MAX_FACTOR), MAX_FACTOR), 3)


def past_run(result: Result) -> PastRun | None:
    """Return a run that shows something about links and variables of several GPUs, else None."""
    if result.status != "complete" or result.backend != "gpu" or result.rehearsal_of is not None:
        return None
    speed, job = result.throughput, result.job
    if speed is None or not isinstance(job, RunSpec) or why_unpredicted(job) is not None:
        return None
    if job.variable_update == "independent" or job.servers:
        return None
    if result.anomalies or speed.uncertainty > MAX_UNCERTAINTY * speed.mean:
        return None
    if result.steady_steps is None:
        is_steady = result.warmup_steps + result.steps < MIN_STEPS  # unknown with few steps
    else:
        is_steady = result.steady_steps - result.warmup_steps <= MAX_UNSTEADY * result.steps
    if not is_steady:
        return None
    batches = tuple(row.batch_size for row in result.devices)
    gpus = tuple(device.gpu for device in job.devices if device.gpu is not None)
    if not 2 <= len(job.devices) == len(batches) == len(gpus) or min(batches) < 1 or not speed.median > 0:
        return None
    marks = [
        (row.weights_ms / 1e3, row.compute_ms / 1e3)
        for row in result.devices
        if row.weights_ms is not None and row.compute_ms is not None
    ]
    placing = Placement(job.variable_update, job.variables_on, job.all_reduce)
    placed = PlacedJob(job.model, job.precision.compute, batches, gpus, placing, job.exchange.groups)
    peaks = [peak for row in result.devices if (peak := result.peak_bytes(row.device))]
    step_s, known = sum(batches) / speed.median, tuple(marks) if len(marks) == len(batches) else ()
    return PastRun(placed, step_s, known, max(peaks, default=None) if len(set(batches)) == 1 else None)


def past_speeds(results: Iterable[Result]) -> tuple[Figure, ...]:
    """Return the complete training runs on one GPU, in their order. `gpu`: the name of the GPU."""
    return tuple(figure for result in results if (figure := _past_speed(result)) is not None)


def _past_speed(result: Result) -> Figure | None:
    job, throughput = result.job, result.throughput
    if result.status != "complete" or result.backend != "gpu" or len(result.devices) != 1:
        return None
    name, batch = result.devices[0].device.gpu_name, result.devices[0].batch_size
    if not isinstance(job, RunSpec) or job.task != "train":
        return None
    if job.data.folder is not None:
        return None  # its input may have limited it
    if name is None or throughput is None or batch < 1 or throughput.mean <= 0:
        return None
    device = result.devices[0].device
    return Figure(
        name,
        job.model,
        batch,
        job.precision.compute,
        throughput.mean,
        gpu_index=device.gpu,
        peak_bytes=result.peak_bytes(device),
    )


def figures_by_marks(machine: Machine, past: Iterable[PastRun]) -> tuple[Figure, ...]:
    """Return the images/sec of one GPU of each model, from the marks of runs on several, in their order.

    Runs with different batches are skipped: their GPUs have one model but not one speed.
    """
    names, program = {gpu.index: gpu.name for gpu in machine.gpus}, require_program(DEFAULT_PROGRAM)
    figures = []
    for run in past:
        speeds = grouped(
            ((name, batch), batch / seconds)
            for gpu, batch, mark in zip(run.job.gpus, run.job.batches, run.marks, strict=False)
            if (name := names.get(gpu)) is not None and (seconds := _compute_s(program, mark)) > 0
        )
        figures += [
            Figure(name, run.job.model, batch, run.job.precision, median(rates), True, None, run.peak_bytes)
            for (name, batch), rates in speeds.items()
            if sum(name == other for other, _ in speeds) == 1
        ]
    return tuple(figures)


def why_unpredicted(job: JobSpec) -> str | None:
    """Return what in a job the constants do not describe; None if they describe all of it."""
    if not isinstance(job, RunSpec) or not job.devices:
        return "it is not known what ran"
    if job.task != "train" or job.method is not None or job.strategy is not None:
        return "only gputopo's built-in training is predicted"
    if not job.data.is_free:
        return "the time of the input is not predicted"
    if job.precision.xla:
        return "steps compiled by XLA are not predicted"
    if job.drills:
        return "a drill: a fault was injected on purpose"
    if words := [option for option in exchange_words(job) if not option.startswith("groups ")]:
        return f"not predicted: {', '.join(words)}"
    return None


def why_not_of_plan(job: JobSpec, plan: Plan, batches: Sequence[int]) -> str | None:
    """Return why a plan's prediction is not for a job with these batches; None if it is."""
    if (why := why_unpredicted(job)) is not None:
        return why
    choice, prediction = plan.choice, plan.prediction
    planned = choice.batch_sizes or (prediction.batch_size if prediction else 0,) * len(batches)
    return None if tuple(batches) == planned else "predicted for another batch"


def _measured_over_predicted(
    machine: Machine,
    jobs: Mapping[PlacedJob, Sequence[PastRun]],
    figures: Sequence[Figure],
    workload_of: Callable[[str], Workload | None],
) -> dict[PlacedJob, float]:
    """Return measured over predicted seconds for up to MAX_JOBS jobs that can be predicted."""
    paths, program = paths_of(machine), require_program(DEFAULT_PROGRAM)
    ratios: dict[PlacedJob, float] = {}
    for job, runs in jobs.items():
        workload = workload_of(job.model)
        if workload is None or job.placing.traffic is None or not set(job.gpus) <= paths.hosts.keys():
            continue
        compute_s = _alone(machine, job, workload, figures) or _by_marks(program, runs)
        if compute_s is None:
            continue
        predictor = StepPredictor(ModelCosts.of(workload), program, paths)
        step = predictor.step(job.gpus, compute_s, job.placing)
        ratios[job] = median(run.step_s for run in runs) / step.step_s
        if len(ratios) == MAX_JOBS:
            break
    return ratios


def _alone(machine: Machine, job: PlacedJob, workload: Workload, figures: Sequence[Figure]) -> float | None:
    """Return the compute time of the slowest GPU from runs of one such GPU; None if a GPU has none."""
    seconds = []
    for gpu, batch in zip(job.gpus, job.batches, strict=True):
        same = [figure for figure in figures if figure.batch == batch]
        if not same:
            return None
        speed = single_gpu_speeds(machine, workload, batch, job.precision, history=same).get(gpu)
        if speed is None or speed.basis != "history":
            return None
        seconds.append(batch / speed.images_per_sec)
    return max(seconds)


def _by_marks(program: ProgramConstants, runs: Sequence[PastRun]) -> float | None:
    """Return the compute time of the slowest GPU from the marks of the job's own runs; None without marks."""
    seconds = [max(_compute_s(program, mark) for mark in run.marks) for run in runs if run.marks]
    return median(seconds) if seconds else None


def _compute_s(program: ProgramConstants, mark: tuple[float, float]) -> float:
    """Return the compute time of a GPU from its marks of weights and compute.

    Forward starts before the last weights have arrived, but the compute mark starts only then.
    """
    weights, compute = mark
    return compute + max(0.0, 1.0 - program.wait) * weights
