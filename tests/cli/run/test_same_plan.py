"""`plan` and `run` make the same plan of the same options, and `run` shows it before it starts."""

import json
from typing import Any

import pytest

from gputopo.report import plan_summary
from gputopo.values import schema
from gputopo.values.run.plan import Plan
from tests.cli.conftest import ByName, Call

SPEED = "--single-gpu-images-per-sec 1000"
OPTIONS = (
    f"{SPEED} --num-gpus auto:0.3",
    f"{SPEED} --gpus 0,1,3 --num-gpus 2 --exclude 2 --prefer-pix --ps cpu",
    "--single-gpu-images-per-sec 1000,900 --gpus 0,1 --batch-size 64,48",
)


def both(call: Call, options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plans of the two commands."""
    asked = ("--model", "alexnet", *options.split(), "--json")
    planned, dry = call("plan", *asked), call("run", *asked, "--dry-run")
    assert (planned.code, dry.code) == (0, 0), (planned.err, dry.err)
    return json.loads(planned.out), json.loads(dry.out)["plan"]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_options_give_the_same_plan(call: Call, on_scenario: ByName, options: str) -> None:
    on_scenario("four")
    planned, run = both(call, options)
    assert planned.pop("schema") == "gputopo.plan/1"
    run.pop("schema", None)
    assert planned == run


def test_so_they_do_with_the_gpus_that_are_visible(
    call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,1")
    planned, run = both(call, SPEED)
    assert set(planned["choice"]["gpus"]) == {1, 2, 3}
    assert planned["choice"] == run["choice"]


def test_the_plan_is_shown_in_two_lines_before_it_starts(
    call: Call, on_scenario: ByName, worker: ByName
) -> None:
    on_scenario("four")
    worker("works")
    asked = ("--model", "alexnet", *SPEED.split(), "--num-gpus", "2")
    plan = schema.decode(call("plan", *asked, "--json").out, Plan, origin="stdout")
    done = call("run", *asked)
    assert done.code == 0, done.err
    lines = plan_summary(plan)
    assert len(lines) == 2
    shown = " ".join((done.out + done.err).split())
    places = [shown.index(" ".join(line.split())) for line in lines]
    assert places == sorted(places)
