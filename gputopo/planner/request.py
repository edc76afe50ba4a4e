"""The request to the planner, its check against the machine, and the usable GPUs."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gputopo.findings import find_read, use_of
from gputopo.prediction import DEFAULT_PROGRAM
from gputopo.topology import gpus_of_other_drivers
from gputopo.values.errors import NoPlanError, UsageError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.option import listed
from gputopo.values.run import all_reduce
from gputopo.values.run.batches import AUTO, AskedBatch, as_typed, batches_of, plain, shares
from gputopo.values.run.plan import HOST_PS, SPREAD, Refusal
from gputopo.values.samples import at_samples
from gputopo.workload import Workload


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs and the placement that a user requests.

    `gpus` without `num_gpus` is the exact set, in tower order; with `num_gpus` it is the GPUs to choose from.
    GPUs in `exclude` are never chosen. `num_gpus` None: all usable GPUs, or with `prefer_pix` the largest PIX
    island; "auto": the number of these that gives `gain` of the ideal speedup (`gputopo.planner.how_many`).

    `batch_size`: of every GPU, or of each in tower order; auto: proportional to their speeds; None: the
    model's default. `single_gpu_images_per_sec`: one number for all GPUs, or one for each of `gpus`, else for
    each GPU of the machine. `no_history`: do not use earlier runs on this machine, nor its saved bandwidth,
    which the caller adds.
    """

    num_gpus: int | Literal["auto"] | None = None
    gain: float | None = None
    gpus: tuple[int, ...] | None = None
    exclude: tuple[int, ...] = ()
    prefer_pix: bool = False
    ps: str = "auto"  # auto, cpu, gpu:N with N an index of the machine, or gpu:spread
    variable_update: str = "auto"  # auto or a VariableUpdate
    all_reduce: str | None = None  # a name of gputopo.values.run.all_reduce, for replicated
    model: str | None = None
    program: str = DEFAULT_PROGRAM  # a name of gputopo.prediction.programs
    batch_size: AskedBatch | None = None
    precision: str = "fp32"  # as in a RunSpec
    predicts: bool = True  # whether it trains in steps that can be predicted
    fits: bool = False  # whether to refuse a batch larger than the memory of its GPU
    explain: bool = False  # whether to return the timeline of the choice
    workload: Workload | None = None  # the costs of a model that is in no table, if they are known
    single_gpu_images_per_sec: tuple[float, ...] = ()
    no_history: bool = False
    by_measurements: bool = True  # whether measured placements of the machine decide

    @property
    def is_of_one_gpu(self) -> bool:
        """Whether one GPU is requested, so that links between GPUs do not matter."""
        return self.num_gpus == 1 or (self.num_gpus is None and len(self.gpus or ()) == 1)


def ps_gpu(request: Request) -> int | None:
    """Return N for `ps` gpu:N, None for auto, cpu and gpu:spread. Raises UsageError for host:N."""
    if request.ps in ("auto", "cpu", SPREAD):
        return None
    if request.ps.startswith(HOST_PS):
        raise UsageError(
            f"--ps {request.ps} is one of several hosts, but this is a plan for one", "use --ps cpu"
        )
    return int(request.ps.removeprefix("gpu:"))


def check(request: Request, machine: Machine) -> None:
    """Raise UsageError for options that contradict one another or the machine.

    Raises NoPlanError if the machine has no GPU at all.
    """
    check_placement(request)
    check_predicting(request)
    holder = ps_gpu(request)
    indices = sorted(gpu.index for gpu in machine.gpus)
    if not indices:
        raise NoPlanError("this machine has no GPU", "pass a capture of one with GPUs: --from FILE")
    _check_indices("--gpus", request.gpus or (), indices)
    _check_indices("--exclude", request.exclude, indices)
    both = sorted(set(request.gpus or ()) & set(request.exclude))
    if both:
        raise UsageError(f"{gpus_in_words(both)}: in both --gpus and --exclude", "remove it from one of them")
    if holder is not None:
        _check_holder(holder, request, indices)
    given_speeds(request.single_gpu_images_per_sec, request.gpus or indices)
    check_batch_size(request)


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


def check_batch_size(request: Request) -> None:
    """Raise UsageError for batches below 1, or for one batch per GPU if the number of GPUs is not given."""
    asked = request.batch_size
    if isinstance(asked, tuple) and request.num_gpus == "auto":
        raise UsageError(
            "--batch-size with a number for each GPU cannot be combined with --num-gpus auto",
            f"give --num-gpus {len(asked)}, or --batch-size auto",
        )
    if asked is None or asked == AUTO:
        return
    least = min(batches_of(asked, 1))
    if least < 1:
        raise UsageError(f"--batch-size cannot be {least}", "give 1 or more")


def check_predicting(request: Request) -> None:
    """Raise UsageError for prediction options that contradict one another, on any device."""
    if request.single_gpu_images_per_sec and request.model is None:
        raise UsageError(
            "--single-gpu-images-per-sec needs --model, which a program after -- does not have",
            "remove it",
        )


def usable(
    machine: Machine, request: Request, unavailable: Mapping[int, str]
) -> tuple[tuple[int, ...], tuple[Refusal, ...]]:
    """Return the GPUs to choose from (in `gpus` order if set), and the skipped ones with reasons.

    The caller has checked the request. `unavailable`: GPUs that this process may not use, with reasons.
    Raises NoPlanError if a GPU of an exact set cannot be used.
    """
    drivers = gpus_of_other_drivers([machine])
    whys: dict[int, str | None] = {}
    for samples in zip(*(sample.gpus for sample in at_samples(machine)), strict=True):
        driver = drivers.pop(samples[0].pci_address or "", None)
        reasons = (_bound_to(driver), *map(_unusable, samples))
        whys[samples[0].index] = next(filter(None, reasons), None)
    whys |= unavailable
    whys |= dict.fromkeys(request.exclude, "listed in --exclude")
    left_out = {index for index, why in whys.items() if why}
    pool = request.gpus if request.gpus is not None else tuple(sorted(whys))
    named = request.gpus if request.gpus is not None and request.num_gpus is None else ()
    holder = ps_gpu(request)
    for index in (*named, *(() if holder is None else (holder,))):
        if index in left_out:
            others = whys.keys() - left_out
            hint = f"use others: {index_ranges(others)} can be used" if others else "see gputopo inspect"
            raise NoPlanError(f"GPU {index} cannot be used: {whys[index]}", hint)
    return tuple(index for index in pool if index not in left_out), (
        *_refusals(whys),
        *(Refusal(reason=f"{address} excluded: {_bound_to(driver)}") for address, driver in drivers.items()),
    )


class Trouble(NamedTuple):
    """Why others are preferred to a usable GPU, in words: it is in use, or has errors."""

    use: str | None
    errors: tuple[str, ...]

    @property
    def words(self) -> str:
        """`in use by python (pid 4321)`, or the error findings."""
        return "; ".join(filter(None, (self.use, *self.errors)))


def troubles(machine: Machine) -> dict[int, Trouble]:
    """Return why usable GPUs should be avoided: another program in any sample, or errors."""
    uses: dict[int, str] = {}
    for gpu in (gpu for sample in at_samples(machine) for gpu in sample.gpus if not gpu.lost):
        use = use_of(gpu)
        if use is not None:
            uses.setdefault(gpu.index, use.words)
    errors: dict[int, list[str]] = {}
    for finding in find_read(machine):
        if finding.subject.kind == "gpus" and finding.severity == "error":
            for index in finding.subject.gpus:
                errors.setdefault(index, []).append(f"{finding.says} ({finding.id})")
    return {
        index: Trouble(uses.get(index), tuple(errors.get(index, ()))) for index in sorted({*uses, *errors})
    }


def gpus_in_words(gpus: Sequence[int]) -> str:
    """Return `GPU 3` or `GPUs 0, 1 and 2`."""
    return f"GPU{'' if len(gpus) == 1 else 's'} {listed(map(str, gpus), 'and')}"


def check_placement(request: Request) -> None:
    """Raise UsageError for placements and reductions that contradict one another, on any device."""
    if request.variable_update in ("replicated", "independent") and request.ps != "auto":
        raise UsageError(
            f"--ps {request.ps} cannot be combined with --variable-update {request.variable_update}: "
            "each device has its own copy",
            "remove --ps, or use --variable-update parameter_server",
        )
    if request.all_reduce is None:
        return
    all_reduce.parse(request.all_reduce)
    if request.variable_update in ("parameter_server", "independent"):
        raise UsageError(
            f"--all-reduce {request.all_reduce} cannot be combined with "
            f"--variable-update {request.variable_update}: nothing is reduced between replicas",
            "remove --all-reduce, or use --variable-update replicated",
        )
    if request.ps != "auto":
        raise UsageError(
            f"--all-reduce {request.all_reduce} reduces between devices that each have their own variables, "
            f"so --ps {request.ps} has no effect",
            "use only one of them",
        )


def _check_indices(option: str, given: Sequence[int], indices: Sequence[int]) -> None:
    for index in given:
        if index not in indices:
            raise UsageError(
                f"{option}: this machine has no GPU {index}",
                f"the GPUs of this machine: {index_ranges(indices)}",
            )


def _check_holder(holder: int, request: Request, indices: Sequence[int]) -> None:
    option = f"--ps gpu:{holder}"
    if holder not in indices:
        raise UsageError(
            f"{option}: this machine has no GPU {holder}",
            f"the GPUs of this machine: {index_ranges(indices)}; or use --ps cpu",
        )
    if holder in request.exclude:
        raise UsageError(f"{option}: GPU {holder} is in --exclude", "remove it from one of them")
    if request.gpus is not None and holder not in request.gpus:
        raise UsageError(
            f"{option} is not one of the chosen {gpus_in_words(request.gpus)}",
            f"use --ps gpu:{request.gpus[0]}, or add {holder} to --gpus",
        )


def _bound_to(driver: str | None) -> str | None:
    return f"bound to the kernel driver {driver}, not NVIDIA's" if driver else None


def _unusable(gpu: Gpu) -> str | None:
    if gpu.lost:
        return "lost, no answer"
    if gpu.recovery_action not in (None, "none"):
        return f"the driver requests a recovery action ({gpu.recovery_action})"
    if gpu.mig.mode:
        return "in MIG mode: a program gets one instance"
    if gpu.fabric.joining:
        return f"not joined to its NVSwitches (fabric state: {gpu.fabric.state})"
    if gpu.compute_mode is not None and "prohibited" in gpu.compute_mode.lower():
        return "compute mode Prohibited"
    if gpu.remapped_rows.failure:
        return "row remapping failed"
    if _is_exclusive(gpu):
        return "in use by another program (compute mode Exclusive)"
    return None


def _is_exclusive(gpu: Gpu) -> bool:
    """Return whether a program uses a GPU in exclusive mode. MPS shares such a GPU with others."""
    if gpu.compute_mode is None or "exclusive" not in gpu.compute_mode.lower():
        return False
    computing = [process for process in gpu.processes or () if process.kind in ("compute", "mps")]
    shared = any(process.kind == "mps" or "cuda-mps" in (process.name or "") for process in computing)
    return bool(computing) and not shared


def _refusals(whys: Mapping[int, str | None]) -> tuple[Refusal, ...]:
    by_reason: dict[str, list[int]] = {}
    for index, why in sorted(whys.items()):
        if why:
            by_reason.setdefault(why, []).append(index)
    return tuple(
        Refusal(gpus=tuple(gpus), reason=f"{gpus_in_words(gpus)} excluded: {why}")
        for why, gpus in by_reason.items()
    )


# Speeds of one GPU within this are treated as equal: two runs of one job differ as much.
SAME_SPEED = 0.03


def mean_batch(asked: AskedBatch | None, of_model: int) -> int:
    """Return the mean examples per GPU. With auto, or without a request, this is the batch of the model."""
    if asked is None or asked == AUTO:
        return of_model
    each = batches_of(asked, 1)
    return max(1, round(sum(each) / len(each)))


def batches(asked: AskedBatch | None, mean: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the examples of each GPU for a requested batch. `speeds`: images/sec of each GPU by itself.

    With auto, the sum is the same as with equal batches. GPUs of the same speed have equal batches.
    """
    if isinstance(asked, tuple):
        return asked
    if asked == AUTO and min(speeds) < (1 - SAME_SPEED) * max(speeds):
        return shares(mean * len(speeds), speeds)
    return (mean,) * len(speeds)


def speed_classes(speeds: Mapping[int, float]) -> list[list[int]]:
    """Return GPUs grouped by speed, the fastest first."""
    classes: list[list[int]] = []
    for gpu in sorted(speeds, key=lambda gpu: (-speeds[gpu], gpu)):
        if classes and speeds[gpu] >= (1 - SAME_SPEED) * speeds[classes[-1][0]]:
            classes[-1].append(gpu)
        else:
            classes.append([gpu])
    return classes


def batch_reasons(request: Request, each: Sequence[int], *, known: bool) -> tuple[str, ...]:
    """Return how `--batch-size auto` chose the batches. `known`: whether the speeds of the GPUs are known."""
    if request.batch_size != AUTO or len(each) == 1:
        return ()
    batch = plain(each) if each else None
    if isinstance(batch, tuple):
        together = f"{sum(batch)} examples together, as with equal batches"
        return (f"batches {as_typed(batch)}: in proportion to the speed of each GPU alone; {together}",)
    why = "the GPUs have the same speed" if known else "no speed of one GPU is known"
    return (f"--batch-size auto: equal batches, because {why}",)
