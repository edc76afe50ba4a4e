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

from gputopo.captures import bundled_names, read_bundled
from gputopo.prediction.roofline import roofline_file, step_seconds
from gputopo.reference.expectations import GpuExpectation, expected_gpu
from gputopo.reference.published import published_machines
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.events import Device
from gputopo.values.run.result import Result
from gputopo.values.run.spec import RunSpec
from gputopo.workload.workloads import Workload, require

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
SAME_JOB = 1.10  # for the same job on the same model: machines and versions of TensorFlow differ


class Speed(NamedTuple):
    """Images/sec of one GPU by itself, with the range that holds on published figures. `source`: in words."""

    images_per_sec: float
    low: float
    high: float
    basis: SpeedBasis
    source: str


def speed_of(rate: float, basis: SpeedBasis, source: str) -> Speed:
    """Return a speed with the range of its basis."""
    return Speed(rate, rate / FACTOR[basis], rate * FACTOR[basis], basis, source)


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
    apart = min(abs(math.log2(job.batch / one.batch)) for one in figures)
    near = [one for one in figures if abs(math.log2(job.batch / one.batch)) == apart]
    rates = [one.images_per_sec * _ratio(gpu, job, one.batch) for one in near]
    batches = " and ".join(map(str, sorted({one.batch for one in near})))
    words = f"{source}, batch {batches}" + (f", scaled to {job.batch}" if apart else "")
    return speed_of(median(rates), basis, words)


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
    own = [one for one in figures if (one.gpu, one.precision) == (gpu.name, job.precision)]
    if same := [one for one in own if one.model == name]:
        return scaled(gpu, job, same, "published", f"published: {PROGRAM} on {gpu.name}")
    factors = network_factors(figures, job.precision)
    known = name in factors
    rate = roofline * factors.get(name, 1.0)
    unknown = "" if known else f", without published figures of {job.workload.name}"
    if own:
        shares = (share / factors[one.model] for one in own if (share := _over_roofline(one)))
        networks = ", ".join(sorted({one.model for one in own}))
        source = f"published: {PROGRAM} on {gpu.name}, scaled from {networks}{unknown}"
        return speed_of(rate * median(shares), "published" if known else "alike", source)
    return speed_of(rate, "datasheet" if known else "alike", f"from the datasheet of {gpu.name}{unknown}")


def network_factors(figures: Sequence[Figure], precision: str) -> Mapping[str, float]:
    """Return measured images/sec over the roofline's, by network: the median over GPU models.

    For fp32, figures in fp32 are used if there are any. For 16 bits, all are used, because programs differ
    most there.
    """
    return _factors(figures) | _factors(one for one in figures if one.precision == precision == "fp32")


def _factors(figures: Iterable[Figure]) -> dict[str, float]:
    by_network: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in figures:
        if (share := _over_roofline(one)) is not None:
            by_network[one.model][one.gpu].append(share)
    return {model: median(map(median, shares.values())) for model, shares in by_network.items()}


def _published_name(workload: Workload, figures: Sequence[Figure]) -> str:
    """Return the name under which a network was published, else its own: resnet50 for `keras:ResNet50`."""

    costs = attrgetter("multiply_accumulates", "feature_bytes", "parameters")

    def is_alike(name: str) -> bool:
        pairs = zip(costs(workload), costs(require(name)), strict=True)
        return all(abs(a - b) <= SAME_NETWORK * b for a, b in pairs)

    names = dict.fromkeys(one.model for one in figures)
    if workload.name in names:
        return workload.name
    return next(filter(is_alike, names), workload.name)


def _ratio(gpu: GpuExpectation, job: OneGpuJob, batch: int) -> float:
    """Return the images/sec of a job divided by the images/sec with another batch."""
    here, there = job.speed(gpu), job._replace(batch=batch).speed(gpu)
    return here / there if here and there else 1.0


@functools.cache
def _over_roofline(figure: Figure) -> float | None:
    gpu = expected_gpu(figure.gpu)
    job = OneGpuJob(require(figure.model), figure.batch, figure.precision)
    rate = None if gpu is None else job.speed(gpu)
    return None if rate is None else figure.images_per_sec / rate


@functools.cache
def gpu_names(machine: str) -> Mapping[int, str | None]:
    """Return the models of a published machine's GPUs."""
    if machine in bundled_names():
        return {gpu.index: gpu.name for gpu in read_bundled(machine).gpus}
    published_machine = published_machines()[machine]
    return dict.fromkeys(range(published_machine.count), published_machine.gpu)


# Maximum difference of two runs of one job on one GPU. Not measured; chosen because single runs vary by up to
# 2 % on an idle machine.
SAME_RUN = 0.03
LATEST = 3  # runs of one job: one disturbed run does not change their median, and older runs matter less


def given_speeds(values: Sequence[float], gpus: Sequence[int]) -> dict[int, float]:
    """Return the speed of each GPU from `--single-gpu-images-per-sec`: one number, or one for each.

    Raises UsageError.
    """
    if len(values) == 1:
        return dict.fromkeys(gpus, values[0])
    if values and len(values) != len(gpus):
        raise UsageError(
            f"--single-gpu-images-per-sec has {len(values)} numbers for {len(gpus)} GPUs",
            "write one number for all, or one for each GPU",
        )
    return dict(zip(gpus, values, strict=False))


def past_speeds(results: Iterable[Result]) -> tuple[Figure, ...]:
    """Return the complete training runs on one GPU, in their order. `gpu`: the name of the GPU."""
    return tuple(figure for result in results if (figure := _past_speed(result)) is not None)


def single_gpu_speeds(
    machine: Machine,
    workload: Workload,
    batch: int,
    precision: str,
    *,
    given: Mapping[int, float] = {},
    history: Sequence[Figure] = (),
) -> dict[int, Speed | None]:
    """Return the images/sec of each GPU of a machine by itself, None if it is unknown.

    `batch`: examples per GPU and step. `history`: earlier runs on this machine, the latest first.
    """
    job = OneGpuJob(workload, batch, precision)
    return {
        gpu.index: speed_of(speed, "given", "given with --single-gpu-images-per-sec")
        if (speed := given.get(gpu.index)) is not None
        else _of_history(gpu, job, history) or _of_reference(gpu, job)
        for gpu in machine.gpus
    }


def why_unknown(gpu: Gpu) -> str:
    """Return why the speed of a GPU is not known, and which option sets it."""
    name = model_name(gpu.name)
    if name is None and gpu.pci_device_id is None:
        why = f"the model of GPU {gpu.index} is unknown"
    else:
        why = f"there is no reference data for {name or f'PCI id {gpu.pci_device_id}'}"
    return f"{why}: --single-gpu-images-per-sec sets its speed"


def _of_history(gpu: Gpu, job: OneGpuJob, history: Sequence[Figure]) -> Speed | None:
    same = [
        one
        for one in history
        if (one.model, one.precision) == (job.workload.name, job.precision)
        and gpu.name is not None
        and model_name(one.gpu) == model_name(gpu.name)
    ]
    # A run on this GPU takes precedence over other GPUs of its model: one of them may be throttled.
    same = [one for one in same if one.gpu_index == gpu.index] or same
    if not same:
        return None
    name, alone = model_name(gpu.name), [one for one in same if not one.by_marks]
    if rates := [one.images_per_sec for one in alone if one.batch == job.batch][:LATEST]:
        runs = "a run" if len(rates) == 1 else f"{len(rates)} runs"
        source = f"measured here: {runs} on one {name}, batch {job.batch}"
        return speed_of(median(rates), "history", source)
    row = expected_gpu(gpu.name, gpu.pci_device_id)
    if row is None:
        return None
    what = "runs on one" if alone else "time marks of runs on several"
    return scaled(row, job, alone or same, "history", f"measured here: {what} {name}")


def _of_reference(gpu: Gpu, job: OneGpuJob) -> Speed | None:
    row = expected_gpu(gpu.name, gpu.pci_device_id)
    return None if row is None else published_speed(row, job)


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
    peak = peak_bytes(result, result.devices[0].device)
    gpu = result.devices[0].device.gpu
    return Figure(
        name, job.model, batch, job.precision.compute, throughput.mean, gpu_index=gpu, peak_bytes=peak
    )


def peak_bytes(result: Result, device: Device) -> int | None:
    """Return the peak of a device's memory in a run, by TensorFlow's allocator; None: not measured."""
    return None if result.memory is None else result.memory.devices.get(device.device)


def model_name(name: str | None) -> str | None:
    """Return the name of a GPU's model without differences between drivers."""
    return None if name is None else name.removeprefix("NVIDIA ")
