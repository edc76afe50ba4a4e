"""Fits the constants of the roofline to the published figures of one GPU; part of `tests.fits.programs`.

Every network has a factor of its own, so that the constants are what GPUs and precisions differ by. Each GPU
model is predicted with constants and factors that were found without it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from gputopo.prediction.calibration import least_squares
from gputopo.prediction.one_gpu_speeds import DATASHEET, Figure, left_out, one_gpu_figures
from gputopo.prediction.roofline import FULL_CLOCKS, Roofline, step_seconds
from gputopo.reference.expectations import expected_gpu
from gputopo.workload.workloads import require

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

Job = tuple[str, str, str]


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
    figures = one_gpu_figures()
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
    gpu = expected_gpu(one.gpu)
    assert gpu is not None
    seconds = step_seconds(gpu, require(one.model), one.batch, one.precision, FULL_CLOCKS, constants)
    return None if seconds is None else math.log(one.images_per_sec * seconds / one.batch)


def _by_job(figures: Iterable[Figure], constants: Roofline) -> dict[Job, float]:
    jobs: dict[Job, list[float]] = defaultdict(list)
    for one in figures:
        if (share := _share(one, constants)) is not None:
            jobs[one.gpu, one.model, one.precision].append(share)
    return {job: fmean(shares) for job, shares in jobs.items()}


def _factors(jobs: Mapping[Job, float]) -> dict[str, float]:
    by_network: dict[str, list[float]] = defaultdict(list)
    for (_, model, _), share in jobs.items():
        by_network[model].append(share)
    return {model: fmean(shares) for model, shares in by_network.items()}
