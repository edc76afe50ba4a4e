from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.compared import ENOUGH, NOISE, judge, judge_waiting, verdict
from gputopo.runs.summary import summarise
from gputopo.values.run.result import Result
from tests.invented_runs import InventedRun, Noise, cpu_devices, stream

RATES = st.floats(1e-3, 1e9)
PLAIN = summarise(stream(cpu_devices(2), InventedRun(2, noise=Noise(own=0.01)).steps(20)))
PYTHON = {"source": "python", "feed": "queue", "folder": None}


def run(task: str, rate: float, data: dict[str, Any] | None = None, **changes: Any) -> Result:
    assert PLAIN.throughput is not None
    spec = {
        "task": task,
        "model": "alexnet",
        "batch_size": 8,
        "backend": "cpu",
        "devices": [{"tower": 0, "device": "/CPU:0"}, {"tower": 1, "device": "/CPU:1"}],
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


def test_how_the_other_training_computed_is_reported() -> None:
    other = run("train", 100.0, spec={"precision": {"compute": "bf16"}, "variable_update": "replicated"})
    found = verdict(run("input", 50.0, PYTHON), [("/runs/1", other)])
    assert found is not None
    assert "100.0 of training alone (own towers, replicated, bf16)" in found.says


def test_training_at_the_rate_of_its_input_waits_for_it_and_is_not_called_fast_enough() -> None:
    # A disk of 50 images/sec before devices that could do 100.
    earlier = [("/runs/2", run("input", 50.0, PYTHON)), ("/runs/1", run("train", 100.0))]
    found = verdict(run("train", 50.0, PYTHON, input_waited_share=0.5), earlier)
    assert found is not None
    assert (found.verdict, found.other) == ("input", "/runs/2")
    assert "50.0 % of the steps' time" in found.says


def test_a_slow_model_is_not_blamed_on_its_input() -> None:
    # Beside an input of the same 50 images/sec, devices that can do no more.
    found = verdict(
        run("train", 50.0, PYTHON, input_waited_share=0.01), [("/runs/1", run("input", 51.0, PYTHON))]
    )
    assert found is not None
    assert found.verdict == "close"


def test_training_is_judged_by_the_input_of_the_same_data_or_by_its_waiting_alone() -> None:
    other = {**PYTHON, "feed": "dataset"}
    earlier = [("/runs/2", run("input", 10.0, other)), ("/runs/1", run("input", 900.0, PYTHON))]
    trained = run("train", 100.0, PYTHON, input_waited_share=0.0)
    found = verdict(trained, earlier)
    assert found is not None
    assert (found.verdict, found.other) == ("enough", "/runs/1")
    alone = verdict(trained, [])
    assert alone is not None
    assert (alone.verdict, alone.headroom, alone.other) == ("enough", None, None)


def test_few_steps_without_waiting_report_nothing_and_with_waiting_they_do() -> None:
    # Some batches were ready before the first counted step.
    assert verdict(run("train", 100.0, PYTHON, input_waited_share=0.0, steps=9), []) is None
    found = verdict(run("train", 100.0, PYTHON, input_waited_share=0.3, steps=2), [])
    assert found is not None
    assert found.verdict == "input"


def test_a_run_that_did_not_report_its_waiting_is_not_judged() -> None:
    assert verdict(run("train", 100.0, PYTHON), [("/runs/1", run("input", 900.0, PYTHON))]) is None


@pytest.mark.parametrize(
    "other",
    [
        run("input", 100.0, PYTHON),
        run("train", 100.0, PYTHON),
        run("train", 100.0, status="failed"),
        run("train", 100.0, throughput=None),
        run("train", 100.0, spec={"model": "vgg16"}),
        run("train", 100.0, spec={"batch_size": 4}),
        run("train", 100.0, spec={"devices": [{"tower": 0, "device": "/CPU:0"}]}),
        run("train", 100.0, spec={"devices": [{"gpu": 0}, {"gpu": 3}]}),
        run("train", 100.0, spec={"drills": [{"fault": "slow-gpu", "device": 1, "factor": 0.5}]}),
        run("train", 0.0),
    ],
)
def test_other_work_or_a_failed_run_judges_nothing(other: Result) -> None:
    assert verdict(run("input", 50.0, PYTHON), [("/runs/1", other)]) is None


def test_training_on_data_that_cost_nothing_and_other_tasks_are_not_judged() -> None:
    earlier = [("/runs/1", run("input", 50.0))]
    assert verdict(run("train", 100.0, input_waited_share=0.9), earlier) is None
    assert verdict(run("forward", 100.0, PYTHON, input_waited_share=0.9), earlier) is None
    assert verdict(run("input", 50.0, PYTHON, status="failed"), [("/runs/1", run("train", 100.0))]) is None


@pytest.mark.parametrize(
    ("headroom", "judged"),
    [(0.1, "input"), (0.94, "input"), (0.96, "close"), (1.0, "close"), (1.19, "close"), (1.21, "enough")],
)
def test_the_verdict_follows_from_the_two_rates(headroom: float, judged: str) -> None:
    assert judge(1000 * headroom, 1000).verdict == judged


def test_the_words_hold_both_rates_and_what_is_lost() -> None:
    found = judge(3058, 8560)  # alexnet, real against synthetic, of a published table
    assert found.verdict == "input"
    assert "3058.0 images/sec against 8560.0" in found.says
    assert "64 % less" in found.says


@given(RATES, RATES)
def test_the_headroom_decides_alone(input_rate: float, training_rate: float) -> None:
    found = judge(input_rate, training_rate)
    headroom = input_rate / training_rate
    assert found.headroom == pytest.approx(headroom)
    assert (found.verdict == "input") == (headroom < 1 - NOISE)
    assert (found.verdict == "enough") == (headroom >= ENOUGH)


@given(RATES, RATES, st.floats(1.0, 100.0))
def test_a_faster_input_is_never_judged_worse(input_rate: float, training_rate: float, by: float) -> None:
    order = ("input", "close", "enough")
    slow, fast = judge(input_rate, training_rate), judge(input_rate * by, training_rate)
    assert order.index(slow.verdict) <= order.index(fast.verdict)


@pytest.mark.parametrize(
    ("share", "alone", "judged"),
    [
        (0.5, None, "input"),
        (0.5, 101.0, "input"),  # training runs as fast as its input lets it
        (0.05, 1000.0, "input"),
        (0.04, None, "enough"),
        (0.0, 119.0, "close"),
        (0.0, 121.0, "enough"),
    ],
)
def test_training_is_judged_by_its_waiting_and_not_by_its_own_rate(
    share: float, alone: float | None, judged: str
) -> None:
    found = judge_waiting(share, 100.0, alone)
    assert found.verdict == judged
    assert f"{100 * share:.1f} % of the steps' time" in found.says
    assert found.headroom == (None if alone is None else alone / 100)


def test_an_input_that_is_fast_only_when_it_is_alone_is_reported_to_share_the_cores() -> None:
    assert "alone it reached 300.0 images/sec, during training 100.0" in judge_waiting(0.4, 100.0, 300.0).says
    assert "share the cores" not in judge_waiting(0.4, 100.0, 110.0).says
