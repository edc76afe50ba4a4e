"""The speed of one GPU by published figures and datasheets, judged on the published figures themselves."""

import math
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import pytest

from gputopo.prediction.one_gpu.published import (
    Figure,
    Job,
    Speed,
    network_factors,
    one_gpu_figures,
    published_speed,
)
from gputopo.prediction.one_gpu.roofline import FULL_CLOCKS, Clocks
from gputopo.reference.expectations import expected_gpu
from gputopo.workload.workloads import require

FIGURES = one_gpu_figures()
K80_VGG16 = Figure("Tesla K80", "vgg16", 64, "fp32", 20.0)
INSIDE = 0.75  # of the measured figures, between low and high


def predicted(figure: Figure, known: Sequence[Figure], clocks: Clocks = FULL_CLOCKS) -> Speed:
    gpu = expected_gpu(figure.gpu)
    assert gpu is not None
    speed = published_speed(gpu, Job(require(figure.model), figure.batch, figure.precision), clocks, known)
    assert speed is not None
    return speed


def judged(leaves_out: Callable[[Figure, Figure], bool]) -> tuple[float, float]:
    """Return the share of figures inside their range, by GPU, and the median error as a factor."""
    inside: dict[str, list[bool]] = {}
    errors = []
    for one in FIGURES:
        speed = predicted(one, [other for other in FIGURES if not leaves_out(one, other)])
        inside.setdefault(one.gpu, []).append(speed.low <= one.images_per_sec <= speed.high)
        errors.append(abs(math.log(one.images_per_sec / speed.images_per_sec)))
    return sum(sum(one) / len(one) for one in inside.values()) / len(inside), math.exp(median(errors))


def test_thirteen_models_of_gpus_have_published_figures() -> None:
    assert len({one.gpu for one in FIGURES}) >= 13
    assert {one.model for one in FIGURES} >= {"alexnet", "vgg16", "inception3", "resnet50", "resnet152"}
    assert len(FIGURES) == len(set(FIGURES))


def test_the_speed_of_a_gpu_that_was_never_measured_is_within_its_range() -> None:
    inside, error = judged(lambda one, other: one.gpu == other.gpu)
    assert inside >= INSIDE
    assert error <= 1.15


def test_the_speed_of_a_network_that_was_not_measured_on_this_gpu_is_within_its_range() -> None:
    inside, error = judged(lambda one, other: one[:2] == other[:2])
    assert inside >= INSIDE
    assert error <= 1.15


def test_the_speed_of_a_network_that_was_never_measured_is_within_its_range() -> None:
    inside, error = judged(lambda one, other: one.model == other.model)
    assert inside >= INSIDE
    assert error <= 1.25


def test_the_speed_of_a_network_and_a_gpu_that_were_never_measured_is_within_its_range() -> None:
    inside, error = judged(lambda one, other: one.model == other.model or one.gpu == other.gpu)
    assert inside >= INSIDE
    assert error <= 1.30


def test_a_published_job_is_predicted_as_it_was_measured() -> None:
    for one in FIGURES:
        speed = predicted(one, [one])
        assert speed.images_per_sec == pytest.approx(one.images_per_sec)
        assert speed.source == f"published: tf_cnn_benchmarks on {one.gpu}, batch {one.batch}"


def test_a_larger_batch_takes_a_longer_step_and_more_images_per_sec() -> None:
    known = Figure("GeForce GTX 1080 Ti", "resnet50", 64, "fp32", 208.0)
    speeds = [predicted(known._replace(batch=batch), [known]) for batch in (1, 2, 8, 32, 64, 256)]
    rates = [speed.images_per_sec for speed in speeds]
    assert rates == sorted(rates)
    assert speeds[0].source.endswith("batch 64, scaled to 1")
    assert speeds[0].high / speeds[0].low > speeds[3].high / speeds[3].low > speeds[4].high / speeds[4].low


def test_a_batch_published_at_half_the_size_predicts_the_whole_within_a_tenth() -> None:
    pairs = [
        (one, other)
        for one in FIGURES
        for other in FIGURES
        if one[:2] == other[:2] and one.precision == other.precision and one.batch == 2 * other.batch
    ]
    assert len(pairs) >= 4
    errors = [abs(predicted(one, [other]).images_per_sec / one.images_per_sec - 1) for one, other in pairs]
    assert median(errors) <= 0.10


def test_the_source_says_from_what_a_speed_is_scaled_and_how_sure_it_is() -> None:
    known = Figure("GeForce GTX 1080 Ti", "resnet50", 64, "fp32", 208.0)
    scaled = predicted(known._replace(model="vgg16"), [known, K80_VGG16])
    assert scaled.source == (
        "published: tf_cnn_benchmarks on GeForce GTX 1080 Ti, scaled from resnet50, within a factor of 1.25"
    )
    alone = predicted(known._replace(gpu="GeForce RTX 4090"), FIGURES)
    assert alone.basis == "datasheet"
    assert alone.source == "from the datasheet of GeForce RTX 4090, within a factor of 1.4"
    nobody = predicted(known._replace(model="densenet40_k12"), [known])
    assert nobody.source == (
        "published: tf_cnn_benchmarks on GeForce GTX 1080 Ti, scaled from resnet50, without published "
        "figures of densenet40_k12, within a factor of 1.5"
    )


def test_a_network_under_another_name_has_the_figures_of_its_own() -> None:
    gpu = expected_gpu("GeForce GTX 1080 Ti")
    assert gpu is not None
    resnet = require("resnet50")
    for name, parameters, is_same in (("keras:ResNet50", 1.01, True), ("mine:build", 1.5, False)):
        own = msgspec.structs.replace(resnet, name=name, parameters=round(resnet.parameters * parameters))
        speed = published_speed(gpu, Job(own, 64, "fp32"), FULL_CLOCKS)
        assert speed is not None
        assert (speed.source == "published: tf_cnn_benchmarks on GeForce GTX 1080 Ti, batch 64") == is_same


def test_lower_clocks_make_a_gpu_slower_by_no_more_than_their_share() -> None:
    known = Figure("GeForce GTX 1080 Ti", "resnet50", 64, "fp32", 208.0)
    full = predicted(known, FIGURES)
    throttled = predicted(known, FIGURES, Clocks(core=0.5))
    assert 0.5 * full.images_per_sec < throttled.images_per_sec < 0.9 * full.images_per_sec
    assert throttled.low == pytest.approx(0.5 * full.low)
    assert throttled.high < full.high
    assert throttled.source.endswith("core clock at 50%, memory clock at 100% of what is expected")


def test_a_network_that_uses_the_gpu_better_has_a_higher_factor() -> None:
    factors = network_factors(FIGURES)
    assert factors["resnet50"] > factors["vgg16"] > factors["inception4"]
    assert all(0.7 < factor < 1.5 for factor in factors.values())
