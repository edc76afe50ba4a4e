"""The constants of the roofline: fitted anew, judged on GPUs left out, and which figures do not count."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from statistics import fmean, median

import msgspec
import pytest

from gputopo.prediction.one_gpu.fit import BOUNDS, Fitted, errors, fit, report, without_each
from gputopo.prediction.one_gpu.published import Figure, left_out, one_gpu_figures
from gputopo.prediction.one_gpu.roofline import shipped

FIGURES = one_gpu_figures()


@cache
def _fitted() -> Fitted:
    return fit(FIGURES)


@cache
def _reported() -> str:
    return report()[1]


def _absolute(some: Iterable[float]) -> float:
    return fmean(map(abs, some))


def test_the_shipped_constants_are_those_that_the_fit_finds() -> None:
    """Inside their bounds."""
    for name, (low, high) in BOUNDS.items():
        constant = getattr(shipped(), name)
        assert low < constant < high
        assert constant == pytest.approx(getattr(_fitted().constants, name), rel=0.02)


@pytest.mark.parametrize("constant", BOUNDS)
@pytest.mark.parametrize("times", [0.5, 1.5])
def test_no_constant_fits_better_by_half_more_or_less(constant: str, times: float) -> None:
    """With the networks' factors as they are."""
    constants, factors = _fitted()
    other = msgspec.structs.replace(constants, **{constant: times * getattr(constants, constant)})

    assert _absolute(errors(Fitted(other, factors), FIGURES)) > _absolute(errors(_fitted(), FIGURES))


def test_figures_of_a_gpu_that_was_left_out_are_within_the_range_of_datasheets() -> None:
    """Three of four, each GPU model alike, as the plan states; printed with the fit."""
    apart = without_each(FIGURES)
    inside = fmean(fmean(abs(error) <= 0.3365 for error in some) for some in apart.values())

    assert len(apart) >= 13
    assert inside >= 0.75
    assert median(abs(error) for some in apart.values() for error in some) <= 0.13
    assert f"{inside:.0%} of the figures" in _reported()


def test_figures_that_contradict_others_do_not_count_and_are_named() -> None:
    """Slower in fp16 than in fp32 with tensor cores; fp32 before TensorFlow had TF32. By rules alone."""
    reasons = left_out()

    assert not reasons.keys() & set(FIGURES)
    assert Counter(why.split()[0] for why in reasons.values()) == {"slower": 2, "fp32": 6}
    assert Figure("A100-SXM4-40GB", "vgg16", 448, "fp16", 70.27) in reasons
    assert all(f"{one.gpu} {one.model} {one.precision}" in _reported() for one in reasons)
