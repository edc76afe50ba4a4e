"""`--autotune` of `run` and `plan`: with a worker that only pretends, and once with the real core."""

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from gputopo.cli import run_command
from gputopo.launch import Site, Target
from gputopo.launch.jobs import autotune, race, trials
from gputopo.launch.locks import try_lock
from gputopo.values import schema
from gputopo.values.run.plan import Autotune, Candidate, Plan, mode_of
from gputopo.values.run.result import Result
from tests.cli.conftest import ByName, Call
from tests.cli.trained import without_a_gpu
from tests.launch.claiming import other
from tests.launch.specs import machine, plan_for


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


def test_what_it_cannot_be_combined_with_is_refused_in_two_lines(
    call: Call, without_gpu: None, worker: ByName
) -> None:
    worker("works")
    alone = "only one placement"
    cases: list[tuple[str, tuple[str, ...], str]] = [
        ("run", ("--dry-run",), "--dry-run"),
        ("run", ("--from", "7gforce"), "--from"),
        ("run", ("--task", "forward"), "--task forward"),
        ("run", ("--strategy", "mirrored"), "--strategy"),
        ("run", ("--variable-update", "independent"), alone),
        ("run", ("--all-reduce", "ring"), alone),
        ("run", ("--", "true"), "--autotune works with the built-in training"),
        ("plan", ("--from", "7gforce"), "--from"),
        ("plan", ("--what-if", "acs off"), "--what-if"),
        ("plan", ("--program", "keras-2017"), "--program keras-2017"),
        ("plan", ("--candidates", "all"), "--candidates all"),
        ("plan", ("--explain",), "nothing predicted"),
        *((name, ("--num-gpus", "1"), "one device") for name in ("run", "plan")),
        *((name, ("--ps", "cpu"), alone) for name in ("run", "plan")),
        *(("run", (f"--autotune={count}",), "--autotune") for count in ("1", "0")),
        *(("plan", (f"--autotune={count}",), "--autotune") for count in ("11", "many")),
    ]
    for command, options, what in cases:
        done = call(command, "--model", "alexnet", "--autotune", "3", *options)
        assert (done.code, len(done.err.splitlines())) == (2, 2), done
        assert what in done.err.splitlines()[0]


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
    more = call(*asked, "--autotune", "2", "--candidates", "6")
    assert len(schema.decode(more.out, Plan, origin="stdout").candidates) == 6


def test_a_plan_without_gpus_is_for_cpu_devices(call: Call, without_gpu: None, worker: ByName) -> None:
    worker("works")
    done = call("plan", "--model", "alexnet", "--autotune", "2")
    assert done.code == 0, done.err
    assert "Logical CPU devices, parameter_server cpu: 40 images/sec of alexnet, measured.\n" in done.out
    assert "Autotune of alexnet, images/sec at batch " in done.out
    assert "no GPU to plan for: 2 logical CPU devices" in done.out


def test_where_no_placement_can_be_run_the_cause_and_the_logs_are_named(
    call: Call, without_gpu: None, worker: ByName
) -> None:
    worker("traceback")
    done = call("plan", "--model", "alexnet", "--autotune", "2")
    assert (done.code, done.out) == (3, "")
    what, hint = done.err.splitlines()[-2:]
    assert what.startswith("gputopo: no placement could be run: ")
    assert hint.startswith("  see the logs of the runs in ")


@pytest.mark.tensorflow
def test_on_logical_cpu_devices_it_trains_with_the_fastest(tmp_path: Path) -> None:
    with without_a_gpu(tmp_path) as patch:
        patch.setattr(trials, "MAX_STEPS", 3)
        patch.setattr(race, "lead", lambda *_: (0.0, 0.0))  # by one round
        small = ("--model", "trivial", "--data-name", "cifar10", "--batch-size", "2", "--num-batches", "3")
        assert run_command(["run", *small, "--autotune", "2", "--output", "out"]) == 0
    out = tmp_path / "out"
    found = schema.decode((out / "autotune.json").read_bytes(), Autotune, origin="file")
    assert found.winner is not None
    assert [one.failure for one in found.measured] == [None, None]
    plan = schema.decode((out / "plan.json").read_bytes(), Plan, origin="file")
    assert plan.choice.variable_update == found.measured[found.winner].candidate.variable_update
    result = schema.decode((out / "result.json").read_bytes(), Result, origin="file")
    assert result.ran["variable_update"] == plan.choice.variable_update


def test_gpus_of_other_candidates_are_claimed_too_or_these_are_left_out(own_home: Path) -> None:
    nccl = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="nccl")
    served, copied = Candidate(gpus=(0, 2), ps_device="cpu"), msgspec.structs.replace(nccl, gpus=(2, 3))
    target = Target("gpu", Site(machine()), msgspec.structs.replace(plan_for((0, 1)), choice=nccl))
    with contextlib.ExitStack() as claims:
        assert list(autotune.claimable([nccl, served, copied], target, claims)) == [nccl, served, copied]
        locked = [file.name for file in (own_home / "claims").iterdir() if is_locked(file)]
    assert sorted(locked) == ["GPU-22-aa.lock", "GPU-33-aa.lock"]
    assert not any(map(is_locked, (own_home / "claims").iterdir()))
    with contextlib.ExitStack() as claims, other(own_home / "claims", 3):
        assert list(autotune.claimable([nccl, served, copied], target, claims)) == [nccl, served]


def is_locked(file: Path) -> bool:
    handle = os.open(file, os.O_RDONLY)
    try:
        return not try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
