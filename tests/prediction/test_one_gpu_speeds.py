"""The speed of one GPU by published figures and datasheets, judged on the published figures themselves."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import msgspec
import pytest

from gputopo.prediction import (
    Figure,
    OneGpuJob,
    Speed,
    one_gpu_figures,
    published_speed,
    single_gpu_speeds,
)
from gputopo.reference import expected_gpu
from gputopo.runs import Past, measured_before
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.events import Device
from gputopo.values.run.result import DeviceResult, Result, Throughput
from gputopo.workload import require_workload
from tests import there

FIGURES = one_gpu_figures()
K80_VGG16 = Figure("Tesla K80", "vgg16", 64, "fp32", 20.0)
INSIDE = 0.80  # of the measured figures, between low and high


def predicted(figure: Figure, known: Sequence[Figure]) -> Speed:
    gpu = there(expected_gpu(figure.gpu))
    speed = there(
        published_speed(gpu, OneGpuJob(require_workload(figure.model), figure.batch, figure.precision), known)
    )
    return speed


def judged(leaves_out: Callable[[Figure, Figure], bool]) -> tuple[float, float]:
    """Return the share of figures inside their range, and the median error as a factor."""
    inside = []
    errors = []
    for one in FIGURES:
        speed = predicted(one, [other for other in FIGURES if not leaves_out(one, other)])
        inside.append(speed.low <= one.images_per_sec <= speed.high)
        errors.append(abs(math.log(one.images_per_sec / speed.images_per_sec)))
    return sum(inside) / len(inside), math.exp(median(errors))


@pytest.mark.parametrize(
    ("leaves_out", "worst"),
    [
        (lambda one, other: one.gpu == other.gpu, 1.2),
        (lambda one, other: one[:2] == other[:2], 1.15),
        (lambda one, other: one.model == other.model, 1.25),
        (lambda one, other: one.model == other.model or one.gpu == other.gpu, 1.30),
    ],
    ids=["gpu", "network on this gpu", "network", "gpu and network"],
)
def test_the_speed_of_what_was_never_measured_is_within_its_range(
    leaves_out: Callable[[Figure, Figure], bool], worst: float
) -> None:
    inside, error = judged(leaves_out)
    assert inside >= INSIDE
    assert error <= worst


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


def test_the_source_says_from_what_a_speed_is_scaled_and_how_sure_it_is() -> None:
    known = Figure("GeForce GTX 1080 Ti", "resnet50", 64, "fp32", 208.0)
    scaled = predicted(known._replace(model="vgg16"), [known, K80_VGG16])
    assert scaled.source == ("published: tf_cnn_benchmarks on GeForce GTX 1080 Ti, scaled from resnet50")
    alone = predicted(known._replace(gpu="GeForce RTX 4090"), FIGURES)
    assert alone.basis == "datasheet"
    assert alone.source == "from the datasheet of GeForce RTX 4090"
    nobody = predicted(known._replace(model="densenet40_k12"), [known])
    assert nobody.source == (
        "published: tf_cnn_benchmarks on GeForce GTX 1080 Ti, scaled from resnet50, without published "
        "figures of densenet40_k12"
    )


def test_a_network_under_another_name_has_the_figures_of_its_own() -> None:
    gpu = there(expected_gpu("GeForce GTX 1080 Ti"))
    resnet = require_workload("resnet50")
    for name, parameters, is_same in (("keras:ResNet50", 1.01, True), ("mine:build", 1.5, False)):
        own = msgspec.structs.replace(resnet, name=name, parameters=round(resnet.parameters * parameters))
        speed = there(published_speed(gpu, OneGpuJob(own, 64, "fp32")))
        assert (speed.source == "published: tf_cnn_benchmarks on GeForce GTX 1080 Ti, batch 64") == is_same


GTX_1080 = "GeForce GTX 1080"


def machine(*gpus: Gpu) -> Machine:
    return Machine(
        source="invented",
        gpus=tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(gpus)),
    )


def speeds(box: Machine, batch: int = 64, model: str = "resnet50", **known: Any) -> dict[int, Speed]:
    return single_gpu_speeds(box, require_workload(model), batch, "fp32", **known)


def speed(gpu: Gpu, **known: Any) -> Speed:
    return speeds(machine(gpu), **known)[0]


def run(name: str = GTX_1080, *, devices: int = 1, **changed: Any) -> Result:
    spec = {"task": "train", "model": "resnet50", "precision": {"compute": "fp32"}, "data": {"source": "gpu"}}
    rows = [
        DeviceResult(
            device=Device(tower=tower, device=f"/GPU:{tower}", gpu=tower, gpu_name=name), batch_size=64
        )
        for tower in range(devices)
    ]
    result = Result(
        status="complete",
        exit_code=0,
        spec=spec,
        backend="gpu",
        throughput=Throughput(mean=140.0, uncertainty=0.1, jitter=0.1, median=140.0, total=139.0),
        devices=tuple(rows),
    )
    return msgspec.structs.replace(result, **changed)


def figures_of(*runs: Result) -> tuple[Figure, ...]:
    past = [Past(result=result, finished_at=0.0, folder="", fingerprint="") for result in runs]
    return measured_before(machine(Gpu(index=0, name=GTX_1080)), past, lambda model: None)[0]


def test_a_given_speed_counts_before_earlier_runs_and_these_before_published_figures() -> None:
    gpu, history = Gpu(index=0, name=f"NVIDIA {GTX_1080}"), figures_of(run())
    given, ran = speed(gpu, given={0: 150.0}, history=history), speed(gpu, history=history)
    assert (given.images_per_sec, given.basis) == (150.0, "given")
    assert (given.low, given.high) == pytest.approx((150 / 1.03, 150 * 1.03))
    assert (ran.images_per_sec, ran.basis) == (140.0, "history")
    assert (ran.low, ran.high) == pytest.approx((140 / 1.05, 140 * 1.05))
    assert ran.source == "measured here: a run on one GeForce GTX 1080, batch 64"
    scaled = speed(gpu, batch=16, history=history)
    assert 120.0 < scaled.images_per_sec < 140.0
    assert scaled.source == "measured here: runs on one GeForce GTX 1080, batch 64, scaled to 16"


@pytest.mark.parametrize(
    "other",
    [
        run("GeForce GTX 1070"),
        run(devices=2),
        run(spec={**run().spec, "precision": {"compute": "fp16"}}),
        run(spec={**run().spec, "data": {"folder": "/data"}}),
    ],
)
def test_runs_of_other_jobs_and_gpus_do_not_count(other: Result) -> None:
    assert speed(Gpu(index=0, name=GTX_1080), history=figures_of(other)).basis == "datasheet"


def test_a_gpu_of_an_unknown_model_has_no_speed() -> None:
    unknown, nameless, by_id = Gpu(index=0, name="RTX 9090"), Gpu(index=1), Gpu(index=2, pci_device_id="ffff")
    assert speeds(machine(unknown, nameless, by_id)) == {}
    assert speeds(machine(unknown, Gpu(index=1, name=GTX_1080))).keys() == {1}


def test_an_unknown_gpu_has_the_speed_of_its_earlier_run_with_this_batch_alone() -> None:
    history = [Figure("RTX 9090", "resnet50", 64, "fp32", 900.0)]
    assert speed(Gpu(index=0, name="RTX 9090"), history=history).images_per_sec == 900.0
    assert speeds(machine(Gpu(index=0, name="RTX 9090")), batch=32, history=history) == {}
