"""`gputopo run` from the command line, with a worker that only pretends; see tests/launch for the rest."""

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from gputopo.launch import machine_from
from gputopo.runs import BoxHistory, Past
from gputopo.values import schema
from gputopo.values.run.events import Anomaly, RunStarted, Sample, read_events
from gputopo.values.run.result import Result
from tests.cli.conftest import ByName, Call


def test_a_run_without_a_gpu_reports_it_first_and_keeps_its_result(
    call: Call, without_gpu: None, worker: ByName, own_home: Path
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--prefer-pix")
    assert done.code == 0
    assert done.err.splitlines()[0] == "No NVIDIA device: training on 2 logical CPU devices."
    assert "CPU" in done.out.splitlines()[0]
    assert "No NVIDIA device: training on 2 logical CPU devices." in done.out
    (folder,) = (own_home / "runs").iterdir()
    result = schema.decode((folder / "result.json").read_bytes(), Result, origin="result")
    assert (result.status, result.steps, result.backend) == ("complete", 3, "cpu")
    assert {path.name for path in folder.iterdir()} == {
        "spec.json", "plan.json", "machine.json", "events.jsonl", "worker.log", "result.json"
    }  # fmt: skip
    (stored,) = BoxHistory(own_home).past()
    assert (stored.result, stored.folder) == (result, str(folder))


def test_the_speed_of_a_gpu_alone_is_that_of_its_latest_run_in_the_history(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("four")
    worker("works")
    job = ("run", "--model", "alexnet", "--batch-size", "4")
    assert call(*job, "--gpus", "1", "--output", tmp_path / "alone").code == 0
    both = call(*job, "--gpus", "0,1", "--json")
    result = schema.decode(both.out, Result, origin="stdout")
    assert [row.alone_images_per_sec for row in result.devices] == [None, pytest.approx(40)]
    assert result.alone == str(tmp_path / "alone")


def test_a_history_that_is_damaged_stops_no_run_and_hides_none(
    call: Call, without_gpu: None, worker: ByName, own_home: Path
) -> None:
    worker("works")
    own_home.mkdir()
    BoxHistory(own_home).path.write_bytes(b"not a history, and long enough to be read as one" * 20)
    done = call("run", "--model", "alexnet")
    assert (done.code, done.err.count("history.sqlite")) == (0, 2)
    assert "saved bandwidths are lost" in done.err
    assert "1 run on" in call("report", "--history").out


def test_a_rehearsal_is_labelled_in_every_output_and_not_in_the_history_of_the_box(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    options = ("run", "--model", "alexnet", "--from", "7gforce", "--num-gpus", "2", "--prefer-pix")
    says = "Rehearsal of 7gforce (GPUs 0, 1) on 2 CPU devices: the speeds are of this CPU."
    table = call(*options, "--output", tmp_path / "out")
    assert table.err.splitlines()[0] == says
    assert "rehearsal of 7gforce" in " ".join(table.out.partition(says)[0].split())  # the title, folded
    assert says in table.out
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["rehearsal_of"] == "7gforce"
    assert result["prediction"]["verdict"] == "not compared"
    assert "predicted for 7gforce, measured on CPU devices (a rehearsal)" in result["prediction"]["says"]
    assert says in call(*options, "--dry-run").out
    assert json.loads((tmp_path / "out/spec.json").read_text())["says"] == [says]
    assert "has no runs of this machine" in call("report", "--history").err


def test_lines_show_every_so_many_steps(call: Call, without_gpu: None, worker: ByName) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--tf-cnn-log", "--display_every=2")
    assert [int(line.split()[0]) for line in done.out.splitlines() if "(jitter" in line] == [1, 2]
    shown = [line for line in done.err.splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in shown] == ["step 1", "step 2"]


def test_a_run_on_gpus_is_predicted_sampled_and_compared_and_its_folder_has_no_uuid(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("7gforce")
    worker("works")
    done = call("run", "--model", "alexnet", "--num-gpus", "2", "--output", tmp_path / "out")
    assert done.code == 0
    lines = done.err.splitlines()
    assert lines[0] == "Training on 2 GPUs: 0, 1."
    assert lines[1].startswith("Predicted for GPUs 0,1, ")
    assert lines[2].startswith(("Limited by: ", "Waits longest for: "))
    table = " ".join(done.out.split())
    assert "than believed: " in table
    assert "ms of a step, predicted / measured: compute " in table
    stored = json.loads((tmp_path / "out/result.json").read_text())["prediction"]
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert stored["verdict"] == "slower"  # the worker has 40 images/sec
    assert stored["images_per_sec"] == plan["choice"]["images_per_sec"]
    with (tmp_path / "out/events.jsonl").open("rb") as file:
        started, *events = read_events(file, origin="events")
    assert isinstance(started, RunStarted)
    assert [device.device for device in started.devices] == ["/GPU:0", "/GPU:1"]
    sample = next(event for event in events if isinstance(event, Sample))
    assert [gpu.gpu for gpu in sample.gpus] == [0, 1]
    assert sample.gpus[0].memory_mhz is not None
    texts = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert not [text for text in texts if "GPU-00000007" in text]


def test_an_anomaly_is_named_and_fails_the_run_only_where_that_was_asked_for(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("7gforce")  # a slow CPU device may be explained by what else this machine does
    worker("slow_tower")
    run = ("run", "--model", "alexnet", "--num-gpus", "2")
    plain = call(*run, "--drill", "slow-gpu=1:0.5", "--output", tmp_path / "a")
    assert plain.code == 0
    assert "GPU 1" in plain.out
    assert "DRILL (a fault injected on purpose): GPU 1" in plain.out
    with (tmp_path / "a/events.jsonl").open("rb") as lines:
        assert any(isinstance(event, Anomaly) for event in read_events(lines, origin="events"))
    assert call(*run, "--fail-on", "warning").code == 1
    assert call(*run, "--fail-on", "error").code == 0


def test_where_another_process_claims_a_chosen_gpu_first_it_is_planned_again(
    call: Call, on_scenario: ByName, worker: ByName, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four")
    worker("works")
    past = BoxHistory.past
    claims: list[IO[str]] = []

    def claims_meanwhile(history: BoxHistory, *asked: Any, **how: Any) -> Iterator[Past]:
        if not claims:  # it plans, having seen who has claimed GPUs
            (own_home / "claims").mkdir(parents=True)
            claims.append((own_home / "claims" / f"{machine_from(()).gpus[0].uuid}.lock").open("w"))
            fcntl.flock(claims[0], fcntl.LOCK_EX)
        return past(history, *asked, **how)

    monkeypatch.setattr(BoxHistory, "past", claims_meanwhile)
    done = call("run", "--model", "alexnet", "--num-gpus", "1", "--json")
    assert done.code == 0, done.err
    result = schema.decode(done.out, Result, origin="stdout")
    assert [row.device.gpu for row in result.devices] == [1]
    claims[0].close()
