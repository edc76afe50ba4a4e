"""What is shown of runs while they go, where a disk is full: the text is lost, not the training."""

from pathlib import Path
from typing import NamedTuple

import pytest

from gputopo.values import schema
from gputopo.values.run.events import RunFinished, read_events
from gputopo.values.run.result import Result
from tests.kit import commands

FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")

COMMAND = """
import sys
from gputopo.cli import run_command
from gputopo.cli.run import training
from tests.kit_workers import misbehave
training.worker_command = lambda spec, fd: (
    sys.executable, "-I", misbehave.__file__, "works", str(spec), str(fd))
sys.exit(run_command(["run", "--model", "alexnet", *sys.argv[1:]]))
"""
UNWRITTEN = [
    "gputopo: cannot write the output: No space left on device",
    "  write it where there is free space",
]


class Shown(NamedTuple):
    """What of a run could be seen; a stream that led to a full disk is empty."""

    code: int
    out: str
    err: list[str]


def run(tmp_path: Path, *options: object, full: str) -> Shown:
    """Run the command with a full disk behind `full`: stdout, stderr or both."""
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    paths = {"GPUTOPO_ROOT": tmp_path / "root", "GPUTOPO_HOME": tmp_path / "home"}
    with FULL.open("w") as disk:
        done = commands.run(
            *("-c", COMMAND, *map(str, options)),
            out=None if full == "stderr" else disk.fileno(),
            err=None if full == "stdout" else disk.fileno(),
            **{name: str(path) for name, path in paths.items()},
        )
    return Shown(done.returncode, done.stdout, done.stderr.splitlines())


def assert_ran_to_its_end(folder: Path) -> None:
    result = schema.decode((folder / "result.json").read_bytes(), Result, origin="file")
    assert (result.status, result.steps) == ("complete", 3)
    with (folder / "events.jsonl").open("rb") as lines:
        assert isinstance(list(read_events(lines, origin="file"))[-1], RunFinished)


@pytest.mark.parametrize("printed", ["--format=table", "--json", "--tf-cnn-log"])
def test_output_on_a_full_disk_is_reported_after_the_run_has_ended_and_is_kept(
    tmp_path: Path, printed: str
) -> None:
    shown = run(tmp_path, printed, "--output", tmp_path / "out", full="stdout")
    assert shown.code == 2
    assert shown.err[-3:] == [f"Run folder: {tmp_path / 'out'}", *UNWRITTEN]
    assert_ran_to_its_end(tmp_path / "out")


def test_log_lines_on_a_full_disk_do_not_keep_the_next_repeat_from_running(tmp_path: Path) -> None:
    options = ("--tf-cnn-log", "--repeats", "2", "--output", tmp_path / "out")
    shown = run(tmp_path, *options, full="stdout")
    assert shown.code == 2
    assert shown.err[-2:] == UNWRITTEN
    for number in ("1", "2"):
        assert_ran_to_its_end(tmp_path / "out" / number)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format=table",), "3 counted"),
        (("--json",), '"status": "complete"'),
        (("--tf-cnn-log",), "total images/sec"),
        (("--repeats", "2"), "over 2 of 2 repeats"),
    ],
)
def test_progress_on_a_full_disk_costs_nothing_but_the_progress(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    shown = run(tmp_path, *options, "--output", tmp_path / "out", full="stderr")
    assert shown.code == 0
    assert said in shown.out
    for folder in (tmp_path / "out").glob("*") if "--repeats" in options else (tmp_path / "out",):
        if folder.is_dir():
            assert_ran_to_its_end(folder)


@pytest.mark.parametrize("printed", ["--format=table", "--tf-cnn-log"])
def test_a_full_disk_behind_both_leaves_the_result_and_the_exit_code(tmp_path: Path, printed: str) -> None:
    assert run(tmp_path, printed, "--output", tmp_path / "out", full="both").code == 2
    assert_ran_to_its_end(tmp_path / "out")
