"""`gputopo run --repeats`, with a worker that only pretends."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.jobs import run
from gputopo.launch.supervise import run_folder as runs
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats
from gputopo.values.run.spec import RunSpec
from tests.cli.conftest import ByName, Call


def test_repeats_run_one_after_the_other_and_give_mean_and_spread(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--repeats", "3", "--output", tmp_path / "out")
    assert done.code == 0
    assert "over 3 of 3 repeats" in done.out
    assert [line for line in done.err.splitlines() if line.startswith("repeat ")] == [
        "repeat 1 of 3", "repeat 2 of 3", "repeat 3 of 3"
    ]  # fmt: skip
    kept = schema.decode((tmp_path / "out/repeats.json").read_bytes(), Repeats, origin="file")
    assert (kept.status, kept.complete, len(kept.runs)) == ("complete", 3, 3)
    for number in ("1", "2", "3"):
        result = (tmp_path / "out" / number / "result.json").read_bytes()
        assert schema.decode(result, Result, origin="file").status == "complete"


def test_a_repeat_that_fails_is_reported_as_failed_and_the_others_go_on(
    call: Call, without_gpu: None, worker: ByName
) -> None:
    worker("killed")
    done = call("run", "--model", "alexnet", "--repeats", "2", "--json")
    repeats = schema.decode(done.out, Repeats, origin="stdout")
    assert done.code == repeats.exit_code == 137
    assert (repeats.complete, repeats.images_per_sec) == (0, None)
    assert [run.status for run in repeats.runs] == ["failed", "failed"]


def test_repeats_that_would_write_to_one_folder_are_refused(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    options = [("--checkpoints", ()), ("--export", ()), ("--tensorboard", ()), ("--export", ("--dry-run",))]
    for option, dry in options:
        done = call("run", "--model", "alexnet", "--repeats", "2", option, tmp_path / "kept", *dry)
        assert (done.code, option in done.err, "--repeats" in done.err.splitlines()[1]) == (2, True, True)


def test_repeats_are_shown_where_their_file_cannot_be_written(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    out = tmp_path / "out"
    (out / "repeats.json").mkdir(parents=True)
    done = call("run", "--model", "alexnet", "--repeats", "2", "--output", out)
    assert done.code == 3
    assert "over 2 of 2 repeats" in done.out
    reported = done.err.splitlines()
    place = next(number for number, line in enumerate(reported) if "cannot write" in line)
    assert str(out / "repeats.json") in reported[place]
    assert "--output" in reported[place + 1]


@pytest.mark.parametrize(
    "error", [InputError("no room for a folder", "free some space"), KeyboardInterrupt()]
)
def test_repeats_that_were_taken_are_shown_and_kept_where_the_next_cannot_begin(
    call: Call,
    without_gpu: None,
    worker: ByName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    worker("works")
    create = runs.create_run_folder

    def once(output: Path | None, **kept: Any) -> runs.RunFolder:
        if output == tmp_path / "out" / "2":
            raise error
        return create(output, **kept)

    monkeypatch.setattr(runs, "create", once)
    done = call("run", "--model", "alexnet", "--repeats", "3", "--output", tmp_path / "out")
    interrupted = isinstance(error, KeyboardInterrupt)
    assert done.code == (130 if interrupted else 2)
    assert "over 1 of 3 repeats" in done.out
    assert ("interrupted" if interrupted else "no room for a folder") in done.err
    kept = schema.decode((tmp_path / "out/repeats.json").read_bytes(), Repeats, origin="file")
    assert (kept.status, kept.exit_code) == ("interrupted" if interrupted else "failed", done.code)
    assert (kept.complete, len(kept.runs)) == (1, 1)


@pytest.mark.parametrize(
    ("number", "code", "place"),
    [(signal.SIGINT, 130, "result"), (signal.SIGTERM, 143, "next"), (signal.SIGHUP, 129, "next")],
)
def test_repeats_that_were_taken_are_shown_and_kept_when_a_signal_comes_between_two(
    call: Call,
    without_gpu: None,
    worker: ByName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    number: signal.Signals,
    code: int,
) -> None:
    worker("works")
    create, save = runs.create_run_folder, runs.save_result

    def created(output: Path | None, **kept: Any) -> runs.RunFolder:
        if place == "next" and output == tmp_path / "out" / "2":
            os.kill(os.getpid(), number)
        return create(output, **kept)

    def saved(*args: Any, **kept: Any) -> Result:
        if place == "result":
            os.kill(os.getpid(), number)
        return save(*args, **kept)

    monkeypatch.setattr(runs, "create", created)
    monkeypatch.setattr(runs, "save_result", saved)
    done = call("run", "--model", "alexnet", "--repeats", "3", "--output", tmp_path / "out")
    assert done.code == code
    assert "over 1 of 3 repeats" in done.out
    assert done.err.splitlines()[-1] == (
        "gputopo: interrupted" if number == signal.SIGINT else f"gputopo: stopped by {number.name}"
    )
    kept = schema.decode((tmp_path / "out/repeats.json").read_bytes(), Repeats, origin="file")
    assert (kept.status, kept.exit_code, kept.complete) == ("interrupted", code, 1)
    result = (tmp_path / "out/1/result.json").read_bytes()
    assert schema.decode(result, Result, origin="file").status == "complete"
    assert not (tmp_path / "out/2").exists()


def test_a_ctrl_c_behind_the_end_of_training_has_nothing_left_to_end(
    call: Call, without_gpu: None, worker: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker("works")
    save = runs.save_result

    def saved(*args: Any, **kept: Any) -> Result:
        os.kill(os.getpid(), signal.SIGINT)
        return save(*args, **kept)

    monkeypatch.setattr(runs, "save_result", saved)
    done = call("run", "--model", "alexnet")
    assert done.code == 0
    assert "images/sec" in done.out


def test_a_signal_while_a_batch_that_fits_is_looked_for_ends_the_repeats(
    call: Call,
    without_gpu: None,
    worker: ByName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker("needs_a_batch_of_one")
    trial_of = run.trial_of

    def trial(spec: RunSpec, batch_size: int) -> RunSpec:
        os.kill(os.getpid(), signal.SIGINT)
        return trial_of(spec, batch_size)

    monkeypatch.setattr(run, "trial_of", trial)
    options = ("--batch-size", "4", "--repeats", "3", "--output", tmp_path / "out")
    done = call("run", "--model", "alexnet", *options)
    assert done.code == 3
    assert "repeat 2 of 3" not in done.err
    kept = schema.decode((tmp_path / "out/repeats.json").read_bytes(), Repeats, origin="file")
    assert [run.failure.kind for run in kept.runs if run.failure] == ["out_of_memory"]
