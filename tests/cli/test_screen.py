"""`gputopo screen`: with a worker that only pretends."""

import re
from pathlib import Path

from gputopo.values import schema
from gputopo.values.run.events import RunStarted, read_events
from gputopo.values.run.plan import Plan
from gputopo.values.run.several_runs import Screen
from tests.cli.conftest import WITH_WORKER, ByName, Call, pretending
from tests.kit import commands

# Steps of 0.2 s, on GPU 1 of 0.25 s. {} is what it does first.
SLOW_ONE = """
import json, os, sys
has_gpu_1 = any(device["gpu"] == 1 for device in json.load(open(sys.argv[1]))["devices"])
{}
for step in range(1, 4):
    event = {{"event": "step", "time_s": 1.0, "step": step, "seconds": 0.25 if has_gpu_1 else 0.2}}
    event |= {{"images": 8, "loss": 1.0, "marks": []}}
    os.write(int(sys.argv[2]), json.dumps(event).encode() + b"\\n")
"""


def decoded(text: str | bytes) -> Screen:
    return schema.decode(text, Screen, origin="a screen")


def stored(folder: Path) -> Screen:
    return decoded((folder / "screen.json").read_bytes())


def test_each_gpu_runs_alone_in_alternating_order_then_several_and_plan_predicts_from_it(
    call: Call, on_scenario: ByName, worker: ByName, own_home: Path
) -> None:
    on_scenario("7gforce")
    worker("works")
    done = call("screen", "--model", "alexnet", "--gpus", "4-6", "--pairs", "--json")
    assert done.code == 0, done.err
    found = decoded(done.out)
    runs = [(run.kind, [device.number for device in run.devices]) for run in found.runs]
    assert [number for kind, (number, *_) in runs if kind == "alone"] == [4, 5, 6, 6, 5, 4, 4, 5, 6]
    several = [("independent", [4, 5, 6]), ("together", [4, 5, 6])]
    assert runs[9:] == [*several, ("pair", [4, 5]), ("pair", [4, 6]), ("pair", [5, 6])]
    assert [row.word for row in found.devices[:2]] == ["even"] * 2
    (file,) = (own_home / "runs").glob("*/screen.json")
    assert stored(file.parent) == found
    assert found.complete
    assert all((file.parent / run.folder / "result.json").is_file() for run in found.runs)
    with (file.parent / found.runs[10].folder / "events.jsonl").open("rb") as lines:
        started = next(read_events(lines, origin="events"))
    assert isinstance(started, RunStarted)
    models = [device.gpu_name for device in started.devices]
    assert models == ["GeForce GTX 1070", "GeForce GTX 1070", "GeForce GTX 1080"]
    speeds = [speed.images_per_sec for _, speed in sorted(started.known.speeds.items())]
    assert speeds[0] == speeds[1] < speeds[2], "each is judged by what its model should do"
    plan = schema.decode(call("plan", "--model", "alexnet", "--json").out, Plan, origin="stdout")
    assert plan.prediction is not None
    assert "measured here" in plan.prediction.single_gpu_source


def test_a_slow_gpu_fails_on_request_and_a_second_screen_is_compared_with_the_first(
    call: Call, on_scenario: ByName, worker: ByName
) -> None:
    on_scenario("four")
    worker(SLOW_ONE.format(""))
    asked = ("screen", "--model", "alexnet", "--gpus", "0,1", "--fail-on", "warning")
    done = call(*asked)
    assert done.code == 1, done.err
    assert "! slow 20%" in done.out
    assert "GPU 1 is 20% slower than GPU 0" in done.out
    second = decoded(call(*asked, "--json").out)
    assert second.last is not None
    assert [row.since is not None and row.slower for row in second.devices] == [False, False]


def test_a_gpu_that_fails_has_its_reason_and_the_others_are_reported_and_run_without_it(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("four")
    worker(SLOW_ONE.format("if has_gpu_1: sys.exit(1)"))
    done = call(
        "screen", "--model", "alexnet", "--gpus", "0-2", "--output", tmp_path / "out", "--fail-on", "error"
    )
    assert done.code == 1, done.err
    found = stored(tmp_path / "out")
    assert "GPU 1 could not be run alone: " in " ".join(done.out.split())
    assert [row.word for row in found.devices] == ["even", "cannot tell", "even"]
    alone = [run.devices[0].number for run in found.runs if run.kind == "alone"]
    assert [alone.count(number) for number in range(3)] == [3, 1, 3], "what failed is not run again"
    several = [run for run in found.runs if run.kind != "alone"]
    assert [([one.number for one in run.devices], run.failure) for run in several] == [([0, 2], None)] * 2


KILLS = "if 'alone-1-2' in sys.argv[1]: os.kill(os.getppid(), 9)"


def test_a_killed_screen_leaves_the_runs_until_then(tmp_path: Path) -> None:
    python = pretending(tmp_path, SLOW_ONE.format(KILLS))
    asked = ("screen", "--model", "alexnet", "--gpus", "0,1", "--output", str(tmp_path / "out"))
    done = commands.run("-c", WITH_WORKER, python, "tests.kit.command", "four", "--", *asked)
    assert done.returncode == -9
    found = stored(tmp_path / "out")
    assert (len(found.runs), found.complete) == (2, False)
    assert [row.rounds for row in found.devices] == [1, 1]


def test_without_gpus_cpu_devices_are_screened_as_is_stated(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
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


def test_a_refusal_suggests_only_options_that_screen_has(call: Call, without_gpu: None) -> None:
    known = set(re.findall(r"--[a-z][a-z-]*", call("screen", "--help-all").out))
    cases: list[tuple[str, str]] = [
        ("--from 7gforce", "--from"),
        ("--batch-size 0", "--batch-size"),
        ("--seconds 0", "--seconds"),
        ("--gpus 0", "--gpus"),
        ("--cpu --gpus 0-3", "--gpus"),
        ("--exclude 1", "--exclude"),
        ("--num 2", "--num"),
    ]
    for options, what in cases:
        done = call("screen", "--model", "alexnet", *options.split())
        assert (done.code, done.out) == (2, "")
        said, hint = done.err.splitlines()
        assert what in said
        assert set(re.findall(r"--[a-z][a-z-]*", hint)) <= known | {"--help"}
