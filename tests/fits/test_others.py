"""The constants of the roofline: fitted anew, judged on GPUs left out, and which figures do not count."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from statistics import fmean, median

import msgspec
import pytest

from gputopo.prediction.one_gpu_speeds import Figure, one_gpu_figures
from gputopo.prediction.roofline import roofline_file
from tests.fits.hosts import SOURCES, main, published_of_hosts
from tests.fits.one_gpu import BOUNDS, Fitted, errors, fit, left_out, published_figures, report, without_each

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
    """Inside their bounds; of the published figures that count."""
    assert published_figures() == FIGURES
    for name, (low, high) in BOUNDS.items():
        constant = getattr(roofline_file().constants, name)
        assert low < constant < high
        assert constant == pytest.approx(getattr(_fitted().constants, name), rel=0.02)


def test_no_constant_fits_better_by_half_more_or_less() -> None:
    """With the networks' factors as they are."""
    for constant in BOUNDS:
        for times in [0.5, 1.5]:
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


def test_most_published_figures_of_several_hosts_are_near_their_predictions() -> None:
    errors = {
        name: [abs(row.error) for row in published_of_hosts() if row.source == name] for name in SOURCES
    }
    assert (len(errors["tensorflow.org"]), len(errors["piz-daint"])) == (15, 3)
    assert median(errors["tensorflow.org"]) < 0.05
    assert max(errors["tensorflow.org"]) < 0.20
    assert max(errors["piz-daint"]) < 0.06


def test_a_figure_of_an_older_grpc_is_known_to_be_far_off() -> None:
    (row,) = (row for row in published_of_hosts() if row.note)
    assert row.error > 0.3


def test_every_source_has_its_figures_and_its_errors_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(published_of_hosts()) + len(SOURCES)
