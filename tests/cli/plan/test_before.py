"""What earlier runs of this machine change in the next plan, and `--no-history`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputopo.cli.source import machine_from
from gputopo.launch.supervise.run_folder import RunFolder, write_result
from gputopo.runs import history
from gputopo.topology.identities import without_identities
from gputopo.values import schema
from gputopo.values.run.plan import Plan
from gputopo.values.run.result import Result
from tests.cli.conftest import Call
from tests.runs.boxes import run

ASKED = ("plan", "--model", "alexnet", "--num-gpus", 4, "--json")


@pytest.fixture
def ran(own_home: Path, on_scenario: Callable[[str], None]) -> Callable[..., None]:
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


@pytest.mark.parametrize("within", ["runs/{}", "runs/20261123-120000-vgg16-1/autotune/1-{}"])
def test_runs_of_this_machine_change_its_next_plan(call: Call, ran: Callable[..., None], within: str) -> None:
    """Also the short ones of an autotune, and the same with `run`."""
    before = planned(call)
    ran("vgg16", "resnet152", within=within, links=0.7, variables=1.4)
    after = planned(call)
    assert before.prediction is not None
    assert after.prediction is not None
    assert before.prediction.learned is None
    learned = after.prediction.learned
    assert learned is not None
    assert (learned.runs, learned.jobs) == (2, 2)
    assert learned.links < 1 < learned.variables
    assert (after.choice.images_per_sec or 0) < (before.choice.images_per_sec or 0)
    assert "time marks of runs on several" not in after.prediction.single_gpu_source
    other = call("plan", "--model", "vgg16", "--batch-size", 64, "--num-gpus", 4)
    assert "time marks of runs on several Tesla P100" in " ".join(other.out.split())
    dry = call("run", *ASKED[1:], "--dry-run")
    assert f'"links": {learned.links}' in dry.out
    assert "Own runs    2 runs of 2 jobs on several GPUs: links reach" in call(*ASKED[:-1]).out


def test_no_history_leaves_out_earlier_runs(call: Call, ran: Callable[..., None]) -> None:
    """Saved bandwidth, too: see the tests of that command."""
    before = planned(call)
    ran("vgg16", "resnet152", links=0.7)
    assert planned(call, "--no-history") == before
    assert planned(call) != before
    assert '"learned": null' in call("run", *ASKED[1:], "--dry-run", "--no-history").out


def test_runs_of_another_machine_and_what_cannot_be_read_do_not_count(
    call: Call, ran: Callable[..., None], own_home: Path, on_scenario: Callable[[str], None]
) -> None:
    before = planned(call)
    ran("vgg16", "resnet152")
    (own_home / "runs/0/machine.json").write_text("{ cut off")
    found = planned(call).prediction
    assert found is not None
    assert found.learned is not None
    assert (found.learned.runs, found.learned.links) == (1, 1.0)
    (own_home / "runs/1/machine.json").unlink()
    assert planned(call) == before
    assert history.fingerprint(machine_from(())) is not None
