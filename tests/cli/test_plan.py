import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.run.plan import Plan
from tests.cli.conftest import Call

CAPTURES = Path(__file__).parents[3] / "shared/captures/topo"


def test_two_gpus_of_7gforce_are_0_and_1_and_the_plan_states_why(call: Call) -> None:
    done = call("plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--prefer-pix")
    assert (done.code, done.err) == (0, "")
    assert "Plan for alexnet" in done.out
    assert "GPUs       0,1" in done.out
    assert "variables on gpu:0" in done.out
    for heading in ("Why", "Next best", "Environment"):
        assert f"\n{heading}\n" in done.out
    assert "PIX" in done.out.partition("Why")[2].partition("Next best")[0]


def test_the_public_capture_of_7gforce_gives_gpus_0_and_1(call: Call) -> None:
    if not CAPTURES.is_dir():
        pytest.skip("the public captures are not beside this checkout")
    capture = next(CAPTURES.glob("7gforce_*.txt"))
    done = call("plan", "--from", capture, "--model", "alexnet", "--num-gpus", 2, "--prefer-pix", "--json")
    assert schema.decode(done.out, Plan, origin="stdout").choice.gpus == (0, 1)


def test_json_holds_the_whole_plan(call: Call) -> None:
    done = call("plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--json")
    plan = schema.decode(done.out, Plan, origin="stdout")
    assert json.loads(done.out)["schema"] == "gputopo.plan/1"
    assert plan.candidates[0] == plan.choice
    assert plan.model == "alexnet"
    assert call(
        "plan", "--from", "7gforce", "--model", "alexnet", "--num-gpus", "2", "--format", "json"
    ).out == done.out  # fmt: skip


def test_env_is_plain_lines_by_uuid_where_it_is_known(call: Call, on_scenario: Callable[[str], None]) -> None:
    on_scenario("7gforce")
    done = call("plan", "--model", "alexnet", "--num-gpus", "2", "--format", "env")
    values = dict(line.split("=", 1) for line in done.out.splitlines())
    assert values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert [word[:4] for word in values["CUDA_VISIBLE_DEVICES"].split(",")] == ["GPU-", "GPU-"]
    # docker --env-file and $(...) take quotes as part of the value, so there must be none
    assert all(shlex.quote(value) == value for value in values.values())


def test_json_and_another_format_are_refused_together(call: Call) -> None:
    done = call("plan", "--from", "7gforce", "--model", "alexnet", "--format", "env", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "gputopo: --format env and --json contradict one another", "  leave one of them out"
    ]  # fmt: skip


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


@pytest.mark.parametrize("name", ["7gforce", "dgx1-v100", "az-4x-m60"])
def test_a_plan_fits_80_columns(name: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = call("plan", "--from", name, "--model", "alexnet").out.splitlines()
    assert max(map(len, lines)) <= 80


def test_cuda_visible_devices_is_obeyed_here_and_ignored_for_a_capture(
    call: Call, on_scenario: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,9,0")
    done = call("plan", "--model", "alexnet", "--json")
    found = json.loads(done.out)
    assert (done.code, found["choice"]["gpus"]) == (0, [2, 3])
    assert found["warnings"] == ["GPUs 0 and 1 left out: hidden by CUDA_VISIBLE_DEVICES"]
    assert "hidden by CUDA_VISIBLE_DEVICES" in call("plan", "--model", "alexnet", "--format", "env").err
    assert call("plan", "--model", "alexnet", "--gpus", "0").code == 2
    captured = call("plan", "--model", "alexnet", "--from", "7gforce", "--json")
    assert json.loads(captured.out)["choice"]["gpus"] == [0, 1, 2, 3, 4, 5, 6]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    nothing = call("plan", "--model", "alexnet")
    assert nothing.code == 3
    assert "CUDA_VISIBLE_DEVICES hides all GPUs" in nothing.err
