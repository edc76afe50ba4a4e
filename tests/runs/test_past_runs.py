"""Which earlier runs count, and what they say of the box."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from gputopo.captures import read_bundled
from gputopo.prediction import Figure, Placement
from gputopo.runs.past_runs import MAX_FACTOR, MAX_JOBS, figures_by_marks, learned, past_run, step_factor
from gputopo.values.run.events import Anomaly
from gputopo.values.run.plan import Learned
from gputopo.values.run.result import Result
from gputopo.workload import require_workload
from tests import there
from tests.runs.boxes import BATCH, ON_CPU, run

MACHINE = read_bundled("dgx1-p100")
NCCL = Placement("replicated", None, "nccl")


def of(results: Iterable[Result], figures: Sequence[Figure] = ()) -> Learned | None:
    past = [one for result in results if (one := past_run(result)) is not None]
    return learned(MACHINE, past, figures, require_workload)


def some(**numbers: Any) -> list[Result]:
    """Runs of a model of many bytes and one of many variables."""
    return [run(MACHINE, model, **numbers) for model in ("vgg16", "resnet152")]


@pytest.mark.parametrize(
    ("machine", "placing"),
    [
        ("7gforce", ON_CPU),
        ("dgx1-p100", NCCL),
        ("7gforce", Placement("parameter_server", "gpu:1")),
        ("dgx1-p100", Placement("parameter_server", "gpu:spread")),
    ],
)
@pytest.mark.parametrize("slower", [0.9, 1.2])
def test_two_jobs_show_the_factor_between_steps_and_their_predictions(
    machine: str, placing: Placement, slower: float
) -> None:
    box = read_bundled(machine)
    past = [past_run(run(box, name, placing=placing, slower=slower)) for name in ("vgg16", "resnet152")]
    found = there(learned(box, filter(None, past), (), require_workload))
    assert (found.runs, found.jobs) == (2, 2)
    assert found.step_factor == pytest.approx(slower, rel=0.03)
    one = there(learned(box, filter(None, past[:1]), (), require_workload))
    assert (one.jobs, one.step_factor) == (1, 1.0)


def test_the_speed_of_each_placement_is_the_median_of_its_runs() -> None:
    runs = [run(MACHINE, "vgg16", slower=slower) for slower in (1.0, 1.1, 1.01)]
    [found] = there(of([*runs])).speeds
    assert (found.model, found.precision, found.batch, found.gpus) == ("vgg16", "fp32", BATCH, (0, 1))
    assert (found.variable_update, found.ps_device, found.all_reduce) == ("parameter_server", "cpu", None)
    assert found.images_per_sec == pytest.approx(there(runs[2].throughput).median, rel=1e-3)
    assert found.says == "3 earlier runs here"


def test_a_run_of_one_gpu_with_the_same_job_counts_before_the_marks() -> None:
    """The marks here are wrong by a fifth."""
    name = MACHINE.gpus[0].name or ""
    figures = [Figure(name, model, BATCH, "fp32", BATCH / 0.1) for model in ("vgg16", "resnet152")]
    runs = [
        msgspec.structs.replace(
            one, devices=tuple(msgspec.structs.replace(row, compute_ms=80.0) for row in one.devices)
        )
        for one in some(slower=1.2)
    ]
    found = there(of(runs, figures))
    assert found.step_factor == pytest.approx(1.2, rel=0.03)
    other_batch = [one._replace(batch=2 * BATCH) for one in figures]
    assert of(runs, other_batch) == of(runs) != found


def test_runs_of_one_job_count_once_by_their_median() -> None:
    """So one of three that was disturbed changes nothing."""
    usual = some(slower=1.1)
    disturbed = run(MACHINE, "vgg16", slower=1.6)
    found = there(of([disturbed, *usual, usual[0]]))
    assert found.runs == 4
    assert found.step_factor == there(of(usual)).step_factor


def anomaly() -> Anomaly:
    return Anomaly(
        time_s=0.0,
        tower=0,
        part="compute",
        percent_under=9.0,
        percent_under_low=7.0,
        confidence=0.99,
        says="",
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"status": "failed"},
        {"backend": "cpu"},
        {"rehearsal_of": "az-2x-m60"},
        {"throughput": None},
        {"anomalies": (anomaly(),)},
        {"steady_steps": None},
        {"steady_steps": 40},
        {"spec": {}},
    ],
)
def test_runs_that_were_disturbed_or_not_on_these_gpus_do_not_count(changed: dict[str, Any]) -> None:
    assert past_run(run(MACHINE, "vgg16")) is not None
    assert past_run(run(MACHINE, "vgg16", **changed)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"task": "forward"},
        {"method": "kuza55"},
        {"strategy": "mirrored"},
        {"variable_update": "independent"},
        {"precision": {"compute": "fp32", "xla": True}},
        {"data": {"folder": "/data"}},
        {"exchange": {"staged": True}},
        {"drills": [{"fault": "slow-gpu", "device": 0, "factor": 0.9}]},
        {"devices": [{"tower": 0, "device": "/GPU:0", "gpu": 0}]},
        {"devices": [{"tower": 0, "device": "/CPU:0", "gpu": None}] * 2},
        {"variable_update": "unheard of"},
        {"model": None},
    ],
)
def test_runs_that_the_constants_do_not_describe_do_not_count(changed: dict[str, Any]) -> None:
    usual = run(MACHINE, "vgg16")
    assert past_run(msgspec.structs.replace(usual, spec={**usual.spec, **changed})) is None


def test_a_noisy_run_does_not_count_and_a_short_one_does() -> None:
    """With too few steps whether they are steady is not known."""
    usual = run(MACHINE, "vgg16")
    assert usual.throughput is not None
    noisy = msgspec.structs.replace(usual.throughput, uncertainty=0.03 * usual.throughput.mean)
    assert past_run(run(MACHINE, "vgg16", throughput=noisy)) is None
    assert past_run(run(MACHINE, "vgg16", steady_steps=None, steps=5, warmup_steps=2)) is not None


def test_without_costs_or_marks_only_speeds_are_known_and_nothing_of_gpus_that_are_gone() -> None:
    unknown = there(learned(MACHINE, filter(None, map(past_run, some())), (), lambda _: None))
    assert (unknown.jobs, unknown.step_factor, len(unknown.speeds)) == (0, 1.0, 2)
    fewer = msgspec.structs.replace(MACHINE, gpus=MACHINE.gpus[2:], links=())
    assert learned(fewer, filter(None, map(past_run, some())), (), require_workload) is None
    bare = [
        msgspec.structs.replace(
            one, devices=tuple(msgspec.structs.replace(row, weights_ms=None) for row in one.devices)
        )
        for one in some()
    ]
    assert (there(of(bare)).jobs, len(there(of(bare)).speeds)) == (0, 2)
    assert of([]) is None


@pytest.mark.parametrize("placing", [ON_CPU, NCCL])
def test_the_marks_of_a_run_are_the_speed_of_one_of_its_gpus(placing: Placement) -> None:
    past = filter(None, [past_run(run(MACHINE, "resnet50", placing=placing))])
    [found] = figures_by_marks(MACHINE, past)
    assert found[:4] == (MACHINE.gpus[0].name, "resnet50", BATCH, "fp32")
    assert found.images_per_sec == pytest.approx(BATCH / 0.1)
    assert found.by_marks
    assert figures_by_marks(MACHINE, []) == ()


def test_marks_of_gpus_of_one_model_with_different_batches_are_no_speed_of_that_model() -> None:
    past = there(past_run(run(MACHINE, "resnet50", placing=NCCL)))
    halved = (past.job.batches[0] // 2, *past.job.batches[1:])
    assert figures_by_marks(MACHINE, [past._replace(job=past.job._replace(batches=halved))]) == ()


def test_only_the_latest_jobs_are_looked_at() -> None:
    gpus = [(a, b) for a in range(8) for b in range(a)]
    found = there(of(run(MACHINE, "vgg16", gpus=pair) for pair in gpus))
    assert len(gpus) > MAX_JOBS == found.jobs == found.runs


def test_the_median_of_several_jobs_is_the_factor_and_one_disturbed_job_does_not_move_it() -> None:
    assert step_factor([1.2, 1.2]) == pytest.approx(1.2)
    assert step_factor([1.2, 1.2, 1.9]) == pytest.approx(1.2)


def test_one_job_changes_nothing_and_no_jobs_change_more_than_a_factor_of_two() -> None:
    assert step_factor([]) == step_factor([1.5]) == 1.0
    assert step_factor([9.0, 8.0]) == MAX_FACTOR
