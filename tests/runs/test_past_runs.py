"""Which earlier runs count, and what they say of the box."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from gputopo.captures import read_bundled
from gputopo.prediction import Figure, Placement
from gputopo.runs import Past, measured_before
from gputopo.topology import fingerprint
from gputopo.values.machine import Machine
from gputopo.values.run.events import Anomaly
from gputopo.values.run.plan import Learned
from gputopo.values.run.result import DeviceResult, Result
from gputopo.workload import Workload, require_workload
from tests import there
from tests.runs.boxes import BATCH, ON_CPU, run


def located(name: str) -> Machine:
    """A bundled machine with addresses, by which its runs are known."""
    machine = read_bundled(name)
    gpus = (
        msgspec.structs.replace(gpu, pci_address=f"0000:{gpu.index + 5:02x}:00.0") for gpu in machine.gpus
    )
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


MACHINE = located("dgx1-p100")
NCCL = Placement("replicated", None, "nccl")


def shown(
    results: Iterable[Result],
    machine: Machine = MACHINE,
    *,
    of: Machine = MACHINE,
    workload_of: Callable[[str], Workload | None] = require_workload,
) -> tuple[tuple[Figure, ...], Learned | None]:
    """What runs of `of` show for `machine`."""
    past = [
        Past(result=one, finished_at=0.0, folder="", fingerprint=there(fingerprint(of))) for one in results
    ]
    return measured_before(machine, past, workload_of)


def learned(*results: Result, machine: Machine = MACHINE) -> Learned | None:
    return shown(results, machine, of=machine)[1]


def with_rows(result: Result, change: Callable[[DeviceResult], dict[str, Any]]) -> Result:
    rows = (msgspec.structs.replace(row, **change(row)) for row in result.devices)
    return msgspec.structs.replace(result, devices=tuple(rows))


def some(**numbers: Any) -> list[Result]:
    """Runs of a model of many bytes and one of many variables."""
    return [run(MACHINE, model, **numbers) for model in ("vgg16", "resnet152")]


@pytest.mark.parametrize(
    ("machine", "placing", "slower"),
    [
        ("7gforce", ON_CPU, 0.9),
        ("dgx1-p100", Placement("parameter_server", "gpu:spread"), 0.9),
    ],
)
def test_two_jobs_show_the_factor_between_steps_and_their_predictions(
    machine: str, placing: Placement, slower: float
) -> None:
    box = located(machine)
    past = [run(box, name, placing=placing, slower=slower) for name in ("vgg16", "resnet152")]
    found = there(learned(*past, machine=box))
    assert (found.runs, found.jobs) == (2, 2)
    assert found.step_factor == pytest.approx(slower, rel=0.03)
    one = there(learned(past[0], machine=box))
    assert (one.jobs, one.step_factor) == (1, 1.0)


def test_one_disturbed_job_does_not_move_the_factor_which_is_two_at_most() -> None:
    disturbed = run(MACHINE, "alexnet", slower=1.9)
    assert there(learned(*some(slower=1.2), disturbed)).step_factor == pytest.approx(1.2, rel=0.03)
    assert there(learned(*some(slower=9.0))).step_factor == 2.0


def test_the_speed_of_each_placement_is_the_median_of_its_runs() -> None:
    runs = [run(MACHINE, "vgg16", slower=slower) for slower in (1.0, 1.1, 1.01)]
    [found] = there(learned(*runs)).speeds
    assert (found.model, found.precision, found.batch, found.gpus) == ("vgg16", "fp32", BATCH, (0, 1))
    assert (found.variable_update, found.ps_device, found.all_reduce) == ("parameter_server", "cpu", None)
    assert found.images_per_sec == pytest.approx(there(runs[2].throughput).median, rel=1e-3)
    assert found.says == "3 earlier runs here"


def test_a_run_of_one_gpu_with_the_same_job_counts_before_the_marks() -> None:
    """The marks here are wrong by a fifth."""
    runs = [with_rows(one, lambda row: {"compute_ms": 80.0}) for one in some(slower=1.2)]

    def alone(batch: int) -> list[Result]:
        """Runs of one GPU that takes 0.1 s for a batch."""
        rates = dict.fromkeys(("mean", "median", "total"), batch / 0.1)
        faster = [
            msgspec.structs.replace(one, throughput=msgspec.structs.replace(there(one.throughput), **rates))
            for one in some(gpus=(0,))
        ]
        return [with_rows(one, lambda row: {"batch_size": batch}) for one in faster]

    found = there(learned(*runs, *alone(BATCH)))
    assert found.step_factor == pytest.approx(1.2, rel=0.03)
    assert learned(*runs, *alone(2 * BATCH)) == learned(*runs) != found


ANOMALY = Anomaly(
    time_s=0.0, tower=0, part="compute", percent_under=9.0, percent_under_low=7.0, confidence=0.99, says=""
)
USUAL = there(run(MACHINE, "vgg16").throughput)
NOISY = msgspec.structs.replace(USUAL, uncertainty=0.03 * USUAL.mean)


@pytest.mark.parametrize(
    "changed",
    [
        {"status": "failed"},
        {"backend": "cpu"},
        {"anomalies": (ANOMALY,)},
        {"throughput": NOISY},
        {"steady_steps": 40},
        {"spec": {}},
    ],
)
def test_runs_that_were_disturbed_or_not_on_these_gpus_do_not_count(changed: dict[str, Any]) -> None:
    assert learned(run(MACHINE, "vgg16", **changed)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"task": "forward"},
        {"method": "kuza55"},
        {"variable_update": "independent"},
        {"drills": [{"fault": "slow-gpu", "device": 0, "factor": 0.9}]},
        {"devices": [{"tower": 0, "device": "/CPU:0", "gpu": None}] * 2},
        {"model": None},
    ],
)
def test_runs_that_the_constants_do_not_describe_do_not_count(changed: dict[str, Any]) -> None:
    usual = run(MACHINE, "vgg16")
    assert learned(msgspec.structs.replace(usual, spec={**usual.spec, **changed})) is None


def test_a_short_run_counts_as_its_steps_are_too_few_to_know_whether_they_are_steady() -> None:
    assert learned(run(MACHINE, "vgg16", steady_steps=None, steps=5, warmup_steps=2)) is not None


def test_without_costs_or_marks_only_speeds_are_known_and_nothing_of_gpus_that_are_gone() -> None:
    unknown = there(shown(some(), workload_of=lambda _: None)[1])
    assert (unknown.jobs, unknown.step_factor, len(unknown.speeds)) == (0, 1.0, 2)
    fewer = msgspec.structs.replace(MACHINE, gpus=MACHINE.gpus[2:], links=())
    assert shown(some(), fewer, of=fewer)[1] is None
    bare = there(learned(*(with_rows(one, lambda row: {"weights_ms": None}) for one in some())))
    assert (bare.jobs, len(bare.speeds)) == (0, 2)
    assert learned() is None


@pytest.mark.parametrize("placing", [ON_CPU, NCCL])
def test_the_marks_of_a_run_are_the_speed_of_one_of_its_gpus(placing: Placement) -> None:
    ((found,), _) = shown([run(MACHINE, "resnet50", placing=placing)])
    assert found[:4] == (MACHINE.gpus[0].name, "resnet50", BATCH, "fp32")
    assert found.images_per_sec == pytest.approx(BATCH / 0.1)
    assert found.by_marks


def test_only_the_latest_jobs_are_looked_at() -> None:
    gpus = [(a, b) for a in range(6) for b in range(a)]
    found = there(learned(*(run(MACHINE, "vgg16", gpus=pair) for pair in gpus)))
    assert len(gpus) > 12 == found.jobs == found.runs
