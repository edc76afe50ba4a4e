"""Every reduction against a float64 numpy sum, on 2, 3 and 4 logical CPU devices; and the real worker."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gputopo.launch.reduction_bench import measure
from gputopo.launch.reduction_process import worker_command
from gputopo.launch.reduction_spec import METHODS, Message, ReductionJob, Refused
from tests.launch.core.reduction_cases import SHAPES, run_spec
from tests.launch.core.small_model import SHAPES as SMALL_MODEL
from tests.launch.worker_process import environment

pytestmark = pytest.mark.tensorflow

ON_CPU = [name for name, method in METHODS.items() if method.gpus_only is None]
TRIVIAL_BYTES = 4 * 4_263_877
# float32 rounds each of at most 3 additions by 2^-24 of a partial sum; these are below 200.
TOLERANCE = 3 * 200 * 2.0**-24


class Ran:
    """What one process found for a number of devices."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count = count
        self.folder = folder
        self.told: dict[str, Any] = json.loads((folder / "told.json").read_text())

    def sums(self, method: str) -> dict[str, Any]:
        return dict(np.load(self.folder / f"{method}.npz"))


@pytest.fixture(scope="module", params=[2, 3, 4])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    count: int = request.param
    folder = tmp_path_factory.mktemp("reductions")
    done = subprocess.run(
        [sys.executable, "-m", "tests.launch.core.reduction_cases", str(count), str(folder)],
        env=environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Ran(count, folder)


@pytest.mark.parametrize("method", ON_CPU)
def test_every_device_gets_the_sum_of_all(ran: Ran, method: str) -> None:
    if METHODS[method].why_not("cpu", ran.count):
        pytest.skip(METHODS[method].even_only or "")
    found = ran.sums(method)
    for number, shape in enumerate(SHAPES):
        expected = found[f"given{number}"].astype(np.float64).sum(axis=0)
        got = found[f"got{number}"]
        assert got.shape == (ran.count, *shape)
        for tower in range(ran.count):
            np.testing.assert_allclose(got[tower], expected, rtol=0, atol=TOLERANCE)


def test_the_hierarchical_copy_is_left_out_exactly_where_it_is_wrong(ran: Ran) -> None:
    found = ran.sums("hierarchical")
    expected = found["given0"].astype(np.float64).sum(axis=0)
    right = np.allclose(found["got0"][0], expected, rtol=0, atol=TOLERANCE)
    assert right == (METHODS["hierarchical"].why_not("cpu", ran.count) is None)


@pytest.mark.parametrize("method", ON_CPU)
def test_a_sound_method_is_timed_and_an_unsound_one_caught_by_its_sum(ran: Ran, method: str) -> None:
    told = ran.told["sound"][method]
    if METHODS[method].why_not("cpu", ran.count) is None:
        size = 4 * sum(math.prod(shape) for shape in SMALL_MODEL.values())
        assert told == [size, 2, True, True]
    else:
        assert told == ["the reduction 'hierarchical' is wrong on /CPU:0: it adds up to 11, not 111"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("loses_a_tower", "adds up to"),
        ("doubles_the_last_variable", "in variable 3"),
        ("spoils_one_number", "on /CPU:0, in variable 0"),
        ("keeps_a_devices_own_gradient", "in variable 1"),
        ("wrong_from_the_second_graph_on", "in a timed call"),
    ],
)
def test_a_method_with_one_fault_is_refused_by_name(ran: Ran, fault: str, says: str) -> None:
    (refused,) = ran.told["checks"][fault]
    assert f"'{fault}' is wrong" in refused
    assert says in refused


def test_every_op_on_a_towers_device_can_run_on_a_gpu(ran: Ran) -> None:
    """Of the self-test, the check and the timed graph. Soft placement is off: one op would stop it all."""
    assert ran.told["without_gpu_kernel"] == {name: [] for name in ON_CPU}
    assert min(ran.told["nodes"].values()) > 5


def test_every_method_names_an_algorithm_that_there_is() -> None:
    ask = "from gputopo.launch.core.reduction_methods import ALGORITHMS; print(*ALGORITHMS)"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert set(done.stdout.split()) == {method.algorithm for method in METHODS.values()}


def test_the_real_worker_is_measured_on_cpu_devices() -> None:
    times = measure("trivial", None, 3, methods=["copy", "ring"], repeats=4)
    assert times.not_measured == ()
    assert [sample.algorithm for sample in times.samples] == ["copy", "ring"]
    for sample in times.samples:
        assert (sample.source, sample.bytes, sample.model) == ("cpu:0,1,2", TRIVIAL_BYTES, "trivial")
        assert len(sample.repeats_us) == 4
        assert min(sample.repeats_us) > times.fixed_cost_us[sample.algorithm or ""] / 10
        assert sample.bus_gb_per_s == pytest.approx((sample.median_gb_per_s or 0.0) * 4 / 3)


def run_worker(job: ReductionJob) -> Message:
    reading, writing = os.pipe()
    done = subprocess.run(
        worker_command(job, writing),
        pass_fds=[writing],
        env=environment(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    os.close(writing)
    with open(reading, "rb") as stream:
        messages = [msgspec.json.decode(line, type=Message) for line in stream]
    assert messages, done.stderr[-2000:]
    last: Message = messages[-1]
    return last


def test_an_op_without_a_kernel_is_refused_in_tensorflows_words() -> None:
    method = METHODS["nccl_op"]
    told = run_worker(ReductionJob(run=run_spec(2), method=method, repeats=1, warm_up=1))
    assert isinstance(told, Refused)
    assert "NcclAllReduce" in told.says
    assert not told.wrong_data
    assert not told.for_all


def test_gpus_that_tensorflow_does_not_see_are_refused_for_all_methods() -> None:
    run = msgspec.structs.replace(run_spec(2), backend="gpu")
    told = run_worker(ReductionJob(run=run, method=METHODS["copy"], repeats=1, warm_up=1))
    assert isinstance(told, Refused)
    assert told.for_all
    assert "TensorFlow sees 0 of the 2 planned GPUs" in told.says
