"""What earlier runs of this machine change in the next plan, and `--no-history`."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from math import comb
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch import machine_from
from gputopo.launch.jobs import model_costs
from gputopo.launch.supervise.run_folder import RunFolder, write_result
from gputopo.planner import choose
from gputopo.runs import BoxHistory
from gputopo.topology import fingerprint, without_identities
from gputopo.values import schema
from gputopo.values.errors import InputError, UsageError
from gputopo.values.run.plan import Plan
from gputopo.values.run.result import Result
from gputopo.workload import Workload, require_workload
from tests.cli.conftest import ByName, Call
from tests.runs.boxes import run

CAPTURES = Path(__file__).parents[3] / "shared/captures/topo"


def test_two_gpus_of_7gforce_are_0_and_1_and_the_plan_states_why(call: Call) -> None:
    done = call("plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--prefer-pix")
    assert (done.code, done.err) == (0, "")
    answer = "GPUs 0,1, parameter_server gpu:spread: 1,864 images/sec of alexnet, measured.\n"
    assert done.out.startswith(answer)
    assert len(done.out.splitlines()) <= 24
    assert "PIX" in done.out.partition("\nWhy\n")[2].partition("\nCandidates\n")[0]


def test_json_holds_the_whole_plan(call: Call) -> None:
    done = call("plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--json")
    plan = schema.decode(done.out, Plan, origin="stdout")
    assert json.loads(done.out)["schema"] == "gputopo.plan/1"
    assert plan.candidates[0] == plan.choice
    assert plan.model == "alexnet"
    assert call(
        "plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--format", "json"
    ).out == done.out  # fmt: skip


def test_env_is_plain_lines_by_uuid_where_it_is_known(call: Call, on_scenario: ByName) -> None:
    on_scenario("7gforce")
    done = call("plan", "--model", "alexnet", "--num-gpus", "2", "--format", "env")
    values = dict(line.split("=", 1) for line in done.out.splitlines())
    assert values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert [word[:4] for word in values["CUDA_VISIBLE_DEVICES"].split(",")] == ["GPU-", "GPU-"]
    # docker --env-file and $(...) take quotes as part of the value, so there must be none
    assert all(shlex.quote(value) == value for value in values.values())


@pytest.mark.parametrize("command", [("plan",), ("run", "--dry-run")])
def test_an_environment_value_that_a_shell_would_split_is_quoted(
    call: Call, command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"A": "GPU-1,GPU-2", "B": "x y; $(z)"}
    monkeypatch.setattr(choose, "plan_environment", lambda *_: values)
    done = call(*command, "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--format", "env")
    assert (done.code, done.out) == (0, "A=GPU-1,GPU-2\nB='x y; $(z)'\n")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the models that are built, in place of a child: each as resnet50."""
    names: list[str] = []

    def build(name: str, *_: object) -> Workload:
        names.append(name)
        if name == "colorsys:absent":
            raise UsageError("colorsys has no 'absent'", "use one of its functions")
        if name == "keras:VGG19":
            raise InputError("the model 'keras:VGG19' cannot be built here: no TensorFlow", "install it")
        return msgspec.structs.replace(require_workload("resnet50"), name=name)

    monkeypatch.setattr(model_costs, "_built", build)
    return names


def test_a_model_without_a_table_is_built_once_and_planned_by_its_costs(call: Call, built: list[str]) -> None:
    asked = ("plan", "--from", "dgx1-p100", "--model", "keras:ResNet50", "--batch-size", 64, "--num-gpus", 4)
    first, second = call(*asked), call(*asked)
    assert built == ["keras:ResNet50"]
    assert first.err == "gputopo: building keras:ResNet50 once to measure its cost\n"
    assert (second.code, second.err, second.out) == (0, "", first.out)
    assert "images/sec of one GPU (published: tf_cnn_benchmarks" in first.out


def test_a_model_that_cannot_be_built_here_is_planned_without_seconds(call: Call, built: list[str]) -> None:
    done = call("plan", "--from", "dgx1-p100", "--model", "keras:VGG19", "--num-gpus", 2)
    assert built == ["keras:VGG19"]
    assert done.code == 0
    assert "gputopo: the model 'keras:VGG19' cannot be built here: no TensorFlow\n" in done.err
    assert "images/sec" not in done.out


def test_a_model_that_is_not_there_is_refused_without_building_where_its_source_decides(
    call: Call, built: list[str]
) -> None:
    asked = ("plan", "--from", "dgx1-p100", "--num-gpus", 2, "--model")
    keras, own = call(*asked, "keras:Nothing"), call(*asked, "colorsys:absent")
    assert built == []
    assert (keras.code, keras.out, own.code, own.out) == (2, "", 2, "")
    assert keras.err.startswith("gputopo: keras.applications has no model 'Nothing'\n  ")
    assert own.err.endswith("gputopo: colorsys has no 'absent'\n  use one of its functions\n")


def test_the_options_reach_the_planner(call: Call) -> None:
    done = call(
        "plan", "--from", "7gforce", "--model", "alexnet", "--gpus", "3-5", "--exclude", "2,6",
        "--num-gpus", "2", "--variable-update", "replicated", "--json",
    )  # fmt: skip
    choice = schema.decode(done.out, Plan, origin="stdout").choice
    assert set(choice.gpus) < {3, 4, 5}
    assert (choice.variable_update, choice.ps_device) == ("replicated", None)
    held = call("plan", "--from", "7gforce", "--model", "alexnet", "--ps", "gpu:6", "--num-gpus", 2, "--json")
    choice = schema.decode(held.out, Plan, origin="stdout").choice
    assert choice.ps_device == "gpu:6"
    assert 6 in choice.gpus
    reduced = call("plan", "--from", "7gforce", "--model", "alexnet", "--all-reduce", "xring#2", "--json")
    choice = schema.decode(reduced.out, Plan, origin="stdout").choice
    assert (choice.variable_update, choice.all_reduce) == ("replicated", "ring#2")


def test_a_request_that_cannot_be_met_is_refused_in_words_and_a_plan_is_given(call: Call) -> None:
    done = call("plan", "--from", "az-2x-m60", "--model", "alexnet", "--num-gpus", "2", "--prefer-pix")
    assert done.code == 0
    refused = done.out.partition("\nRefused\n")[2]
    assert "--prefer-pix" in refused


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


def test_the_candidates_of_a_group_have_their_images_per_sec(call: Call) -> None:
    """As published groups are compared: by variable update, device of the variables and reduction."""
    done = call(
        "plan", "--from", "7gforce", "--model", "alexnet", "--batch-size", 256, "--gpus", "0,5",
        "--single-gpu-images-per-sec", 1500, "--program", "tf_cnn_benchmarks-2017", "--candidates", "all",
        "--json",
    )  # fmt: skip
    plan = schema.decode(done.out, Plan, origin="stdout")
    found = {(one.variable_update, one.ps_device, one.all_reduce): one for one in plan.candidates}
    for mode in (
        ("parameter_server", "cpu", None),
        ("parameter_server", "gpu:0", None),
        ("parameter_server", "gpu:5", None),
        ("parameter_server", "gpu:spread", None),
        ("replicated", None, "pscpu"),
        ("replicated", None, "nccl"),
        ("independent", None, None),
    ):
        assert found[mode].gpus == (0, 5)
        assert 0 < (found[mode].images_per_sec or 0) <= 3000
    assert found["replicated", None, "ring"].images_per_sec is None
    assert plan.prediction is not None
    assert (plan.prediction.program, plan.prediction.batch_size) == ("tf_cnn_benchmarks-2017", 256)
    assert plan.prediction.single_gpu_images_per_sec == {0: 1500.0, 5: 1500.0}


def test_all_candidates_are_every_set_and_place(call: Call) -> None:
    """Sets that differ only in GPUs that are alike are counted; the choice is the first."""
    options = ("plan", "--from", "7gforce", "--num-gpus", 3, "--single-gpu-images-per-sec", 1500)
    few = call(*options, "--model", "alexnet", "--json")
    every = call(*options, "--model", "alexnet", "--json", "--candidates", "all")
    plan = schema.decode(every.out, Plan, origin="stdout")
    assert plan.choice == plan.candidates[0]
    assert plan.choice.gpus == schema.decode(few.out, Plan, origin="stdout").choice.gpus
    of_cpu = [one for one in plan.candidates if one.ps_device == "cpu"]
    assert sum(one.alike for one in of_cpu) == comb(7, 3)


def test_a_flag_of_other_programs_is_read_or_refused_as_it_was_typed(call: Call) -> None:
    asked = ("plan", "--from", "dgx1-v100", "--model", "resnet50", "--num-gpus", 2, "--json")
    half, typed = call(*asked, "--use_fp16"), call(*asked, "--precision", "fp16")
    assert (half.code, half.out) == (0, typed.out)
    assert half.out != call(*asked).out
    refused = call(*asked, "--use_xla_compile")
    assert refused.code == 2
    assert refused.err.startswith("gputopo: there is no option '--use-xla-compile'\n")


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
    assert call("plan", "--from", "7gforce", "--model", "alexnet", "--batch-size", 10**8).code == 2


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


def test_what_if_shows_before_and_after_and_what_it_rests_on(call: Call) -> None:
    words = ("plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", 2)
    done = call(*words, "--what-if", "all: x16", "--what-if", "gpu6: x8")
    assert done.code == 0
    part = done.out.partition("\nWhat if\n")[2].partition("\n\n")[0]
    assert all(label in part for label in ("Before", "After", "Rests on"))
    found = schema.decode(call(*words, "--what-if", "all: x16", "--json").out, Plan, origin="stdout").what_if
    assert found is not None
    assert (found.changes, found.asked) == (("all: x16",), True)
    assert found.share > 0


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        (
            ("--what-if", "all: x16", "--what-if", "gpu6: x8"),
            "All GPUs into x16 slots; GPU 6 into an x8 slot: 3,111 instead of 1,827 images/sec",
        ),
        (
            ("--what-if", "gpu6: x1"),
            "GPU 6 into an x1 slot: 1,827 instead of 1,827 images/sec of alexnet, no difference.",
        ),
        (("--what-if",), "GPU 3 into an x16 slot: 3,106 instead of 1,827 images/sec of alexnet, +70%."),
    ],
)
@pytest.mark.parametrize("shape", ["table", "markdown"])
def test_the_answer_to_what_if_comes_first(
    changes: tuple[str, ...], answer: str, shape: str, call: Call
) -> None:
    done = call(
        "plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", 2, *changes, "--format", shape
    )
    assert " ".join(done.out.split()).startswith(answer)


def test_one_plan_has_one_style_of_numbers(call: Call) -> None:
    shown = call("plan", "--from", "7gforce", "--model", "alexnet", "--what-if", "all: x16").out
    assert "4,424" in shown
    without_models = re.sub("GTX [0-9]+", "", " ".join(shown.split()))
    assert not re.findall(r"[0-9] %|(?<![\w.,])[0-9]{4,}(?![\w.])", without_models)
    assert not re.findall(r"GPU[0-9]|GPU [0-9]+[-,][0-9]", shown)


def test_what_if_alone_finds_the_change_that_pays_most(call: Call) -> None:
    words = ("plan", "--from", "7gforce", "--model", "alexnet", "--gpus", "0,1")
    found = schema.decode(call(*words, "--what-if", "--json").out, Plan, origin="stdout").what_if
    assert found is not None
    assert not found.asked
    assert "images/sec of alexnet" in " ".join(call(*words, "--what-if").out.split())


def test_unequal_gpus_are_compared_and_the_options_of_the_fastest_are_named(call: Call) -> None:
    speeds = "156,156,90,156,156,156,163"
    options = ("--from", "7gforce", "--model", "resnet50", "--single-gpu-images-per-sec", speeds)
    plan = schema.decode(call("plan", *options, "--batch-size", "64", "--json").out, Plan, origin="out")
    assert plan.unequal is not None
    assert sum(plan.unequal.in_proportion.batch_sizes) == 7 * 64
    assert plan.unequal.use.startswith("--batch-size 6")
    named = ("plan", *options, *plan.unequal.use.split(), "--json")
    again = schema.decode(call(*named).out, Plan, origin="out")
    assert again.choice.images_per_sec == plan.unequal.in_proportion.images_per_sec
    assert again.choice.batch_sizes == plan.unequal.in_proportion.batch_sizes
    assert again.unequal is not None
    assert again.unequal.use == ""
    text = call("plan", *options, "--batch-size", "AUTO").out
    assert "\nBatches  " in text
    assert "in proportion to the speed of each GPU alone" in text


def test_the_line_of_gradients_is_shown_and_in_the_json_where_asked_for(call: Call) -> None:
    asked = ("plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "4")
    done = call(*asked, "--explain")
    assert done.code == 0, done.err
    assert "Line of gradients\n  ms from the start of the step: " in done.out
    line = json.loads(call(*asked, "--explain", "--json").out)["line"]
    assert [one["block"] for one in line["blocks"]][-1] == "conv1"
    assert json.loads(call(*asked, "--json").out)["line"] is None


ASKED = ("plan", "--model", "alexnet", "--num-gpus", 4, "--json")


@pytest.fixture
def ran(own_home: Path, on_scenario: ByName) -> Callable[..., None]:
    """Makes this machine a DGX-1, with earlier runs on two of its GPUs."""
    on_scenario("dgx1")

    def ran(*models: str, within: str = "runs/{}", **numbers: Any) -> None:
        machine = machine_from(())
        for number, model in enumerate(models):
            result: Result = run(machine, model, **numbers)
            folder = RunFolder(own_home / within.format(number))
            folder.path.mkdir(parents=True)
            write_result(folder, result)
            schema.write(folder.path / "machine.json", without_identities(machine))

    return ran


def planned(call: Call, *more: object) -> Plan:
    done = call(*ASKED, *more)
    assert done.code == 0, done.err
    return schema.decode(done.out, Plan, origin="stdout")


def test_runs_of_this_machine_change_its_next_plan(call: Call, ran: Callable[..., None]) -> None:
    """Also the short ones of an autotune, and the same with `run`."""
    before = planned(call)
    within = "runs/20261123-120000-vgg16-1/autotune/1-{}"
    ran("vgg16", "resnet152", within=within, slower=1.3)
    after = planned(call)
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
    dry = call("run", *ASKED[1:], "--dry-run")
    assert f'"step_factor": {learned.step_factor}' in dry.out
    assert "Own runs  2 runs of 2 jobs on several GPUs: steps take" in call(*ASKED[:-1]).out


def test_no_history_leaves_out_earlier_runs(call: Call, ran: Callable[..., None]) -> None:
    """Saved bandwidth, too: see the tests of that command."""
    before = planned(call)
    ran("vgg16", "resnet152", links=0.7)
    assert planned(call, "--no-history") == before
    assert planned(call) != before
    assert '"learned": null' in call("run", *ASKED[1:], "--dry-run", "--no-history").out


def test_runs_of_another_machine_and_what_cannot_be_read_do_not_count(
    call: Call, ran: Callable[..., None], own_home: Path, on_scenario: ByName
) -> None:
    before = planned(call)
    ran("vgg16", "resnet152")
    (own_home / "runs/0/machine.json").write_text("{ cut off")
    found = planned(call).prediction
    assert found is not None
    assert found.learned is not None
    assert (found.learned.runs, found.learned.step_factor) == (1, 1.0)
    BoxHistory(own_home).path.unlink()
    (own_home / "runs/1/machine.json").unlink()
    assert planned(call) == before
    assert fingerprint(machine_from(())) is not None
