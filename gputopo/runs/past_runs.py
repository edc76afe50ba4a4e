"""What earlier runs of this box say of the constants that its steps are predicted with. Pure.

Only undisturbed trainings of several GPUs by the core's own towers count: complete, without an anomaly, with
steady steps, on examples that are made once on the devices, and with no option that the prediction does not
know. Runs of one job (the same model, batch, GPUs and placement) count as one, by their median, the short
ones of `--autotune` too.

How long the GPUs of a job compute is known from a run of one such GPU with this job, else from the marks of
the runs themselves, which are a speed of one GPU for other plans, too. A published speed is not used: its
error would be taken for one of the links.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from gputopo.prediction.calibration import Run, learn
from gputopo.prediction.links.paths import Paths, paths_of
from gputopo.prediction.one_gpu.published import Figure
from gputopo.prediction.one_gpu.speeds import single_gpu_speeds
from gputopo.prediction.programs import DEFAULT, Program, require_program
from gputopo.prediction.step import Placing, Stepper, limits, model_of
from gputopo.runs.ran import exchange_words
from gputopo.runs.speed import MIN_STEPS
from gputopo.topology.reduction_groups import Groups
from gputopo.values.machine import Machine
from gputopo.values.run.drill import labels
from gputopo.values.run.plan import AllReduce, Learned, VariableUpdate
from gputopo.values.run.result import Result
from gputopo.workload.workloads import Workload

MAX_JOBS = 12  # the latest: each takes some ms, and two numbers need few
# Of the mean speed: with a larger standard error a run says nothing of some percent.
MAX_UNCERTAINTY = 0.02
# Of the counted steps: with more before the run was steady, their median is not that of steady ones.
MAX_UNSTEADY = 0.25


class Job(NamedTuple):
    """What was trained, on which GPUs, with the variables where. `batches` and `gpus` by tower.

    `gpus`: indices in their machine, of several hosts each in its own. `groups`: of towers, of a hierarchical
    reduction.
    """

    model: str
    precision: str
    batches: tuple[int, ...]
    gpus: tuple[int, ...]
    placing: Placing
    groups: Groups = ()


class PastRun(NamedTuple):
    """One run of a job. `marks`: seconds of each tower's weights and compute, none where it has no marks."""

    job: Job
    step_s: float
    marks: tuple[tuple[float, float], ...]


class _Device(msgspec.Struct, frozen=True):
    gpu: int | None
    tower: int
    device: str


class _Precision(msgspec.Struct, frozen=True):
    compute: str
    xla: bool = False


class _Data(msgspec.Struct, frozen=True):
    folder: str | None = None
    source: str = "gpu"


class _Exchange(msgspec.Struct, frozen=True):
    ps_spread: bool = False
    groups: Groups = ()


class _Spec(msgspec.Struct, frozen=True):
    """What decides of a RunSpec whether and how its steps can be predicted."""

    model: str
    devices: tuple[_Device, ...]
    precision: _Precision
    variable_update: VariableUpdate
    task: str = "train"
    method: str | None = None
    strategy: str | None = None
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    data: _Data = _Data()
    exchange: _Exchange = _Exchange()

    def placing(self) -> Placing:
        """Return where the variables were: on a GPU by its index in the machine."""
        place = "gpu:spread" if self.exchange.ps_spread else None
        if self.ps_device is not None:
            places = {one.device: f"gpu:{one.gpu}" for one in self.devices}
            place = places.get(self.ps_device, "cpu")
        return Placing(self.variable_update, place, self.all_reduce)

    @property
    def is_on_first_host(self) -> bool:
        """Whether variables that are in one place are on the first host, or the only one."""
        task = "" if self.ps_device is None else self.ps_device.partition("/task:")[2]
        return task.partition("/")[0] in ("", "0")


def learned(
    machine: Machine,
    past: Iterable[PastRun],
    figures: Sequence[Figure],
    workload_of: Callable[[str], Workload | None],
) -> Learned | None:
    """Return what earlier runs of this machine say of gputopo's own constants; None: none of them counts.

    `past`: of this machine, the latest first; `figures`: of one GPU. `workload_of`: the costs of a model,
    None: not known.
    """
    program, jobs = require_program(DEFAULT), by_job(past)
    if not jobs:
        return None
    paths = paths_of(machine)
    runs = _runs(machine, paths, program, jobs, figures, workload_of)
    number = sum(len(jobs[job]) for job in runs)
    return learn(program, list(runs.values()), number, measured=paths.is_measured)


def past_run(result: Result) -> PastRun | None:
    """Return a run that says something of the links and the variables of several GPUs, else None."""
    if result.status != "complete" or result.backend != "gpu" or result.rehearsal_of is not None:
        return None
    speed, spec = result.throughput, _spec(result.spec)
    if spec is None or why_unpredicted(result.spec) is not None or speed is None:
        return None
    if len(spec.devices) < 2 or spec.variable_update == "independent" or not spec.is_on_first_host:
        return None
    if result.anomalies or not _is_steady(result) or speed.uncertainty > MAX_UNCERTAINTY * speed.mean:
        return None
    batches = tuple(row.batch_size for row in result.devices)
    if len(batches) != len(spec.devices) or min(batches) < 1 or not speed.median > 0:
        return None
    marks = [
        (row.weights_ms / 1e3, row.compute_ms / 1e3)
        for row in result.devices
        if row.weights_ms is not None and row.compute_ms is not None
    ]
    gpus = tuple(one.gpu for one in spec.devices if one.gpu is not None)
    if len(gpus) != len(batches):
        return None
    job = Job(spec.model, spec.precision.compute, batches, gpus, spec.placing(), spec.exchange.groups)
    return PastRun(job, sum(batches) / speed.median, tuple(marks) if len(marks) == len(batches) else ())


def figures_by_marks(machine: Machine, past: Iterable[PastRun]) -> tuple[Figure, ...]:
    """Return the images/sec of each GPU model alone by the marks of runs on several, in their order.

    Without those that had different batches in a run: they are of one model, and not of one speed.
    """
    names, program = {gpu.index: gpu.name for gpu in machine.gpus}, require_program(DEFAULT)
    found = []
    for run in past:
        speeds: dict[tuple[str, int], list[float]] = {}
        for gpu, batch, mark in zip(run.job.gpus, run.job.batches, run.marks, strict=False):
            name, seconds = names.get(gpu), _compute_s(program, run.job.placing, mark)
            if name is not None and seconds > 0:
                speeds.setdefault((name, batch), []).append(batch / seconds)
        found += [
            Figure(name, run.job.model, batch, run.job.precision, median(rates), by_marks=True)
            for (name, batch), rates in speeds.items()
            if sum(name == other for other, _ in speeds) == 1
        ]
    return tuple(found)


def why_unpredicted(spec: Mapping[str, Any]) -> str | None:
    """Return what of a run's spec the constants do not describe, None where they do."""
    found = _spec(spec)
    if found is None:
        return "it is not known what ran"
    if found.task != "train" or found.method is not None or found.strategy is not None:
        return "only training by the core is predicted"
    if found.data.folder is not None or found.data.source != "gpu":
        return "the time of the input is not predicted"
    if found.precision.xla:
        return "steps compiled by XLA are not predicted"
    if labels(spec):
        return "a drill: a fault was injected on purpose"
    if words := [one for one in exchange_words(spec) if not one.startswith("groups ")]:
        return f"not predicted: {', '.join(words)}"
    return None


def by_job(runs: Iterable[PastRun]) -> dict[Job, list[PastRun]]:
    """Return the runs of each job, in the order of their first ones."""
    jobs: dict[Job, list[PastRun]] = {}
    for run in runs:
        jobs.setdefault(run.job, []).append(run)
    return jobs


def _runs(
    machine: Machine,
    paths: Paths,
    program: Program,
    jobs: Mapping[Job, Sequence[PastRun]],
    figures: Sequence[Figure],
    workload_of: Callable[[str], Workload | None],
) -> dict[Job, Run]:
    """Return the jobs that can be predicted, up to MAX_JOBS, each as one run."""
    found: dict[Job, Run] = {}
    for job, runs in jobs.items():
        workload = workload_of(job.model)
        if workload is None or not set(job.gpus) <= paths.hosts.keys():
            continue
        compute_s = _alone(machine, job, workload, figures) or by_marks(program, runs)
        if compute_s is None:
            continue
        model = model_of(workload)
        stages = None
        if job.placing.traffic == "groups":
            stages = Stepper(model, program, len(job.gpus), paths.cpus).stages(job.placing, job.groups)
        (_, weights), (_, gradients) = limits(paths, job.gpus, job.placing, stages)
        found[job] = Run(
            model,
            len(job.gpus),
            paths.cpus,
            compute_s,
            job.placing,
            weights,
            gradients,
            median(run.step_s for run in runs),
        )
        if len(found) == MAX_JOBS:
            break
    return found


def _alone(machine: Machine, job: Job, workload: Workload, figures: Sequence[Figure]) -> float | None:
    """Return how long the slowest GPU computes by runs of one such GPU; None where one of them has none."""
    seconds = []
    for gpu, batch in zip(job.gpus, job.batches, strict=True):
        same = [one for one in figures if one.batch == batch]
        if not same:
            return None
        speed = single_gpu_speeds(machine, workload, batch, job.precision, history=same)[gpu]
        if speed is None or speed.basis != "history":
            return None
        seconds.append(batch / speed.images_per_sec)
    return max(seconds)


def by_marks(program: Program, runs: Sequence[PastRun]) -> float | None:
    """Return how long the slowest GPU computes by the marks of the job's own runs; None without marks."""
    found = [
        max(_compute_s(program, run.job.placing, mark) for mark in run.marks) for run in runs if run.marks
    ]
    return median(found) if found else None


def _compute_s(program: Program, placing: Placing, mark: tuple[float, float]) -> float:
    """Return how long a GPU computes by its marks of weights and compute.

    Forward begins before the last weights have come, and the mark of compute counts from then on.
    """
    wait = program.wait_cpu if placing.traffic == "host" else program.wait_gpu
    weights, compute = mark
    return compute + max(0.0, 1.0 - wait) * weights


def _spec(spec: Mapping[str, Any]) -> _Spec | None:
    """Return what is needed of a spec, which is free-form JSON here; None where it lacks that."""
    try:
        return msgspec.convert(spec, _Spec, strict=False)
    except msgspec.ValidationError:
        return None


def _is_steady(result: Result) -> bool:
    """Return whether nearly all counted steps are steady; of too few steps that is not known."""
    if result.steady_steps is None:
        return result.warmup_steps + result.steps < MIN_STEPS
    return result.steady_steps - result.warmup_steps <= MAX_UNSTEADY * result.steps
