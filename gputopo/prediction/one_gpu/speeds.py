"""Images per second of one GPU: given, of its own runs, of published figures, or of the datasheet.

The first of these that there is counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from gputopo.findings.usage import busy
from gputopo.prediction.one_gpu.published import Figure, Job, Speed, published_speed, scaled
from gputopo.prediction.one_gpu.roofline import Clocks
from gputopo.reference.expectations import GpuExpectation, expected_gpu
from gputopo.values.errors import UsageError
from gputopo.values.gpu import ClockMhz
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.result import Result
from gputopo.workload.workloads import Workload

# Images/sec of two runs of one job on one GPU differ by this at most. Ours.
SAME_RUN = 0.03
LATEST = 3  # runs of one job: one that was disturbed does not move their median, older ones matter less
# A clock under load above this share of the expected one counts as that: CUDA runs GeForce GPUs with slightly
# slower memory, and boost clocks vary by chip and cooler (`gputopo.findings.clocks`).
EXPECTED_SHARE = 0.9


def given_speeds(values: Sequence[float], gpus: Sequence[int]) -> dict[int, float]:
    """Return the speed of each GPU from `--single-gpu-images-per-sec`: one number, or one for each.

    Raises UsageError.
    """
    if any(not 0 < value < float("inf") for value in values):
        raise UsageError("a speed must be above 0 images/sec", "leave out --single-gpu-images-per-sec")
    if len(values) == 1:
        return dict.fromkeys(gpus, values[0])
    if values and len(values) != len(gpus):
        raise UsageError(
            f"--single-gpu-images-per-sec has {len(values)} numbers for {len(gpus)} GPUs",
            "write one number for all, or one for each GPU",
        )
    return dict(zip(gpus, values, strict=False))


def past_speeds(results: Iterable[Result]) -> tuple[Figure, ...]:
    """Return the complete training runs of one GPU, in their order. `gpu`: the name of the GPU."""
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
    """Return the images/sec of each GPU of a machine alone, None where `why_unknown` has the missing fact.

    `batch`: examples of one GPU and step. `history`: earlier runs of this box, the latest first.
    """
    job = Job(workload, batch, precision)
    return {
        gpu.index: Speed(speed, speed, speed, "given", "given with --single-gpu-images-per-sec")
        if (speed := given.get(gpu.index)) is not None
        else _of_history(gpu, job, history) or _of_reference(gpu, job)
        for gpu in machine.gpus
    }


def why_unknown(gpu: Gpu) -> str:
    """Return the fact without which the speed of a GPU is unknown."""
    name = _model_name(gpu.name)
    if name is None and gpu.pci_device_id is None:
        return f"the model of GPU {gpu.index} is unknown"
    return f"no reference data for {name or f'PCI id {gpu.pci_device_id}'}"


def reached_clocks(gpu: Gpu, expected: GpuExpectation) -> Clocks:
    """Return the shares of the expected clocks: under load, else by what is set for applications."""
    clocks = gpu.clocks_mhz
    core = clocks.sm if clocks.sm.now is not None else clocks.graphics
    limit = expected.boost_mhz or core.max or clocks.graphics.max
    loaded = busy(gpu)
    return Clocks(
        _share(clocks.graphics, core.now if loaded else None, limit),
        _share(clocks.memory, clocks.memory.now if loaded else None, expected.max_memory_mhz),
    )


def _share(domain: ClockMhz, now: int | None, limit: int | None) -> float:
    shares = [1.0]
    if now is not None and limit:
        shares.append(now / limit)
    if domain.application is not None and domain.default_application:
        shares.append(domain.application / domain.default_application)
    share = min(shares)
    return share if 0 < share < EXPECTED_SHARE else 1.0


def _of_history(gpu: Gpu, job: Job, history: Sequence[Figure]) -> Speed | None:
    same = [
        one
        for one in history
        if (one.model, one.precision) == (job.workload.name, job.precision)
        and gpu.name is not None
        and _model_name(one.gpu) == _model_name(gpu.name)
    ]
    # A run on this very GPU counts before those of others of its model: one of them may be throttled.
    same = [one for one in same if one.gpu_index == gpu.index] or same
    if not same:
        return None
    name, alone = _model_name(gpu.name), [one for one in same if not one.by_marks]
    if rates := [one.images_per_sec for one in alone if one.batch == job.batch][:LATEST]:
        rate = median(rates)
        low, high = min(*rates, rate * (1 - SAME_RUN)), max(*rates, rate * (1 + SAME_RUN))
        runs = "a run" if len(rates) == 1 else f"{len(rates)} runs"
        return Speed(rate, low, high, "history", f"measured here: {runs} on one {name}, batch {job.batch}")
    row = expected_gpu(gpu.name, gpu.pci_device_id)
    if row is None:
        return None
    if alone:
        return scaled(row, job, alone, "history", f"measured here: runs on one {name}")
    return scaled(row, job, same, "history", f"measured here: time marks of runs on several {name}")


def _of_reference(gpu: Gpu, job: Job) -> Speed | None:
    row = expected_gpu(gpu.name, gpu.pci_device_id)
    return None if row is None else published_speed(row, job, reached_clocks(gpu, row))


def _past_speed(result: Result) -> Figure | None:
    spec, throughput = result.spec, result.throughput
    if result.status != "complete" or result.backend != "gpu" or len(result.devices) != 1:
        return None
    name, batch = result.devices[0].device.gpu_name, result.devices[0].batch_size
    model, precision = spec.get("model"), spec.get("precision")
    compute: Any = precision.get("compute") if isinstance(precision, Mapping) else None
    if spec.get("task", "train") != "train" or not isinstance(model, str) or not isinstance(compute, str):
        return None
    data: Any = spec.get("data")
    if isinstance(data, Mapping) and data.get("folder") is not None:
        return None  # its input may have limited it
    if name is None or throughput is None or batch < 1 or throughput.mean <= 0:
        return None
    return Figure(name, model, batch, compute, throughput.mean, gpu_index=result.devices[0].device.gpu)


def _model_name(name: str | None) -> str | None:
    return None if name is None else name.removeprefix("NVIDIA ")
