"""`--autotune` of `run` and `plan`: with a worker that only pretends."""

from pathlib import Path

from gputopo.values import schema
from gputopo.values.run.plan import Autotune, Plan, mode_of
from tests.cli.conftest import ByName, Call


def test_it_measures_and_then_trains_with_the_fastest(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    out = tmp_path / "out"
    done = call("run", "--model", "alexnet", "--autotune", "--output", out)
    assert done.code == 0, done.err
    assert "autotune round 1: parameter_server gpu:spread: 40.0 images/sec" in done.err
    assert "predicted  measured" in done.err
    found = schema.decode((out / "autotune.json").read_bytes(), Autotune, origin="file")
    assert (found.settled, [len(one.runs) for one in found.measured]) == ("same", [2, 2, 2])
    plan = schema.decode((out / "plan.json").read_bytes(), Plan, origin="file")
    assert plan.choice.reasons[0].startswith("Fastest of 3 measured placements: parameter_server cpu, 40 ")
    assert "Fastest of 3 measured placements" in done.out
    assert (out / "result.json").is_file()


def test_a_plan_is_that_of_the_fastest_with_what_was_measured(
    call: Call, on_scenario: ByName, worker: ByName, own_home: Path
) -> None:
    on_scenario("four")
    worker("works")
    speed = ("--single-gpu-images-per-sec", "1000", "--num-gpus", "2")
    asked = ("plan", "--model", "alexnet", *speed, "--json")
    done = call(*asked, "--autotune", "--explain", "--candidates", "1")
    assert done.code == 0, done.err
    plan = schema.decode(done.out, Plan, origin="stdout")
    assert plan.autotune is not None
    assert [len(one.runs) for one in plan.autotune.measured] == [2, 2, 2]
    assert all(one.candidate.images_per_sec and one.images_per_sec for one in plan.autotune.measured)
    assert plan.autotune.winner is not None
    fastest = plan.autotune.measured[plan.autotune.winner].candidate
    assert mode_of(plan.choice) == mode_of(fastest)
    assert plan.choice.reasons[0].startswith("Fastest of 3 measured placements: ")
    assert len(plan.candidates) == 1, "as many are listed, and more are measured"
    assert plan.line is not None
    assert plan.line.variables_ms == plan.choice.exposed_ms["variables"]
    (kept,) = (own_home / "runs").glob("*/autotune.json")
    assert schema.decode(kept.read_bytes(), Autotune, origin="file") == plan.autotune
    assert len(list(kept.parent.glob("autotune/*/result.json"))) == 6


def test_where_no_placement_can_be_run_the_cause_and_the_logs_are_named(
    call: Call, without_gpu: None, worker: ByName
) -> None:
    worker("traceback")
    done = call("plan", "--model", "alexnet", "--autotune", "2")
    assert (done.code, done.out) == (3, "")
    what, hint = done.err.splitlines()[-2:]
    assert what.startswith("gputopo: no placement could be run: ")
    assert hint.startswith("  see the logs of the runs in ")
