"""`gputopo run --repeats`, with a worker that only pretends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo import schema
from gputopo.repeats import Repeats
from gputopo.result import Result
from tests.cli.conftest import Call


def test_repeats_run_one_after_the_other_and_give_mean_and_spread(
    call: Call, without_gpu: None, worker: Callable[[str], None], tmp_path: Path
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


def test_a_repeat_that_fails_is_told_as_failed_and_the_others_go_on(
    call: Call, without_gpu: None, worker: Callable[[str], None]
) -> None:
    worker("killed")
    done = call("run", "--model", "alexnet", "--repeats", "2", "--json")
    repeats = schema.decode(done.out, Repeats, origin="stdout")
    assert done.code == repeats.exit_code == 137
    assert (repeats.complete, repeats.images_per_sec) == (0, None)
    assert [run.status for run in repeats.runs] == ["failed", "failed"]


@pytest.mark.parametrize("option", ["--checkpoints", "--export", "--tensorboard"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_repeats_that_would_write_to_one_folder_are_refused(
    call: Call,
    without_gpu: None,
    worker: Callable[[str], None],
    tmp_path: Path,
    option: str,
    dry: tuple[str, ...],
) -> None:
    worker("works")
    done = call("run", "--model", "alexnet", "--repeats", "2", option, tmp_path / "kept", *dry)
    assert done.code == 2
    assert option in done.err
    assert "--repeats" in done.err.splitlines()[1]
