"""`gputopo run` with the real core: slow devices; as its own process: signals."""

import os
import signal
import sys
from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.run.events import Step, read_events
from gputopo.values.run.result import Result
from tests.cli import trained

pytestmark = pytest.mark.tensorflow


def test_a_device_that_is_slowed_on_purpose_is_named_although_training_is_synchronous(tmp_path: Path) -> None:
    drilled = ("--num-batches", "24", "--drill", "slow-gpu=1:0.5")
    result = trained.result_of(tmp_path, "--model", "trivial", *drilled)
    slow = result.devices[1]
    assert slow.percent_of_best is not None
    assert slow.percent_of_best < 95
    assert slow.verdict is not None
    if result.host_load is not None and result.host_load.busy is not None:
        # Beside other programs 24 steps may decide nothing; what it looks like is said in any case.
        assert slow.verdict.word in ("slow", "cannot tell")
        assert "slower" in slow.verdict.says
        return
    assert [(anomaly.tower, anomaly.part) for anomaly in result.anomalies] == [(1, "compute")]
    assert slow.verdict.word == "slow"
    assert slow.anomaly is not None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_terminal_that_goes_away_ends_the_run_saved_and_reported(tmp_path: Path) -> None:
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    # Started in a folder that has packages of the same names as ours.
    elsewhere = tmp_path / "elsewhere"
    for name in ("launch", "probes", "tensorflow"):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    environment = {**os.environ, "GPUTOPO_ROOT": str(tmp_path / "root")}
    options = ("--model", "trivial", "--data-name", "cifar10", "--batch-size", "2", "--num-batches", "200000")
    folders = ("--output", str(tmp_path / "out"), "--checkpoints", str(tmp_path / "kept"))
    events = tmp_path / "out/events.jsonl"
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(elsewhere)
        os.execve(sys.executable, [sys.executable, "-m", "gputopo", "run", *options, *folders], environment)
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        while screen.read(4096) and not (events.exists() and b'"step":9,' in events.read_bytes()):
            pass
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    result = schema.decode((tmp_path / "out/result.json").read_bytes(), Result, origin="result.json")
    assert (result.status, result.exit_code) == ("interrupted", 129)
    assert set(result.ops_on) == {"/CPU:0", "/CPU:1"}
    assert set(result.variables_on) == {"/CPU:0"}
    (saved,) = result.checkpoints
    with events.open("rb") as lines:
        steps = [event for event in read_events(lines, origin="events") if isinstance(event, Step)]
    counted = sum(not step.warmup for step in steps)
    assert (result.steps, result.images) == (counted, 4 * counted)
    assert saved.steps == steps[-1].global_step
    assert Path(saved.path).is_file()
