"""A run beside the prediction of its plan."""

from typing import Any

import msgspec
import pytest

from gputopo.captures.recording import read_bundled
from gputopo.planner import Request, plan
from gputopo.prediction.step import Placing
from gputopo.runs.compared import against, with_prediction
from gputopo.runs.summary import summarise
from gputopo.values.run.plan import Candidate, Plan, Prediction
from gputopo.values.run.result import AgainstPrediction, Result
from tests.invented_runs import InventedRun, Noise, gpu_devices, step, stream
from tests.runs.predicted.boxes import BATCH, ON_CPU, run

MACHINE = read_bundled("7gforce")
PAIR = (0, 1)
COMPUTE_S = 0.5
GPU = Placing("parameter_server", "gpu:0")


def planned(placing: Placing = ON_CPU, model: str = "vgg16", gpus: tuple[int, ...] = PAIR) -> Plan:
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
    found = against(result, plan)
    assert found is not None
    return found


@pytest.mark.parametrize("placing", [ON_CPU, GPU, Placing("replicated", None, "nccl")])
def test_a_run_as_predicted_is_within_the_range_in_each_part(placing: Placing) -> None:
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


def test_copies_of_weights_that_take_longer_are_those_of_their_link() -> None:
    chosen, usual = planned(), ran()
    late = tuple(
        msgspec.structs.replace(row, weights_ms=(row.weights_ms or 0) + 900.0) for row in usual.devices
    )
    assert usual.throughput is not None
    step_s = 2 * BATCH / usual.throughput.median + 0.9
    speed = msgspec.structs.replace(usual.throughput, median=2 * BATCH / step_s)
    found = compared(msgspec.structs.replace(usual, devices=late, throughput=speed), chosen)
    assert (found.verdict, found.resource) == ("slower", chosen.choice.links["weights"])
    assert "weights take" in found.says


def test_variables_that_cost_more_are_named_where_they_are_most_of_the_rest() -> None:
    dgx = read_bundled("dgx1-p100")
    placing = Placing("replicated", None, "copy")
    asked = Request(
        model="resnet152", gpus=tuple(range(8)), batch_size=BATCH, variable_update="replicated",
        all_reduce="copy", single_gpu_images_per_sec=(BATCH / 0.1,),
    )  # fmt: skip
    slow = run(dgx, "resnet152", gpus=tuple(range(8)), placing=placing, variables=1.8)
    found = compared(slow, plan(dgx, asked))
    assert (found.verdict, found.resource) == ("slower", "cost of variables")


@pytest.mark.parametrize(("compute_s", "verdict"), [(1.0, "slower"), (0.3, "faster")])
def test_all_gpus_are_named_where_each_computes_longer_or_shorter(compute_s: float, verdict: str) -> None:
    placing = Placing("replicated", None, "nccl")
    found = compared(ran("resnet50", compute_s, placing=placing), planned(placing, "resnet50"))
    assert (found.verdict, found.resource) == (verdict, "all 2 GPUs")
    assert f"all 2 GPUs {verdict} than believed: compute takes" in found.says
    assert ("gputopo inspect" in found.says) == (verdict == "slower")


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


def test_one_gpu_is_compared_too() -> None:
    found = compared(*invented((0.16,)))
    assert found.resource == "GPU 0 (NVIDIA GeForce GTX 1070)"
    assert compared(*invented((0.1,))).verdict == "within"


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
        ({"task": "forward"}, "only training"),
        ({"data": {"folder": "/data"}}, "time of the input"),
        ({"precision": {"compute": "fp32", "xla": True}}, "XLA"),
        ({"drills": [{"fault": "slow-gpu", "device": 1, "factor": 0.9}]}, "a drill"),
        ({"exchange": {"staged": True}}, "staged"),
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


def test_where_nothing_was_predicted_or_measured_there_is_nothing_to_compare() -> None:
    result, made = invented((0.1, 0.1))
    assert with_prediction(result, made).prediction is not None
    assert with_prediction(msgspec.structs.replace(result, throughput=None), made).prediction is None
    unpredicted = msgspec.structs.replace(made, choice=Candidate(gpus=(0, 1)), prediction=None)
    assert with_prediction(result, unpredicted).prediction is None


def test_noise_within_the_range_is_no_finding() -> None:
    noisy = InventedRun(2, noise=Noise(common=0.02, own=0.01))
    result, made = invented((0.1, 0.1))
    spec = result.spec
    noisy_run = summarise(stream(gpu_devices(2), noisy.steps(60)))
    assert compared(msgspec.structs.replace(noisy_run, spec=spec), made).verdict == "within"
