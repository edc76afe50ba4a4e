from typing import Any

import msgspec
import pytest

from gputopo.input_verdict import verdict
from gputopo.result import Result
from gputopo.summary import summarise
from tests.invented_runs import InventedRun, Noise, cpu_devices, stream

PLAIN = summarise(stream(cpu_devices(2), InventedRun(2, noise=Noise(own=0.01)).steps(20)))
PYTHON = {"source": "python", "feed": "queue", "folder": None}


def run(task: str, rate: float, data: dict[str, Any] | None = None, **changes: Any) -> Result:
    assert PLAIN.throughput is not None
    spec = {
        "task": task,
        "model": "alexnet",
        "batch_size": 8,
        "backend": "cpu",
        "devices": [0, 1],
        "data": data or {"source": "gpu", "folder": None},
    }
    throughput = msgspec.structs.replace(PLAIN.throughput, mean=rate)
    result = msgspec.structs.replace(PLAIN, spec={**spec, **changes.pop("spec", {})}, throughput=throughput)
    return msgspec.structs.replace(result, **changes)


def test_an_input_that_is_slower_than_training_alone_is_the_bottleneck() -> None:
    found = verdict(run("input", 50.0, PYTHON), [("/runs/1", run("train", 100.0))])
    assert found is not None
    assert (found.verdict, found.other) == ("input", "/runs/1")
    assert found.headroom == pytest.approx(0.5)
    assert "bottleneck" in found.says


def test_training_is_judged_by_the_input_of_the_same_data() -> None:
    other = {**PYTHON, "feed": "dataset"}
    earlier = [("/runs/2", run("input", 10.0, other)), ("/runs/1", run("input", 900.0, PYTHON))]
    found = verdict(run("train", 100.0, PYTHON), earlier)
    assert found is not None
    assert (found.verdict, found.other) == ("enough", "/runs/1")


@pytest.mark.parametrize(
    "other",
    [
        run("input", 100.0, PYTHON),
        run("train", 100.0, PYTHON),
        run("train", 100.0, status="failed"),
        run("train", 100.0, throughput=None),
        run("train", 100.0, spec={"model": "vgg16"}),
        run("train", 100.0, spec={"batch_size": 4}),
        run("train", 100.0, spec={"devices": [0]}),
        run("train", 0.0),
    ],
)
def test_other_work_or_a_failed_run_judges_nothing(other: Result) -> None:
    assert verdict(run("input", 50.0, PYTHON), [("/runs/1", other)]) is None


def test_training_on_data_that_cost_nothing_and_other_tasks_are_not_judged() -> None:
    earlier = [("/runs/1", run("input", 50.0))]
    assert verdict(run("train", 100.0), earlier) is None
    assert verdict(run("forward", 100.0, PYTHON), earlier) is None
    assert verdict(run("input", 50.0, PYTHON, status="failed"), [("/runs/1", run("train", 100.0))]) is None
