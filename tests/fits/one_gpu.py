"""Fits the constants of the roofline to the published figures of one GPU; part of `tests.fits.programs`.

Every network has a factor of its own, so that the constants are what GPUs and precisions differ by. Each GPU
model is predicted with constants and factors that were found without it.
"""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from gputopo.prediction.one_gpu_speeds import DATASHEET, PROGRAM, Figure, gpu_names
from gputopo.prediction.roofline import FULL_CLOCKS, Roofline, RooflineFile, has_tensor_cores, step_seconds
from gputopo.reference.expectations import expected_gpu
from gputopo.reference.published import Published, published
from gputopo.workload.workloads import require
from tests import there
from tests.fits.least_squares import least_squares

# Winograd's algorithm for 3x3 kernels needs at least 1 / 2.25 of the products (arXiv 1509.09308).
BOUNDS: Mapping[str, tuple[float, float]] = {
    "cores_share": (0.5, 2.25),
    "tensor_share": (0.2, 1.5),
    "tf32_share": (0.4, 2.25),
    "kepler_share": (0.1, 1.5),
    "moves_fp32": (4.0, 40.0),
    "moves_fp16": (4.0, 40.0),
    "us_variable": (5.0, 200.0),
}
START = Roofline(
    cores_share=1.45,
    tensor_share=0.68,
    tf32_share=1.27,
    kepler_share=0.3,
    moves_fp32=18.0,
    moves_fp16=18.0,
    us_variable=60.0,
)
# The pull of each constant to its start, residuals per width of its bounds. Arithmetic and memory traffic are
# told apart by few networks: with less, shares end at their bounds and machines left out are no better.
PULL = 1.0
SOURCE = "fitted to images/sec of one GPU with synthetic data: tf_cnn_benchmarks, `data/published.csv`"

OneGpuJob = tuple[str, str, str]


TF32_SINCE = 4  # the minor version of TensorFlow 2


@functools.cache
def published_figures() -> tuple[Figure, ...]:
    """Return the published images/sec of one GPU with synthetic data, each once, without `left_out`."""
    return tuple(dict.fromkeys(figure for row, figure in _of_one_gpu() if _why_left_out(row) is None))


def left_out() -> dict[Figure, str]:
    """Return the published figures of one GPU that do not count, with the rule that leaves them out."""
    return {figure: why for row, figure in _of_one_gpu() if (why := _why_left_out(row)) is not None}


@functools.cache
def _of_one_gpu() -> tuple[tuple[Published, Figure], ...]:
    found = []
    for row in published():
        rate = _alone(row)
        if rate is None or row.is_suspect or row.data != "synthetic" or not row.program.startswith(PROGRAM):
            continue
        if row.data_format == "NHWC":  # not the layout that a GPU is trained in
            continue
        gpu = expected_gpu(gpu_names(row.machine)[row.gpus[0]])
        if gpu is not None:
            found.append((row, Figure(gpu.name, row.model, row.batch_per_gpu or 0, row.precision, rate)))
    return tuple(found)


def _alone(row: Published) -> float | None:
    return row.images_per_sec if len(row.gpus) == 1 else row.single_gpu_images_per_sec


def _why_left_out(row: Published) -> str | None:
    """Return the rule by which a figure of one GPU is no measure of that GPU, None if it is one."""
    gpu = expected_gpu(gpu_names(row.machine)[row.gpus[0]])
    if gpu is None or not has_tensor_cores(gpu, row.precision):
        return None
    if row.precision == "fp32":
        # NVIDIA's build of 1.15 has TF32 as well. https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0
        major, _, minor = (row.version or "").partition(".")
        before = major == "2" and minor.isdigit() and int(minor) < TF32_SINCE
        return f"fp32 without TF32, which TensorFlow has since 2.{TF32_SINCE}" if before else None
    slower = (_alone(row) or 0.0) < _fastest_fp32().get(_job(row), 0.0)
    return "slower in fp16 than in fp32 on the same machine, though it has tensor cores" if slower else None


@functools.cache
def _fastest_fp32() -> dict[object, float]:
    """Return the images/sec of one GPU in fp32 by job, the most of each."""
    found: dict[object, float] = {}
    for row, figure in _of_one_gpu():
        if row.precision == "fp32":
            found[_job(row)] = max(figure.images_per_sec, found.get(_job(row), 0.0))
    return found


def _job(row: Published) -> tuple[object, ...]:
    return row.source, row.machine, row.version, row.model, row.xla


def written(constants: Roofline) -> str:
    """Return the text of `roofline.json`, a figure a line."""
    figures = tuple(one[:5] for one in published_figures())
    table = RooflineFile(source=SOURCE, constants=constants, figures=figures)
    text = msgspec.json.format(msgspec.json.encode(table)).decode() + "\n"
    return re.sub(
        r"\[\s+(\".*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text, flags=re.DOTALL
    )


class Fitted(NamedTuple):
    """Constants, and measured over predicted images/sec of each network with them, as a logarithm."""

    constants: Roofline
    factors: Mapping[str, float]


def fit(figures: Sequence[Figure]) -> Fitted:
    """Return the constants that fit figures best, each job (GPU, network, precision) counted once."""
    begin = [getattr(START, name) for name in BOUNDS]
    widths = [high - low for low, high in BOUNDS.values()]

    def at(values: Sequence[float]) -> list[float]:
        jobs = _by_job(figures, _of(values))
        factors = _factors(jobs)
        pulls = [
            PULL * (value - first) / width for value, first, width in zip(values, begin, widths, strict=True)
        ]
        # What all networks have in common is a matter of the constants.
        whole = math.sqrt(len(jobs)) * fmean(factors.values())
        return [share - factors[model] for (_, model, _), share in jobs.items()] + pulls + [whole]

    found = least_squares(at, begin, list(BOUNDS.values()))
    constants = _of([float(f"{value:.3g}") for value in found])
    return Fitted(constants, _factors(_by_job(figures, constants)))


def errors(fitted: Fitted, figures: Iterable[Figure]) -> list[float]:
    """Return the logarithm of measured over predicted images/sec of each figure whose network is known."""
    return [
        share - fitted.factors[one.model]
        for one in figures
        if one.model in fitted.factors and (share := _share(one, fitted.constants)) is not None
    ]


def without_each(figures: Sequence[Figure]) -> dict[str, list[float]]:
    """Return the errors of each GPU model with what was fitted without it."""
    return {
        gpu: errors(
            fit([one for one in figures if one.gpu != gpu]), [one for one in figures if one.gpu == gpu]
        )
        for gpu in sorted({one.gpu for one in figures})
    }


def report() -> tuple[Roofline, str]:
    """Return the constants, and what `tests.fits.programs` prints of them."""
    figures = published_figures()
    fitted = fit(figures)
    apart = without_each(figures)
    constants = ", ".join(
        f"{name} {value:g}" for name, value in msgspec.structs.asdict(fitted.constants).items()
    )
    lines = [
        f"one GPU by its datasheet: {constants}",
        f"  fitted           {_words(errors(fitted, figures))}",
        f"  each left out    {_words([error for some in apart.values() for error in some])}",
    ]
    lines += [f"    {gpu:22}{_words(some)}" for gpu, some in apart.items()]
    inside = fmean(fmean(map(_is_inside, some)) for some in apart.values() if some)
    lines.append(
        f"  range            within a factor of {DATASHEET:g}: {inside:.0%} of the figures, GPUs alike"
    )
    by_rule: dict[str, list[Figure]] = defaultdict(list)
    for figure, why in left_out().items():
        by_rule[why].append(figure)
    for why, some in by_rule.items():
        names = "; ".join(f"{one.gpu} {one.model} {one.precision} {one.images_per_sec:g}" for one in some)
        lines.append(f"  left out         {why}: {names}")
    return fitted.constants, "\n".join(lines)


def _words(some: Sequence[float]) -> str:
    sizes = sorted(math.expm1(abs(error)) for error in some)
    inside = fmean(map(_is_inside, some))
    return f"{len(some):4} figures: median {median(sizes):.1%}, worst {sizes[-1]:.1%}, in range {inside:.0%}"


def _is_inside(error: float) -> bool:
    return abs(error) <= math.log(DATASHEET)


def _of(values: Sequence[float]) -> Roofline:
    return Roofline(**dict(zip(BOUNDS, values, strict=True)))


def _share(one: Figure, constants: Roofline) -> float | None:
    gpu = there(expected_gpu(one.gpu))
    seconds = step_seconds(gpu, require(one.model), one.batch, one.precision, FULL_CLOCKS, constants)
    return None if seconds is None else math.log(one.images_per_sec * seconds / one.batch)


def _by_job(figures: Iterable[Figure], constants: Roofline) -> dict[OneGpuJob, float]:
    jobs: dict[OneGpuJob, list[float]] = defaultdict(list)
    for one in figures:
        if (share := _share(one, constants)) is not None:
            jobs[one.gpu, one.model, one.precision].append(share)
    return {job: fmean(shares) for job, shares in jobs.items()}


def _factors(jobs: Mapping[OneGpuJob, float]) -> dict[str, float]:
    by_network: dict[str, list[float]] = defaultdict(list)
    for (_, model, _), share in jobs.items():
        by_network[model].append(share)
    return {model: fmean(shares) for model, shares in by_network.items()}
