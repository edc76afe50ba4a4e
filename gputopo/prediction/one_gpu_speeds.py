"""Images per second of one GPU from published figures, else from its datasheet and figures of other GPUs.

The factor of a network is its measured speed over its speed by the roofline (`roofline`): the median over the
GPU models on which it was measured.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Literal, NamedTuple

from gputopo.prediction.roofline import roofline_file, step_seconds
from gputopo.reference import GpuExpectation, expected_gpu, expected_of
from gputopo.values.machine import Gpu, Machine
from gputopo.workload import Workload, require_workload

SpeedBasis = Literal["given", "history", "published", "datasheet", "alike"]
"""`published`: figures of this GPU model; `datasheet`: figures of this network on others; `alike`: neither.
"""

# Networks whose costs differ by at most this are the same: tables omit zeros next to a kernel, and biases.
SAME_NETWORK = 0.02
PROGRAM = "tf_cnn_benchmarks"  # with synthetic data: the prefix of its names
# Factors between the images/sec and both ends of their range, by the basis. They hold for 80 % of the
# published figures if each GPU model, or each network, is left out of the fit in turn (a test).
FACTOR: Mapping[SpeedBasis, float] = {
    "given": 1.03,
    "history": 1.05,
    "published": 1.25,
    "datasheet": 1.33,
    "alike": 1.6,
}
# Maximum difference of two runs of one job on one GPU. Not measured; chosen because single runs vary by up to
# 2 % on an idle machine.
SAME_RUN = 0.03
LATEST = 3  # runs of one job: one disturbed run does not change their median, and older runs matter less


class Speed(NamedTuple):
    """Images/sec of one GPU by itself. `source`: in words."""

    images_per_sec: float
    basis: SpeedBasis
    source: str

    @property
    def factor(self) -> float:
        """The factor between the speed and both ends of its range, which holds on published figures."""
        return FACTOR[self.basis]

    @property
    def low(self) -> float:
        """The low end of the range."""
        return self.images_per_sec / self.factor

    @property
    def high(self) -> float:
        """The high end of the range."""
        return self.images_per_sec * self.factor


class OneGpuJob(NamedTuple):
    """What one GPU trains. `batch`: examples of a step."""

    workload: Workload
    batch: int
    precision: str

    def speed(self, gpu: GpuExpectation) -> float | None:
        """Return the images/sec by the roofline, None if the datasheet does not have a required rate."""
        seconds = step_seconds(gpu, self.workload, self.batch, self.precision)
        return None if seconds is None else self.batch / seconds


class Figure(NamedTuple):
    """Measured images/sec of one GPU.

    `by_marks`: from the time marks of a run of several GPUs; they do not include the update of the variables.
    """

    gpu: str  # the name of the model's reference data
    model: str
    batch: int
    precision: str
    images_per_sec: float
    by_marks: bool = False
    gpu_index: int | None = None  # the index of the GPU, if it is in this machine
    peak_bytes: int | None = None  # of its memory, if the run measured it

    def is_of(self, gpu: Gpu, model: str, precision: str) -> bool:
        """Return whether it was measured with this job on a GPU of this model."""
        return (self.model, self.precision) == (model, precision) and (
            gpu.name is not None and _model_name(self.gpu) == _model_name(gpu.name)
        )


@functools.cache
def one_gpu_figures() -> tuple[Figure, ...]:
    """Return the published images/sec of one GPU with synthetic data that are used.

    `tests.fits.one_gpu` selects them.
    """
    return tuple(Figure(*row) for row in roofline_file().figures)


def scaled(
    gpu: GpuExpectation, job: OneGpuJob, figures: Sequence[Figure], basis: SpeedBasis, source: str
) -> Speed:
    """Return the speed from figures of this network on GPUs of this model with the nearest batch.

    `figures`: one or more. The roofline scales a figure of another batch.
    """
    apart = min(abs(math.log2(job.batch / figure.batch)) for figure in figures)
    near = [figure for figure in figures if abs(math.log2(job.batch / figure.batch)) == apart]
    rates = [figure.images_per_sec * _ratio(gpu, job, figure.batch) for figure in near]
    batches = " and ".join(map(str, sorted({figure.batch for figure in near})))
    words = f"{source}, batch {batches}" + (f", scaled to {job.batch}" if apart else "")
    return Speed(median(rates), basis, words)


def published_speed(
    gpu: GpuExpectation, job: OneGpuJob, figures: Sequence[Figure] | None = None
) -> Speed | None:
    """Return the speed of a GPU from published figures, None if its datasheet does not have a required rate.

    `figures`: all of them if None.
    """
    roofline = job.speed(gpu)
    if roofline is None:
        return None
    figures = one_gpu_figures() if figures is None else figures
    name = _published_name(job.workload, figures)
    of_gpu = [figure for figure in figures if (figure.gpu, figure.precision) == (gpu.name, job.precision)]
    if same := [figure for figure in of_gpu if figure.model == name]:
        return scaled(gpu, job, same, "published", f"published: {PROGRAM} on {gpu.name}")
    factors = network_factors(figures, job.precision)
    known = name in factors
    rate = roofline * factors.get(name, 1.0)
    unknown = "" if known else f", without published figures of {job.workload.name}"
    if of_gpu:
        shares = (share / factors[figure.model] for figure in of_gpu if (share := _over_roofline(figure)))
        networks = ", ".join(sorted({figure.model for figure in of_gpu}))
        source = f"published: {PROGRAM} on {gpu.name}, scaled from {networks}{unknown}"
        return Speed(rate * median(shares), "published" if known else "alike", source)
    return Speed(rate, "datasheet" if known else "alike", f"from the datasheet of {gpu.name}{unknown}")


def network_factors(figures: Sequence[Figure], precision: str) -> Mapping[str, float]:
    """Return measured images/sec over the roofline's, by network: the median over GPU models.

    For fp32, figures in fp32 are used if there are any. For 16 bits, all are used, because programs differ
    most there.
    """
    return _factors(figures) | _factors(
        figure for figure in figures if figure.precision == precision == "fp32"
    )


def _factors(figures: Iterable[Figure]) -> dict[str, float]:
    by_network: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in figures:
        if (share := _over_roofline(figure)) is not None:
            by_network[figure.model][figure.gpu].append(share)
    return {model: median(map(median, shares.values())) for model, shares in by_network.items()}


def _published_name(workload: Workload, figures: Sequence[Figure]) -> str:
    """Return the name under which a network was published, else its own: resnet50 for `keras:ResNet50`."""
    costs = attrgetter("multiply_accumulates", "feature_bytes", "parameters")

    def is_alike(name: str) -> bool:
        pairs = zip(costs(workload), costs(require_workload(name)), strict=True)
        return all(abs(a - b) <= SAME_NETWORK * b for a, b in pairs)

    names = dict.fromkeys(figure.model for figure in figures)
    if workload.name in names:
        return workload.name
    return next(filter(is_alike, names), workload.name)


def _ratio(gpu: GpuExpectation, job: OneGpuJob, batch: int) -> float:
    """Return the images/sec of a job divided by the images/sec with another batch."""
    speed, other = job.speed(gpu), job._replace(batch=batch).speed(gpu)
    return speed / other if speed and other else 1.0


@functools.cache
def _over_roofline(figure: Figure) -> float | None:
    gpu = expected_gpu(figure.gpu)
    job = OneGpuJob(require_workload(figure.model), figure.batch, figure.precision)
    rate = None if gpu is None else job.speed(gpu)
    return None if rate is None else figure.images_per_sec / rate


def single_gpu_speeds(
    machine: Machine,
    workload: Workload,
    batch: int,
    precision: str,
    *,
    given: Mapping[int, float] = {},
    history: Sequence[Figure] = (),
) -> dict[int, Speed]:
    """Return the images/sec of each GPU of a machine by itself, without the GPUs whose speed is unknown.

    `batch`: examples per GPU and step. `history`: earlier runs on this machine, the latest first.
    """
    job, speeds = OneGpuJob(workload, batch, precision), dict[int, Speed]()
    for gpu in machine.gpus:
        if gpu.index in given:
            speeds[gpu.index] = Speed(given[gpu.index], "given", "given with --single-gpu-images-per-sec")
            continue
        row = expected_of(gpu)
        speed = _of_history(gpu, row, job, history)
        if speed is None and row is not None:
            speed = published_speed(row, job)
        if speed is not None:
            speeds[gpu.index] = speed
    return speeds


def _of_history(
    gpu: Gpu, row: GpuExpectation | None, job: OneGpuJob, history: Sequence[Figure]
) -> Speed | None:
    same = [figure for figure in history if figure.is_of(gpu, job.workload.name, job.precision)]
    # A run on this GPU takes precedence over other GPUs of its model: one of them may be throttled.
    same = [figure for figure in same if figure.gpu_index == gpu.index] or same
    if not same:
        return None
    name, alone = _model_name(gpu.name or ""), [figure for figure in same if not figure.by_marks]
    if rates := [figure.images_per_sec for figure in alone if figure.batch == job.batch][:LATEST]:
        runs = "a run" if len(rates) == 1 else f"{len(rates)} runs"
        source = f"measured here: {runs} on one {name}, batch {job.batch}"
        return Speed(median(rates), "history", source)
    if row is None:
        return None
    what = "runs on one" if alone else "time marks of runs on several"
    return scaled(row, job, alone or same, "history", f"measured here: {what} {name}")


def _model_name(name: str) -> str:
    """Return the name of a GPU's model without the prefix that drivers from 465 on add."""
    return name.removeprefix("NVIDIA ")
