"""Every reduction against a float64 numpy sum, on 3 logical CPU devices; and the real worker."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputopo.launch import measure_reduction
from gputopo.values.bandwidth import CollectiveRate
from gputopo.values.machine import Driver, Machine
from gputopo.values.run.all_reduce import parse
from tests.launch.forks import forking_python, run_program
from tests.launch.train.reduction_cases import CASES, METHODS, ON_CPU, SHAPES, TIMED
from tests.launch.train.small_model import SHAPES as SMALL_MODEL

pytestmark = pytest.mark.tensorflow

TRIVIAL_BYTES = 4 * 56_332
# The numbers are normal with deviation 10: a partial sum of at most 4 of them is below 200.
LARGEST = 200.0
# Each of at most 3 additions rounds by half a unit of the last place, 2^-24 of the number in float32 and
# 2^-11 in float16; there the numbers were rounded before.
TOLERANCE = 3 * LARGEST * 2.0**-24
TOLERANCE_FP16 = (3 + 4) * LARGEST * 2.0**-11
COUNT = 3
WRONG = "tf_hierarchical"  # TensorFlow's hierarchical copy loses a device of an odd number


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reductions")
    done = run_program("-m", "tests.launch.train.reduction_cases", str(COUNT), str(folder), "1")
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def reported(folder: Path) -> dict[str, Any]:
    reported: dict[str, Any] = json.loads((folder / "reported.json").read_text())
    return reported


@pytest.mark.parametrize("method", CASES)
def test_every_device_gets_the_same_right_sum_and_a_wrong_one_is_noticed(
    folder: Path, reported: dict[str, Any], method: str
) -> None:
    tolerance = TOLERANCE_FP16 if method == "hierarchical all" else TOLERANCE
    right = []
    with np.load(folder / f"{method}.npz") as found:
        for number, shape in enumerate(SHAPES):
            got, expected = found[f"got{number}"], found[f"given{number}"].astype(np.float64).sum(axis=0)
            assert got.shape == (COUNT, *shape)
            for of_tower in got:
                np.testing.assert_array_equal(of_tower, got[0], err_msg="bits")
            right.append(np.allclose(got[0], expected, rtol=0, atol=tolerance))
    assert all(right) == (method != WRONG)
    assert (reported["self_test"][method] == "right") == (method != WRONG)


def test_what_is_wrong_or_cannot_be_there_is_refused_before() -> None:
    assert {method for method in ON_CPU if parse(method).why_not("cpu", COUNT)} == {WRONG}
    assert parse(WRONG).why_not("cpu", COUNT + 1) is None


def test_sound_methods_are_timed_and_an_unsound_one_caught_by_its_sum(reported: dict[str, Any]) -> None:
    size = 4 * sum(math.prod(shape) for shape in SMALL_MODEL.values())
    expected: dict[str, Any] = {method: [size, True] for method in TIMED}
    wrong = f"the reduction '{WRONG}' is wrong on /CPU:0: it adds up to 11, not 111"
    assert reported["sound"] == expected | {WRONG: wrong}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("loses_a_tower", "adds up to"),
        ("doubles_the_last_variable", "in a timed call"),
        ("keeps_a_devices_own_gradient", "in a timed call"),
        ("wrong_from_the_second_graph_on", "in a timed call"),
    ],
)
def test_a_method_with_one_fault_is_refused_by_name(reported: dict[str, Any], fault: str, says: str) -> None:
    refused = reported["checks"][fault]
    assert "'copy' is wrong" in refused
    assert says in refused


def test_every_op_on_a_towers_device_can_run_on_a_gpu(reported: dict[str, Any]) -> None:
    """Of the self-test, the check and the timed graph. Soft placement is off: one op would stop it all."""
    assert reported["without_gpu_kernel"] == {name: [] for name in CASES}
    assert min(reported["nodes"].values()) > 5


def test_every_method_names_an_algorithm_that_there_is(reported: dict[str, Any]) -> None:
    assert reported["known"] == [*METHODS]


def test_the_real_worker_is_measured_on_cpu_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Machine(source="live", driver=Driver(status="no_device"))
    with forking_python(tmp_path) as python:
        monkeypatch.setattr(sys, "executable", python)
        times = measure_reduction(nothing, "trivial-cifar10", "ring", None)
    assert times.not_measured == ()
    (sample,) = times.samples.of(CollectiveRate)
    assert (sample.algorithm, sample.source) == ("ring", "cpu:0,1")
    assert (sample.bytes, sample.model) == (TRIVIAL_BYTES, "trivial-cifar10")
    assert sample.bus_gb_per_s == sample.median_gb_per_s


def test_every_device_adds_a_part_of_a_large_variable(reported: dict[str, Any]) -> None:
    assert reported["cuts"]["copy"] == 0
    assert reported["cuts"]["copy in parts"] == (COUNT - 1) * COUNT, "the first device's are not counted"
