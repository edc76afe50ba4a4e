"""The constants of logical CPU devices: those shipped are those fitted, and order what was measured."""

import msgspec
import pytest

from gputopo.prediction.cpu_devices import cpu_devices
from gputopo.prediction.cpu_fit import (
    CpuRun,
    alone_seconds,
    cpu_runs,
    fitted,
    left_out,
    pairs_in_order,
    predicted_s,
)
from gputopo.prediction.step import Placing

MODES = (
    Placing("parameter_server", "cpu"),
    *(Placing("replicated", None, name) for name in ("copy", "ring", "hierarchical")),
    Placing("independent"),
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
    found = [left_out(cpu_runs(), model) for model in ("alexnet", "resnet20", "vgg11")]
    assert sum(right for _, right in found) >= 0.9 * sum(told for told, _ in found)
