"""What is shown of runs while they go, where a disk is full: the text is lost, not the training."""

from pathlib import Path
from typing import NamedTuple

import pytest

from gputopo.launch import DryRun
from gputopo.values import schema
from gputopo.values.run.events import RunFinished, read_events
from gputopo.values.run.result import Result
from tests.cli.conftest import WITH_WORKER, ByName, Call, pretending
from tests.kit import commands

FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")

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
            *("-c", WITH_WORKER, pretending(tmp_path, "works"), "gputopo"),
            *("run", "--model", "alexnet", *map(str, options)),
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


def test_output_on_a_full_disk_is_reported_after_the_run_has_ended_and_is_kept(tmp_path: Path) -> None:
    shown = run(tmp_path, "--json", "--output", tmp_path / "out", full="stdout")
    assert shown.code == 3
    assert shown.err[-3:] == [f"Run folder: {tmp_path / 'out'}", *UNWRITTEN]
    assert_ran_to_its_end(tmp_path / "out")


def test_log_lines_on_a_full_disk_are_reported_after_the_run_has_ended(tmp_path: Path) -> None:
    shown = run(tmp_path, "--tf-cnn-log", "--output", tmp_path / "out", full="stdout")
    assert (shown.code, shown.err[-2:]) == (3, UNWRITTEN)
    assert_ran_to_its_end(tmp_path / "out")


def test_a_dry_run_shows_plan_environment_and_command_and_starts_nothing(
    call: Call, on_scenario: ByName, own_home: Path
) -> None:
    on_scenario("7gforce")
    options = ("run", "--model", "alexnet", "--num-gpus", "2", "--prefer-pix", "--dry-run")
    table = call(*options)
    assert table.code == 0
    for words in (
        "GPUs 0,1, replicated nccl: ",
        "CUDA_VISIBLE_DEVICES=GPU-",
        "-m gputopo.launch.train.worker",
        "\nWhy\n",
    ):
        assert words in table.out
    dry = schema.decode(call(*options, "--json").out, DryRun, origin="stdout")
    assert dry.plan.choice.gpus == (0, 1)
    assert dry.spec is not None
    assert dry.plan.prediction is not None
    choice = dry.plan.choice
    assert (dry.spec.variable_update, dry.spec.all_reduce) == (choice.variable_update, choice.all_reduce)
    assert dry.spec.exchange.ps_spread == (choice.ps_device == "gpu:spread")
    assert dry.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "gputopo.launch.train.worker" in dry.command
    assert not own_home.exists()


def test_metrics_are_written_to_a_file_that_ends_no_run_if_it_cannot_be_written(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    file = tmp_path / "new" / "folder" / "run.prom"
    assert call("run", "--model", "alexnet", "--prometheus", file).code == 0
    assert "\ngputopo_run_steps_total 3\n" in file.read_text()
    assert 'gputopo_run_status{state="complete"} 1' in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["run.prom"]
    done = call("run", "--model", "alexnet", "--prometheus", file / "run.prom")
    assert (done.code, done.err.count(f"cannot make {file}: ")) == (0, 1)
    refused = call("run", "--model", "alexnet", "--prometheus", "")
    assert (refused.code, "--prometheus" in refused.err.splitlines()[0]) == (2, True)
