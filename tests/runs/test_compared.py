"""A run compared with the prediction of its plan, and with the rate of its input."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_bundled
from gputopo.planner import Request, plan
from gputopo.prediction import Placement
from gputopo.runs import judge_input, summarise, with_prediction
from gputopo.values.run.events import Replanned
from gputopo.values.run.plan import Autotune, Candidate, MeasuredPlacement, Plan, Prediction, TimedRun
from gputopo.values.run.result import AgainstPrediction, InputVerdict, Result
from gputopo.values.run.verdict import HostSummary
from tests import there
from tests.invented_runs import InventedRun, Noise, cpu_devices, gpu_devices, step, stream
from tests.runs.boxes import BATCH, ON_CPU, run

MACHINE = read_bundled("7gforce")
PAIR = (0, 1)
COMPUTE_S = 0.5
GPU = Placement("parameter_server", "gpu:0")


def planned(placing: Placement = ON_CPU, model: str = "vgg16", gpus: tuple[int, ...] = PAIR) -> Plan:
    """The plan of runs by `boxes.run`, with their speed of one GPU."""
    return plan(
        MACHINE,
        Request(
            model=model,
            gpus=gpus,
            batch_size=BATCH,
            variable_update=placing.variable_update,
            ps=placing.ps_device or "auto",
            all_reduce=placing.all_reduce,
            single_gpu_images_per_sec=(BATCH / COMPUTE_S,),
        ),
    )


def ran(model: str = "vgg16", compute_s: float = COMPUTE_S, **numbers: Any) -> Result:
    return run(MACHINE, model, compute_s=compute_s, **numbers)


def compared(result: Result, plan: Plan) -> AgainstPrediction:
    return there(with_prediction(result, plan).prediction)


@pytest.mark.parametrize("placing", [GPU, Placement("replicated", None, "nccl")])
def test_a_run_as_predicted_is_within_the_range_in_each_part(placing: Placement) -> None:
    chosen = planned(placing)
    found = compared(ran(placing=placing), chosen)
    assert (found.verdict, found.resource) == ("within", None)
    assert found.measured == pytest.approx(chosen.choice.images_per_sec, rel=0.001)
    assert found.images_per_sec_low < found.measured < found.images_per_sec_high
    assert set(found.parts) == {"compute", "weights", "rest"}
    assert found.parts["rest"].measured == pytest.approx(found.parts["rest"].predicted, rel=0.01, abs=0.1)


def test_slow_links_are_named_where_weights_or_gradients_take_longer_and_compute_does_not() -> None:
    chosen = planned(GPU)
    found = compared(ran(placing=GPU, links=0.5), chosen)
    assert found.verdict == "slower"
    assert found.resource in chosen.choice.links.values()
    assert f"{found.resource} slower than believed" in found.says
    assert "compute takes no longer than predicted" in found.says
    assert "gputopo bandwidth --save" in found.says


@pytest.mark.parametrize(("compute_s", "verdict"), [(1.0, "slower"), (0.3, "faster")])
def test_all_gpus_are_named_where_each_computes_longer_or_shorter(compute_s: float, verdict: str) -> None:
    placing = Placement("replicated", None, "nccl")
    found = compared(ran("resnet50", compute_s, placing=placing), planned(placing, "resnet50"))
    assert (found.verdict, found.resource) == (verdict, "all 2 GPUs")
    assert f"all 2 GPUs {verdict} than believed: compute takes" in found.says
    assert ("gputopo inspect" in found.says) == (verdict == "slower")


def tuned(result: Result, share: float) -> list[str]:
    """What is said of a run beside `--autotune` that measured a speed `share` times as high."""
    speed = there(result.throughput).median * share
    choice = Candidate(gpus=(), variable_update="replicated")
    found = Autotune(
        winner=0,
        settled="lead",
        measured=(MeasuredPlacement(candidate=choice, runs=(TimedRun(speed, 0.01),)),),
        seconds=1.0,
        budget_s=1.0,
        model="vgg16",
        batch_size=8,
    )
    made = Plan(choice=choice, candidates=(choice,), autotune=found)
    return [one for one in with_prediction(result, made).says if "autotune" in one]


def test_a_run_that_is_not_as_fast_as_its_autotune_says_so_and_why() -> None:
    idle = summarise(stream(cpu_devices(2), [step(number, [(0.0, 0.1)] * 2) for number in range(1, 40)]))
    assert tuned(idle, 1.04) == []
    assert tuned(idle, 1.6) == [
        "This run reached 160 images/sec, 38% less than --autotune measured: the samples do not show "
        "why; repeat the run."
    ]
    load = HostSummary(samples=2, busy="other programs used 54% of the CPU")
    (says,) = tuned(msgspec.structs.replace(idle, host_load=load), 1.6)
    assert says.endswith("38% less than --autotune measured: other programs used 54% of the CPU.")


def invented(computes: tuple[float, ...], **changed: Any) -> tuple[Result, Plan]:
    """The result of a run from its events, planned at 100 ms of compute and 10 of weights."""
    marks = [(0.01, seconds) for seconds in computes]
    devices = gpu_devices(len(computes))
    events = stream(devices, [step(number, marks) for number in range(1, 40)])
    result = summarise(events)
    spec = {**result.spec, "devices": [msgspec.to_builtins(one) for one in devices]}
    spec["precision"] = {"compute": "fp32"}
    speed = 8 * len(computes) / 0.11
    choice = Candidate(
        gpus=tuple(range(len(computes))),
        images_per_sec=speed,
        images_per_sec_low=0.9 * speed,
        images_per_sec_high=1.1 * speed,
        step_ms=110.0,
        compute_ms=100.0,
        exposed_ms={"weights": 10.0, "gradients": 0.0, "variables": 0.0},
        links={"weights": "GPU 0 to the host"},
    )
    prediction = Prediction(
        program="gputopo", batch_size=8, single_gpu_images_per_sec={}, single_gpu_source="given"
    )
    made = Plan(choice=choice, candidates=(choice,), prediction=prediction)
    return msgspec.structs.replace(result, **{"spec": spec, **changed}), made


def test_the_gpu_that_computes_longer_than_the_others_is_named() -> None:
    found = compared(*invented((0.1, 0.1, 0.16)))
    assert (found.verdict, found.resource) == ("slower", "GPU 2 (NVIDIA GeForce GTX 1070)")
    assert found.parts["compute"].measured == pytest.approx(160.0)
    assert found.says.startswith(
        "GPU 2 (NVIDIA GeForce GTX 1070) slower than believed: compute takes 160.0 ms of a step, "
        "predicted 100.0"
    )


def test_the_network_of_a_host_is_named_where_it_takes_most_of_the_step() -> None:
    result, plan = invented((0.1, 0.1))
    choice = msgspec.structs.replace(
        plan.choice,
        variable_update="replicated",
        all_reduce="hierarchical",
        exposed_ms={"weights": 0.0, "gradients": 1.0, "variables": 2.0, "network": 5.0},
        links={"gradients": "link of n1 GPU 0, sending", "network": "network of n2"},
        images_per_sec_low=300.0,
        images_per_sec_high=400.0,
    )
    found = compared(result, msgspec.structs.replace(plan, choice=choice, candidates=(choice,)))
    assert found.verdict == "slower"
    assert found.parts["rest"].predicted == pytest.approx(8.0)
    slow = msgspec.structs.replace(result.devices[0], compute_ms=100.0, weights_ms=0.0)
    later = msgspec.structs.replace(result, devices=(slow, slow))
    found = compared(later, msgspec.structs.replace(plan, choice=choice, candidates=(choice,)))
    assert found.resource == "network of n2"
    assert "gputopo bandwidth --network --save measures it" in found.says


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rehearsal_of": "7gforce"}, "predicted for 7gforce, measured on CPU devices (a rehearsal)"),
        ({"spec": {}}, "it is not known what ran"),
    ],
)
def test_other_runs_stand_beside_the_prediction_without_a_verdict(
    changed: dict[str, Any], words: str
) -> None:
    found = compared(*invented((0.3, 0.3), **changed))
    assert (found.verdict, found.says, found.resource) == ("not compared", f"not compared: {words}", None)
    assert found.measured < found.images_per_sec_low


def test_a_run_whose_nccl_failed_is_compared_with_the_prediction_of_what_trained() -> None:
    chosen = planned(Placement("replicated", None, "nccl"))
    copies = planned(Placement("replicated", None, "copy")).choice
    result = ran(placing=Placement("replicated", None, "copy"))
    replanned = Replanned(time_s=0.0, planned=chosen.choice, cause="c", choice=copies, spec=result.spec)
    found = compared(msgspec.structs.replace(result, replanned=replanned), chosen)
    assert found.images_per_sec == copies.images_per_sec != chosen.choice.images_per_sec
    assert found.verdict == "within"


def test_a_smaller_batch_than_planned_is_not_compared() -> None:
    result, made = invented((0.1, 0.1))
    fewer = tuple(msgspec.structs.replace(row, batch_size=4) for row in result.devices)
    assert compared(msgspec.structs.replace(result, devices=fewer), made).verdict == "not compared"
    unequal = msgspec.structs.replace(made.choice, batch_sizes=(4, 4))
    planned_so = msgspec.structs.replace(made, choice=unequal)
    assert compared(msgspec.structs.replace(result, devices=fewer), planned_so).verdict == "within"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"task": "forward"}, "built-in training"),
        ({"drills": [{"fault": "slow-gpu", "device": 1, "factor": 0.9}]}, "a drill"),
    ],
)
def test_what_the_prediction_does_not_know_is_named(changed: dict[str, Any], words: str) -> None:
    result, made = invented((0.1, 0.1))
    changed_run = msgspec.structs.replace(result, spec={**result.spec, **changed})
    assert words in compared(changed_run, made).says


def test_without_marks_only_the_speeds_are_compared() -> None:
    result, made = invented((0.3, 0.3))
    bare = tuple(msgspec.structs.replace(row, compute_ms=None) for row in result.devices)
    found = compared(msgspec.structs.replace(result, devices=bare), made)
    assert (found.verdict, found.resource, found.parts) == ("slower", None, {})
    assert "no time marks" in found.says


RATES = st.floats(1e-3, 1e9)
PLAIN = summarise(stream(cpu_devices(2), InventedRun(2, noise=Noise(own=0.01)).steps(20)))
PYTHON = {"source": "python", "feed": "queue", "folder": None}


def rated(task: str, rate: float, data: dict[str, Any] | None = None, **changes: Any) -> Result:
    spec = {
        "task": task,
        "model": "alexnet",
        "batch_size": 8,
        "backend": "cpu",
        "devices": [{"tower": 0, "device": "/CPU:0"}, {"tower": 1, "device": "/CPU:1"}],
        "data": data or {"source": "gpu", "folder": None},
    }
    throughput = msgspec.structs.replace(there(PLAIN.throughput), mean=rate)
    result = msgspec.structs.replace(PLAIN, spec={**spec, **changes.pop("spec", {})}, throughput=throughput)
    return msgspec.structs.replace(result, **changes)


def waited(rate: float, share: float, **changes: Any) -> Result:
    return rated("train", rate, PYTHON, input_waited_share=share, **changes)


TRAINED = ("/runs/1", rated("train", 100.0))


@pytest.mark.parametrize(
    ("result", "earlier", "verdict", "other"),
    [
        (rated("input", 50.0, PYTHON), [TRAINED], "input", "/runs/1"),
        # A disk of 50 images/sec before devices that could do 100.
        (waited(50.0, 0.5), [("/runs/2", rated("input", 50.0, PYTHON)), TRAINED], "input", "/runs/2"),
        (waited(100.0, 0.01), [("/runs/1", rated("input", 119.0, PYTHON))], "close", "/runs/1"),
        (waited(100.0, 0.01), [("/runs/1", rated("input", 121.0, PYTHON))], "enough", "/runs/1"),
        # Of another feed nothing is known.
        (
            waited(100.0, 0.0),
            [("/runs/2", rated("input", 10.0, {**PYTHON, "feed": "dataset"}))],
            "enough",
            None,
        ),
        (waited(100.0, 0.0), [], "enough", None),
        # Some batches were ready before the first counted step.
        (waited(100.0, 0.0, steps=9), [], None, None),
        (rated("forward", 100.0, PYTHON, input_waited_share=0.9), [], None, None),
    ],
)
def test_an_input_is_judged_by_a_training_on_free_data_and_a_training_by_its_waiting(
    result: Result, earlier: list[tuple[str, Result]], verdict: str | None, other: str | None
) -> None:
    found = judge_input(result, earlier)
    assert (None if found is None else found.verdict) == verdict
    assert (None if found is None else found.other) == other
    if found is not None and result.input_waited_share is not None:
        assert f"{100 * result.input_waited_share:.1f}% of the steps' time" in found.says


@pytest.mark.parametrize(
    "other",
    [
        rated("train", 100.0, PYTHON),
        rated("train", 100.0, status="failed"),
        rated("train", 100.0, spec={"model": "vgg16"}),
        rated("train", 100.0, spec={"batch_size": 4}),
        rated("train", 100.0, spec={"drills": [{"fault": "slow-gpu", "device": 1, "factor": 0.5}]}),
    ],
)
def test_other_work_or_a_failed_run_judges_nothing(other: Result) -> None:
    assert judge_input(rated("input", 50.0, PYTHON), [("/runs/1", other)]) is None


def input_beside(rate: float, training: float) -> InputVerdict:
    """The verdict on an input by itself beside a training by itself, in images/sec."""
    return there(judge_input(rated("input", rate, PYTHON), [("/runs/1", rated("train", training))]))


@given(RATES, RATES)
def test_the_headroom_decides_alone(input_rate: float, training_rate: float) -> None:
    found = input_beside(input_rate, training_rate)
    headroom = input_rate / training_rate
    assert found.headroom == pytest.approx(headroom)
    assert (found.verdict == "input") == (headroom < 0.95)
    assert (found.verdict == "enough") == (headroom >= 1.2)
