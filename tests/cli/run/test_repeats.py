"""`gputopo run --repeats`, with a worker that only pretends."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.runs import BoxHistory
from gputopo.values import schema
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats
from tests.cli.conftest import ByName, Call

pytestmark = pytest.mark.usefixtures("without_gpu")


def test_repeats_run_one_after_the_other_and_give_mean_and_spread(
    call: Call, worker: ByName, tmp_path: Path
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


def test_a_repeat_that_fails_is_reported_as_failed_and_the_others_go_on(call: Call, worker: ByName) -> None:
    worker("killed")
    done = call("run", "--model", "alexnet", "--repeats", "2", "--json")
    repeats = schema.decode(done.out, Repeats, origin="stdout")
    assert done.code == repeats.exit_code == 137
    assert (repeats.complete, repeats.images_per_sec) == (0, None)
    assert [run.status for run in repeats.runs] == ["failed", "failed"]


def kept_in(folder: Path) -> Repeats:
    return schema.decode((folder / "repeats.json").read_bytes(), Repeats, origin="file")


@pytest.fixture
def signal_after_a_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[signal.Signals], None]:
    """Sends this process a signal when a run has ended and is added to the history."""

    def send(number: signal.Signals) -> None:
        add = BoxHistory.add

        def signalled(history: BoxHistory, folder: Path) -> str | None:
            os.kill(os.getpid(), number)
            return add(history, folder)

        monkeypatch.setattr(BoxHistory, "add", signalled)

    return send


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_repeats_that_were_taken_are_shown_and_kept_when_a_signal_comes_between_two(
    call: Call,
    worker: ByName,
    signal_after_a_run: Callable[[signal.Signals], None],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
) -> None:
    worker("works")
    signal_after_a_run(number)
    done = call("run", "--model", "alexnet", "--repeats", "3", "--output", tmp_path / "out")
    assert done.code == code
    assert "over 1 of 3 repeats" in done.out
    assert done.err.splitlines()[-1] == (
        "gputopo: interrupted" if number == signal.SIGINT else f"gputopo: stopped by {number.name}"
    )
    kept = kept_in(tmp_path / "out")
    assert (kept.status, kept.exit_code, kept.complete) == ("interrupted", code, 1)
    result = (tmp_path / "out/1/result.json").read_bytes()
    assert schema.decode(result, Result, origin="file").status == "complete"
    assert not (tmp_path / "out/2").exists()
