"""The constants of the roofline: fitted anew, judged on GPUs left out, and which figures do not count."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from statistics import fmean, median

import msgspec
import pytest

from gputopo.planner.cpu_devices import cpu_devices
from gputopo.prediction.one_gpu_speeds import Figure, one_gpu_figures
from gputopo.prediction.roofline import roofline_file
from gputopo.prediction.step import Placement
from tests.fits.cpu_devices import (
    CpuRun,
    alone_seconds,
    cpu_runs,
    fitted,
    pairs_in_order,
    predicted_s,
)
from tests.fits.cpu_devices import (
    left_out as without_model,
)
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


MODES = (
    Placement("parameter_server", "cpu"),
    *(Placement("replicated", None, name) for name in ("copy", "ring", "hierarchical")),
    Placement("independent"),
)


def test_the_shipped_constants_are_those_of_the_runs() -> None:
    assert fitted(cpu_runs()) == cpu_devices()


def test_placements_of_three_models_are_measured_on_two_and_four_devices() -> None:
    several = [run for run in cpu_runs() if run.devices > 1]
    assert {(run.model, run.devices) for run in several} == {
        (model, devices) for model in ("alexnet", "vgg11", "resnet20") for devices in (2, 4)
    }


def test_the_fit_finds_the_constants_of_runs_that_were_made_with_them() -> None:
    made = msgspec.structs.replace(cpu_devices(), memory_gb_per_s=7.5, us_op=60.0)
    alone = [
        CpuRun(model, 4, 1, MODES[0], 4 / seconds, 0.0)
        for model, seconds in (("alexnet", 0.3), ("resnet20", 0.1))
    ]
    several = [
        CpuRun(one.model, 4, devices, mode, 0.0, 0.0) for one in alone for devices in (2, 4) for mode in MODES
    ]
    seconds = alone_seconds(alone)
    runs = alone + [
        run._replace(images_per_sec=4 * run.devices / predicted_s(run, seconds[run.job[:2]], made))
        for run in several
    ]
    found = fitted(runs)
    assert (found.memory_gb_per_s, found.us_op) == pytest.approx((7.5, 60.0), rel=0.02)
    told, right = pairs_in_order(runs, found)
    assert told == right > 20


def test_nine_of_ten_pairs_that_differ_beyond_noise_were_measured_in_the_predicted_order() -> None:
    told, right = pairs_in_order(cpu_runs(), cpu_devices())
    assert right >= 0.9 * told > 90


def test_a_model_that_was_left_out_is_ordered_as_well() -> None:
    found = [without_model(cpu_runs(), model) for model in ("alexnet", "resnet20", "vgg11")]
    assert sum(right for _, right in found) >= 0.9 * sum(told for told, _ in found)


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
