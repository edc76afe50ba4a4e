"""A machine on which NCCL fails, by the commands that train: with a worker that only pretends."""

from pathlib import Path

from gputopo.values import schema
from gputopo.values.run.plan import Autotune, Plan
from gputopo.values.run.result import Result
from tests import there
from tests.cli.conftest import ByName, Call

RUN = ("run", "--model", "alexnet")


def result_in(folder: Path) -> Result:
    return schema.decode((folder / "result.json").read_bytes(), Result, origin="result.json")


def test_a_run_trains_by_the_next_reduction_and_says_why_in_one_line(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("dgx1")
    worker("is_refused_by_nccl")
    done = call(*RUN, "--output", tmp_path / "out")
    assert done.code == 0, done.err
    (said,) = (line for line in done.err.splitlines() if "NCCL cannot be used here" in line)
    assert "NCCL: unhandled system error. Training by replicated copy instead of replicated nccl." in said
    assert said in " ".join(done.out.split())
    plan = schema.decode((tmp_path / "out/plan.json").read_bytes(), Plan, origin="plan.json")
    result = result_in(tmp_path / "out")
    replanned = there(result.replanned)
    assert (plan.choice.all_reduce, replanned.planned.images_per_sec) == ("nccl", plan.choice.images_per_sec)
    assert (result.ran["all_reduce"], replanned.choice.all_reduce) == ("copy", "copy")
    assert there(result.prediction).images_per_sec == replanned.choice.images_per_sec


def test_nccl_that_was_typed_is_not_replaced(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("dgx1")
    worker("is_refused_by_nccl")
    done = call(*RUN, "--all-reduce", "nccl", "--output", tmp_path / "out")
    assert done.code == 3
    assert "Failed: the reduction 'nccl' failed: NCCL: unhandled system error." in done.out
    assert result_in(tmp_path / "out").replanned is None


def test_a_placement_by_nccl_is_given_up_by_autotune_and_not_timed_as_another(
    call: Call, on_scenario: ByName, worker: ByName, own_home: Path
) -> None:
    on_scenario("dgx1")
    worker("crashes_in_nccl")
    done = call("plan", "--model", "alexnet", "--autotune", "2", "--json")
    assert done.code == 0, done.err
    (file,) = own_home.glob("runs/*/autotune.json")
    found = schema.decode(file.read_bytes(), Autotune, origin="autotune.json")
    assert {one.candidate.all_reduce: one.failure is None for one in found.measured} == {
        "nccl": False,
        "copy": True,
    }
