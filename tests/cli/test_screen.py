"""`gputopo screen`: with a worker that only pretends, and once with the real core."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gputopo.cli import run_command
from gputopo.launch.jobs import run, screen_order
from gputopo.values import schema
from gputopo.values.run.events import RunStarted, read_events
from gputopo.values.run.plan import Plan
from gputopo.values.run.several_runs import Screen
from tests.cli.conftest import ByName, Call
from tests.cli.trained import without_a_gpu

# Steps of 0.2 s, on GPU 1 of 0.25 s.
SLOW_ONE = """
import json, os, sys
slow = any(device["gpu"] == 1 for device in json.load(open(sys.argv[1]))["devices"])
for step in range(1, 4):
    event = {"event": "step", "time_s": 1.0, "step": step, "seconds": 0.25 if slow else 0.2, "images": 8}
    os.write(int(sys.argv[2]), json.dumps({**event, "loss": 1.0, "marks": []}).encode() + b"\\n")
"""


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each device run alone once, where rounds are not what it is about."""
    monkeypatch.setattr(screen_order, "WHOLE", (screen_order.WHOLE[0], screen_order.WHOLE[-1]))


def stored(folder: Path) -> Screen:
    return schema.decode((folder / "screen.json").read_bytes(), Screen, origin="screen.json")


def test_each_gpu_runs_alone_in_alternating_order_then_all_at_once_and_plan_predicts_from_it(
    call: Call, on_scenario: ByName, worker: ByName, own_home: Path
) -> None:
    on_scenario("four")
    worker("works")
    done = call("screen", "--model", "alexnet", "--json")
    assert done.code == 0, done.err
    found = schema.decode(done.out, Screen, origin="stdout")
    alone = [run.devices[0].number for run in found.runs if run.kind == "alone"]
    assert alone == [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3]
    assert [(run.kind, len(run.devices)) for run in found.runs[12:]] == [("independent", 4), ("together", 4)]
    assert [row.word for row in found.devices] == ["even"] * 4
    (file,) = (own_home / "runs").glob("*/screen.json")
    assert stored(file.parent) == found
    assert found.complete
    assert all((file.parent / run.folder / "result.json").is_file() for run in found.runs)
    plan = schema.decode(call("plan", "--model", "alexnet", "--json").out, Plan, origin="stdout")
    assert plan.prediction is not None
    assert "measured here" in call("plan", "--model", "alexnet").out


def test_pairs_run_in_the_mode_of_two(
    call: Call, on_scenario: ByName, worker: ByName, one_round: None
) -> None:
    on_scenario("four")
    worker("works")
    done = call("screen", "--model", "alexnet", "--exclude", "3", "--pairs", "--json")
    found = schema.decode(done.out, Screen, origin="stdout")
    pairs = [[one.number for one in run.devices] for run in found.runs if run.kind == "pair"]
    assert pairs == [[0, 1], [0, 2], [1, 2]]


def test_gpus_of_several_models_are_compared_by_what_each_should_do(
    call: Call,
    on_scenario: ByName,
    worker: ByName,
    one_round: None,
    tmp_path: Path,
) -> None:
    on_scenario("7gforce")
    worker("works")
    folder = tmp_path / "screen"
    assert call("screen", "--model", "alexnet", "--gpus", "5,6", "--output", str(folder)).code == 0
    (events,) = folder.glob("screen/together-*/events.jsonl")
    with events.open("rb") as lines:
        started = next(read_events(lines, origin="events"))
    assert isinstance(started, RunStarted)
    speeds = [started.known.speeds[tower].images_per_sec for tower in (0, 1)]
    names = [device.gpu_name for device in started.devices]
    assert (speeds[0] < speeds[1]) == (names[0] == "GeForce GTX 1070")


def test_a_second_screen_is_compared_with_the_first(
    call: Call, on_scenario: ByName, worker: ByName, one_round: None
) -> None:
    on_scenario("four")
    worker("works")
    for _ in range(2):
        done = call("screen", "--model", "alexnet", "--json", "--gpus", "0,1")
    found = schema.decode(done.out, Screen, origin="stdout")
    assert found.last is not None
    assert [row.since is not None and row.slower for row in found.devices] == [False, False]


def test_a_slow_gpu_is_named_and_fails_on_request(
    call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretends(spec: Path, events_fd: int) -> Sequence[str]:
        return (sys.executable, "-IS", "-c", SLOW_ONE, str(spec), str(events_fd))

    on_scenario("four")
    monkeypatch.setattr(run, "worker_command", pretends)
    done = call("screen", "--model", "alexnet", "--gpus", "0,1", "--fail-on", "warning")
    assert done.code == 1, done.err
    assert "! slow 20%" in done.out
    assert "GPU 1 is 20% slower than GPU 0" in done.out


# GPU 1 fails, alone and with others.
FAILS_ON_ONE = """
import json, os, sys
if any(device["gpu"] == 1 for device in json.load(open(sys.argv[1]))["devices"]):
    sys.exit(1)
""" + SLOW_ONE.partition("sys\n")[2]


def test_a_gpu_that_fails_has_its_reason_and_the_others_are_reported_and_run_without_it(
    call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pretends(spec: Path, events_fd: int) -> Sequence[str]:
        return (sys.executable, "-IS", "-c", FAILS_ON_ONE, str(spec), str(events_fd))

    on_scenario("four")
    monkeypatch.setattr(run, "worker_command", pretends)
    done = call("screen", "--model", "alexnet", "--gpus", "0-2", "--output", tmp_path / "out")
    assert done.code == 0, done.err
    found = stored(tmp_path / "out")
    assert "GPU 1 could not be run alone: " in " ".join(done.out.split())
    assert [row.word for row in found.devices] == ["even", "cannot tell", "even"]
    alone = [run.devices[0].number for run in found.runs if run.kind == "alone"]
    assert [alone.count(number) for number in range(3)] == [3, 1, 3], "what failed is not run again"
    several = [run for run in found.runs if run.kind != "alone"]
    assert [([one.number for one in run.devices], run.failure) for run in several] == [([0, 2], None)] * 2
    monkeypatch.setattr(screen_order, "WHOLE", screen_order.WHOLE[:1])
    assert call("screen", "--model", "alexnet", "--gpus", "0,1", "--fail-on", "error").code == 1


def test_a_killed_screen_leaves_the_runs_until_then(
    call: Call,
    on_scenario: ByName,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    class KilledError(BaseException):
        pass

    def killed(spec: Path, events_fd: int) -> Sequence[str]:
        if spec.parent.name == "alone-1-2":
            raise KilledError
        return (sys.executable, "-IS", "-c", SLOW_ONE, str(spec), str(events_fd))

    on_scenario("four")
    monkeypatch.setattr(run, "worker_command", killed)
    with pytest.raises(KilledError):
        call("screen", "--model", "alexnet", "--gpus", "0,1", "--output", tmp_path / "out")
    found = stored(tmp_path / "out")
    assert (len(found.runs), found.complete) == (2, False)
    assert [row.rounds for row in found.devices] == [1, 1]


def test_without_gpus_cpu_devices_are_screened_as_is_stated(
    call: Call, without_gpu: None, worker: ByName, one_round: None, tmp_path: Path
) -> None:
    worker("works")
    done = call("screen", "--model", "alexnet", "--output", tmp_path / "out")
    assert done.code == 0, done.err
    assert "No NVIDIA device: 2 logical CPU devices" in done.out
    assert "screen round 1: CPU device 0 alone" in done.err
    assert len(stored(tmp_path / "out").devices) == 2
    again = call("screen", "--model", "alexnet", "--output", tmp_path / "out")
    assert (again.code, len(again.err.splitlines())) == (2, 2)


def test_where_nothing_could_be_run_the_cause_and_the_logs_are_named(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("traceback")
    done = call("screen", "--model", "alexnet", "--output", tmp_path / "out")
    assert done.code == 3
    what, hint = done.err.splitlines()[-2:]
    assert what.startswith("gputopo: no device could be run: ")
    assert hint.startswith("  see the logs of the runs in ")
    assert all(run.failure for run in stored(tmp_path / "out").runs)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--from", "7gforce"), "--from"),
        (("--gpus", "0"), "--gpus"),
        (("--batch-size", "0"), "--batch-size"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_what_cannot_be_screened_is_refused_in_two_lines(
    call: Call, without_gpu: None, worker: ByName, options: tuple[str, ...], what: str
) -> None:
    worker("works")
    done = call("screen", "--model", "alexnet", *options)
    assert (done.code, len(done.err.splitlines())) == (2, 2)
    assert what in done.err.splitlines()[0]


@pytest.mark.parametrize(
    "options", [("--gpus", "0"), ("--cpu", "--gpus", "0-3"), ("--exclude", "1"), ("--num", "2")]
)
def test_a_refusal_suggests_only_options_that_screen_has(
    options: tuple[str, ...], call: Call, without_gpu: None, worker: ByName
) -> None:
    worker("works")
    _, hint = call("screen", "--model", "alexnet", *options).err.splitlines()
    known = call("screen", "--help-all").out
    assert set(re.findall(r"--[a-z][a-z-]*", hint)) - {"--help"} <= set(re.findall(r"--[a-z][a-z-]*", known))


@pytest.mark.tensorflow
def test_on_logical_cpu_devices_each_is_really_trained(tmp_path: Path) -> None:
    with without_a_gpu(tmp_path) as patch:
        patch.setattr(screen_order, "WHOLE", (screen_order.WHOLE[0], screen_order.WHOLE[-1]))
        options = ("--cpu", "--model", "lenet", "--num-batches", "3", "--batch-size", "2")
        assert run_command(["screen", *options, "--output", "out"]) == 0
    found = stored(tmp_path / "out")
    assert found.complete
    assert [row.rounds for row in found.devices] == [1, 1]
    assert all(run.failure is None and run.images_per_sec for run in found.runs)
