"""Every reduction against a float64 numpy sum, on 3 and 4 logical CPU devices; and the real worker."""

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputopo.launch import measure_reduction
from gputopo.values.bandwidth import CollectiveRate
from gputopo.values.machine import Driver, Machine
from gputopo.values.run.all_reduce import parse
from tests.launch.forks import forking_python, run_program
from tests.launch.train.reduction_cases import METHODS, ON_CPU, SHAPES, TIMED, cases_on
from tests.launch.train.small_model import SHAPES as SMALL_MODEL

pytestmark = pytest.mark.tensorflow

TRIVIAL_BYTES = 4 * 4_263_877
# The numbers are normal with deviation 10: a partial sum of at most 4 of them is below 200.
LARGEST = 200.0
# Each of at most 3 additions rounds by half a unit of the last place, 2^-24 of the number in float32 and
# 2^-11 in float16; there the numbers were rounded before.
TOLERANCE = 3 * LARGEST * 2.0**-24
TOLERANCE_FP16 = (3 + 4) * LARGEST * 2.0**-11
COUNTS = (3, 4)  # odd and even


class Ran:
    """What one process found for a number of devices."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count = count
        self.folder = folder
        self.reported: dict[str, Any] = json.loads((folder / "reported.json").read_text())

    def sums(self, method: str) -> dict[str, Any]:
        return dict(np.load(self.folder / f"{method}.npz"))


def run_cases(count: int, folder: Path) -> Ran:
    timed = str(int(count == COUNTS[0]))
    done = run_program("-m", "tests.launch.train.reduction_cases", str(count), str(folder), timed)
    assert done.returncode == 0, done.stderr[-2000:]
    return Ran(count, folder)


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ran]:
    """Building graphs takes one core: two processes at a time."""
    folders = [tmp_path_factory.mktemp("reductions") for _ in COUNTS]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(COUNTS, pool.map(run_cases, COUNTS, folders), strict=True))


def wrong_on(method: str, count: int) -> bool:
    """TensorFlow's hierarchical copy loses a device of an odd number."""
    return method == "tf_hierarchical" and count % 2 == 1


def is_right(ran: Ran, method: str) -> bool:
    found = ran.sums(method)
    tolerance = TOLERANCE_FP16 if method == "hierarchical all" else TOLERANCE
    for number, shape in enumerate(SHAPES):
        got, expected = found[f"got{number}"], found[f"given{number}"].astype(np.float64).sum(axis=0)
        assert got.shape == (ran.count, *shape)
        if not all(np.allclose(of_tower, expected, rtol=0, atol=tolerance) for of_tower in got):
            return False
    return True


@pytest.mark.parametrize(
    ("count", "method"), [(count, method) for count in COUNTS for method in cases_on(count)]
)
def test_every_device_gets_the_same_right_sum_and_a_wrong_one_is_noticed(
    all_ran: dict[int, Ran], count: int, method: str
) -> None:
    ran, right = all_ran[count], not wrong_on(method, count)
    assert is_right(ran, method) == right
    assert (ran.reported["self_test"][method] == "right") == right
    found = ran.sums(method)
    for number in range(len(SHAPES)):
        for of_tower in found[f"got{number}"]:
            np.testing.assert_array_equal(of_tower, found[f"got{number}"][0], err_msg="bits")


def test_what_is_wrong_or_cannot_be_there_is_refused_before() -> None:
    refused = {
        (method, count) for method in ON_CPU for count in COUNTS if parse(method).why_not("cpu", count)
    }
    assert refused == {("tf_hierarchical", 3)}


def test_sound_methods_are_timed_and_an_unsound_one_caught_by_its_sum(all_ran: dict[int, Ran]) -> None:
    size = 4 * sum(math.prod(shape) for shape in SMALL_MODEL.values())
    expected: dict[str, Any] = {method: [size, True] for method in TIMED}
    wrong = "the reduction 'tf_hierarchical' is wrong on /CPU:0: it adds up to 11, not 111"
    assert all_ran[COUNTS[0]].reported["sound"] == expected | {"tf_hierarchical": wrong}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("loses_a_tower", "adds up to"),
        ("doubles_the_last_variable", "in a timed call"),
        ("keeps_a_devices_own_gradient", "in a timed call"),
        ("wrong_from_the_second_graph_on", "in a timed call"),
    ],
)
def test_a_method_with_one_fault_is_refused_by_name(all_ran: dict[int, Ran], fault: str, says: str) -> None:
    refused = all_ran[COUNTS[0]].reported["checks"][fault]
    assert "'copy' is wrong" in refused
    assert says in refused


def test_every_op_on_a_towers_device_can_run_on_a_gpu(all_ran: dict[int, Ran]) -> None:
    """Of the self-test, the check and the timed graph. Soft placement is off: one op would stop it all."""
    ran = all_ran[COUNTS[0]]
    assert ran.reported["without_gpu_kernel"] == {name: [] for name in cases_on(COUNTS[0])}
    assert min(ran.reported["nodes"].values()) > 5


def test_every_method_names_an_algorithm_that_there_is(all_ran: dict[int, Ran]) -> None:
    assert all_ran[COUNTS[0]].reported["known"] == [*METHODS]


def test_the_real_worker_is_measured_on_cpu_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Machine(source="live", driver=Driver(status="no_device"))
    with forking_python(tmp_path) as python:
        monkeypatch.setattr(sys, "executable", python)
        times = measure_reduction(nothing, "trivial", "ring", None)
    assert times.not_measured == ()
    (sample,) = times.samples.of(CollectiveRate)
    assert (sample.algorithm, sample.source) == ("ring", "cpu:0,1")
    assert (sample.bytes, sample.model) == (TRIVIAL_BYTES, "trivial")
    assert sample.bus_gb_per_s == sample.median_gb_per_s


def test_every_device_adds_a_part_of_a_large_variable(all_ran: dict[int, Ran]) -> None:
    assert all_ran[COUNTS[0]].reported["cuts"]["copy"] == 0
    for count in COUNTS:
        cuts = all_ran[count].reported["cuts"]
        assert cuts["copy in parts"] == (count - 1) * count, "what is on the first device is not counted"
