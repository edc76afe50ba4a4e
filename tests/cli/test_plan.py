"""`gputopo plan`: its options, what is built, what-if, and what earlier runs of this machine change."""

import json
import shlex
from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch import machine_from, models
from gputopo.runs import BoxHistory
from gputopo.topology import fingerprint, without_identities
from gputopo.values import schema
from gputopo.values.errors import UsageError
from gputopo.values.run.plan import Plan
from gputopo.workload import Workload, require_workload
from tests.cli.conftest import ByName, Call
from tests.runs.boxes import run


def test_env_is_plain_lines_by_uuid_where_it_is_known(call: Call, on_scenario: ByName) -> None:
    on_scenario("7gforce")
    done = call("plan", "--model", "alexnet", "--num-gpus", "2", "--format", "env")
    values = dict(line.split("=", 1) for line in done.out.splitlines())
    assert values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert [word[:4] for word in values["CUDA_VISIBLE_DEVICES"].split(",")] == ["GPU-", "GPU-"]
    # docker --env-file and $(...) take quotes as part of the value, so there must be none
    assert all(shlex.quote(value) == value for value in values.values())


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """Lets models be built as resnet50, and returns the names of those that are built."""
    log = tmp_path / "built"

    def build(asked: Any, _: object) -> object:
        with log.open("a") as names:
            names.write(f"{asked.module}:{asked.attribute}\n")
        if asked.attribute == "absent":
            raise UsageError("colorsys has no 'absent'", "use one of its functions")
        if asked.attribute == "VGG19":
            raise ImportError("no TensorFlow")
        return None

    def count(_: object, name: str) -> Workload:
        return msgspec.structs.replace(require_workload("resnet50"), name=name)

    # Not setattr, which would load TensorFlow to see what is replaced.
    monkeypatch.setitem(vars(models), "build_keras", build)
    monkeypatch.setitem(vars(models), "count_costs", count)
    return lambda: log.read_text().split() if log.exists() else []


def test_a_model_without_a_table_is_built_once_and_planned_by_its_costs(
    call: Call, built: Callable[[], list[str]]
) -> None:
    asked = ("plan", "--from", "dgx1-p100", "--model", "keras:ResNet50", "--batch-size", 64, "--num-gpus", 4)
    first, second = call(*asked), call(*asked)
    assert len(built()) == 1
    assert first.err == "gputopo: building keras:ResNet50 once to measure its cost\n"
    assert (second.code, second.err, second.out) == (0, "", first.out)
    assert "images/sec of one GPU (published: tf_cnn_benchmarks" in first.out


def test_a_model_that_cannot_be_built_is_planned_without_seconds_and_one_that_is_not_there_is_refused(
    call: Call, built: Callable[[], list[str]]
) -> None:
    asked = ("plan", "--from", "dgx1-p100", "--num-gpus", 2, "--model")
    keras = call(*asked, "keras:Nothing")
    assert (keras.code, keras.out, built()) == (2, "", [])
    assert keras.err.startswith("gputopo: keras.applications has no model 'Nothing'\n  ")
    own = call(*asked, "colorsys:absent")
    assert (own.code, own.out) == (2, "")
    assert own.err.endswith("gputopo: colorsys has no 'absent'\n  use one of its functions\n")
    done = call(*asked, "keras:VGG19")
    assert done.code == 0
    assert "gputopo: the model 'keras:VGG19' cannot be built here: " in done.err
    assert "images/sec" not in done.out


def planned(call: Call, *words: object) -> Plan:
    done = call("plan", *words, "--json")
    assert done.code == 0, done.err
    return schema.decode(done.out, Plan, origin="stdout")


ALEXNET = ("--from", "7gforce", "--model", "alexnet")


def test_the_options_reach_the_planner(call: Call) -> None:
    plan = planned(
        call, *ALEXNET, "--gpus", "3-5", "--exclude", "2,6", "--num-gpus", "2", "--variable-update",
        "replicated", "--single-gpu-images-per-sec", 1500, "--program", "tf_cnn_benchmarks-2017",
        "--batch-size", 256,
    )  # fmt: skip
    choice, prediction = plan.choice, plan.prediction
    assert plan.candidates[0] == choice
    assert set(choice.gpus) < {3, 4, 5}
    assert (choice.variable_update, choice.ps_device) == ("replicated", None)
    assert prediction is not None
    assert (prediction.program, prediction.batch_size) == ("tf_cnn_benchmarks-2017", 256)
    assert set(prediction.single_gpu_images_per_sec.values()) == {1500.0}
    held = planned(call, *ALEXNET, "--ps", "gpu:6", "--num-gpus", 2).choice
    assert (held.ps_device, 6 in held.gpus) == ("gpu:6", True)
    reduced = planned(call, *ALEXNET, "--all-reduce", "xring#2").choice
    assert (reduced.variable_update, reduced.all_reduce) == ("replicated", "ring#2")


def test_cuda_visible_devices_is_obeyed_here_and_ignored_for_a_capture(
    call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,9,0")
    done = call("plan", "--model", "alexnet", "--json")
    found = json.loads(done.out)
    assert (done.code, found["choice"]["gpus"]) == (0, [2, 3])
    assert found["warnings"] == ["GPUs 0 and 1 excluded: hidden by CUDA_VISIBLE_DEVICES"]
    assert "hidden by CUDA_VISIBLE_DEVICES" in call("plan", "--model", "alexnet", "--format", "env").err
    assert call("plan", "--model", "alexnet", "--gpus", "0").code == 2
    captured = call("plan", "--model", "alexnet", "--from", "7gforce", "--json")
    assert json.loads(captured.out)["choice"]["gpus"] == [0, 1, 2, 3, 4, 5, 6]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    nothing = call("plan", "--model", "alexnet")
    assert nothing.code == 3
    assert "CUDA_VISIBLE_DEVICES hides all GPUs" in nothing.err


def test_all_candidates_are_every_set_and_place(call: Call) -> None:
    """Sets that differ only in GPUs that are alike are counted; the choice is the first."""
    asked = (*ALEXNET, "--num-gpus", 3, "--single-gpu-images-per-sec", 1500)
    few, every = planned(call, *asked), planned(call, *asked, "--candidates", "all")
    assert every.choice == every.candidates[0]
    assert every.choice.gpus == few.choice.gpus
    assert sum(one.alike for one in every.candidates if one.ps_device == "cpu") == comb(7, 3)
    modes = {(one.variable_update, one.ps_device, one.all_reduce) for one in every.candidates}
    assert modes >= {
        ("parameter_server", "gpu:0", None),
        ("parameter_server", "gpu:spread", None),
        ("replicated", None, "pscpu"),
        ("replicated", None, "nccl"),
        ("independent", None, None),
    }
    assert len(few.candidates) < len(every.candidates)


def test_a_batch_that_cannot_be_in_memory_is_refused_with_one_that_can(
    call: Call, on_scenario: ByName
) -> None:
    on_scenario("dgx1")
    asked = ("plan", "--model", "resnet152", "--num-gpus", 2, "--batch-size")
    done = call(*asked, 512)
    assert done.code == 2
    assert "GiB (counted from its layers), GPU 0 has 16 GiB" in done.err.splitlines()[0]
    fits = int(done.err.split()[-1])
    assert call(*asked, fits).code == 0


def test_the_peak_memory_of_an_earlier_run_decides_what_fits(
    call: Call, on_scenario: ByName, worker: ByName
) -> None:
    on_scenario("four")  # of 40 GiB
    worker("allocates")
    assert call("run", "--model", "resnet50", "--num-gpus", 1, "--batch-size", 32).code == 0
    for command in ("plan", "run"):
        asked = (command, "--model", "resnet50", "--num-gpus", 1, "--batch-size")
        done = call(*asked, 380)
        assert done.code == 2
        assert "about 44.4 GiB (by the peak of an earlier run with 32, 4.0 GiB), GPU 0" in done.err
        assert call(*asked, 380, "--no-history").code == 0
        assert call(*asked, int(done.err.split()[-1])).code == 0


def test_what_if_alone_finds_the_change_that_pays_most(call: Call) -> None:
    plan = planned(call, *ALEXNET, "--gpus", "0,1", "--what-if")
    assert plan.what_if is not None
    assert (plan.what_if.changes, plan.what_if.asked) == (("all: x16",), False)


def test_unequal_gpus_are_compared_and_the_options_of_the_fastest_are_named(call: Call) -> None:
    speeds = "156,156,90,156,156,156,163"
    asked = ("--from", "7gforce", "--model", "resnet50", "--single-gpu-images-per-sec", speeds)
    unequal = planned(call, *asked, "--batch-size", "64").unequal
    assert unequal is not None
    assert sum(unequal.in_proportion.batch_sizes) == 7 * 64
    assert unequal.use.startswith("--batch-size 6")
    again = planned(call, *asked, *unequal.use.split())
    assert again.choice.images_per_sec == unequal.in_proportion.images_per_sec
    assert again.choice.batch_sizes == unequal.in_proportion.batch_sizes
    assert again.unequal is not None
    assert again.unequal.use == ""
    assert planned(call, *asked, "--batch-size", "AUTO").choice.batch_sizes is not None


def test_the_line_of_gradients_is_shown_and_in_the_json_where_asked_for(call: Call) -> None:
    asked = (*ALEXNET, "--num-gpus", "4")
    line = planned(call, *asked, "--explain").line
    assert line is not None
    assert [one.block for one in line.blocks][-1] == "conv1"
    assert planned(call, *asked).line is None


ASKED = ("--model", "alexnet", "--num-gpus", 4)


@pytest.fixture
def ran(own_home: Path, on_scenario: ByName) -> Callable[..., None]:
    """Makes this machine a DGX-1, with earlier runs on two of its GPUs."""
    on_scenario("dgx1")

    def ran(*models: str, within: str = "runs/{}", **numbers: Any) -> None:
        machine = machine_from(())
        for number, model in enumerate(models):
            folder = own_home / within.format(number)
            folder.mkdir(parents=True)
            schema.write(folder / "result.json", run(machine, model, **numbers))
            schema.write(folder / "machine.json", without_identities(machine))

    return ran


def test_runs_of_this_machine_change_its_next_plan_unless_they_are_not_wanted(
    call: Call, ran: Callable[..., None]
) -> None:
    """Also the short ones of an autotune, and the same with `run`."""
    before = planned(call, *ASKED)
    within = "runs/20261123-120000-vgg16-1/autotune/1-{}"
    ran("vgg16", "resnet152", within=within, slower=1.3)
    after = planned(call, *ASKED)
    assert before.prediction is not None
    assert after.prediction is not None
    assert before.prediction.learned is None
    learned = after.prediction.learned
    assert learned is not None
    assert (learned.runs, learned.jobs) == (2, 2)
    assert learned.step_factor > 1.2
    assert (after.choice.images_per_sec or 0) < (before.choice.images_per_sec or 0)
    assert "time marks of runs on several" not in after.prediction.single_gpu_source
    other = call("plan", "--model", "vgg16", "--batch-size", 64, "--num-gpus", 4)
    assert "time marks of runs on several Tesla P100" in " ".join(other.out.split())
    dry = call("run", *ASKED, "--json", "--dry-run")
    assert f'"step_factor": {learned.step_factor}' in dry.out
    assert "Own runs  2 runs of 2 jobs on several GPUs: steps take" in call("plan", *ASKED).out
    assert planned(call, *ASKED, "--no-history") == before
    assert '"learned": null' in call("run", *ASKED, "--json", "--dry-run", "--no-history").out


def test_runs_of_another_machine_and_what_cannot_be_read_do_not_count(
    call: Call, ran: Callable[..., None], own_home: Path, on_scenario: ByName
) -> None:
    before = planned(call, *ASKED)
    ran("vgg16", "resnet152")
    (own_home / "runs/0/machine.json").write_text("{ cut off")
    found = planned(call, *ASKED).prediction
    assert found is not None
    assert found.learned is not None
    assert (found.learned.runs, found.learned.step_factor) == (1, 1.0)
    BoxHistory(own_home).path.unlink()
    (own_home / "runs/1/machine.json").unlink()
    assert planned(call, *ASKED) == before
    assert fingerprint(machine_from(())) is not None
