"""The launcher and its worker: events as they come, and nothing that stays behind."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from gputopo.runs import summarise
from gputopo.values.run.events import (
    Anomaly,
    GpuSample,
    Noticed,
    RunFinished,
    RunStarted,
    Sample,
    Step,
)
from tests.kit import commands
from tests.launch.jobs.supervised import Run
from tests.launch.specs import cpu_spec


def test_a_worker_that_works_ends_in_a_complete_run_whose_events_are_in_the_file_as_they_come(
    run: Run,
) -> None:
    seen: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    run.on_step = lambda: seen.append(sum(isinstance(event, Step) for event in run.written()))
    outcome = run("works")
    assert (seen, signal.getsignal(signal.SIGTERM)) == ([1, 2, 3], before)
    assert outcome.exit_code == 0
    kinds = [type(event) for event in outcome.events]
    assert kinds == [RunStarted, Step, Step, Step, RunFinished]
    assert run.written() == list(outcome.events)
    result = summarise(run.written())
    assert (result.status, result.steps, result.says) == ("complete", 3, cpu_spec().says)


def test_a_slow_tower_is_an_anomaly_among_the_events(run: Run) -> None:
    outcome = run("slow_tower")
    assert outcome.exit_code == 0
    (anomaly,) = (event for event in outcome.events if isinstance(event, Anomaly))
    assert (anomaly.tower, anomaly.part) == (1, "compute")
    assert anomaly in run.written()


def test_a_flood_on_stderr_blocks_nobody_and_its_end_is_stored(run: Run) -> None:
    outcome = run("floods_stderr")
    assert outcome.exit_code == 0
    assert run.folder.log.stat().st_size == 64 * 65536 + len("the last line\nand one on stdout")


def test_what_a_worker_leaves_behind_in_its_group_is_killed_and_reaped(run: Run) -> None:
    outcome = run("leaves_a_grandchild")
    grandchild = int(run.folder.log.read_text())
    assert outcome.exit_code == 0
    assert not psutil.pid_exists(grandchild)
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_samples_are_among_the_events(run: Run) -> None:
    class Two:
        every_s = 0.25

        def look(self) -> tuple[Sample | Noticed, ...]:
            gpus = GpuSample(gpu=0, memory_mhz=810), GpuSample(gpu=1)
            return Noticed(time_s=1.0, says="half blind"), Sample(time_s=1.0, gpus=gpus)

    outcome = run("works", sampler=Two())
    sample = next(event for event in outcome.events if isinstance(event, Sample))
    assert [gpu.memory_mhz for gpu in sample.gpus] == [810, None]
    assert sample in run.written()
    assert "half blind" in summarise(run.written()).says


def test_the_worker_gets_the_environment_it_was_given_and_nothing_else(run: Run) -> None:
    run("prints_its_environment", environment={"ONLY": "this"})
    seen = json.loads(run.folder.log.read_text())
    assert seen.pop("ONLY") == "this"
    assert set(seen) <= {"LC_CTYPE"}  # Python's own, of a process without a locale


@pytest.mark.usefixtures("ends_in_time")
def test_a_worker_does_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launcher = f"""
import os
from pathlib import Path
from gputopo.launch.jobs import RunJob, supervise
from gputopo.launch.supervise import RunFolder
from tests.kit_workers.stand_in import WORKER, behaves, in_place_of
from tests.launch.specs import cpu_spec
folder = Path({str(tmp_path)!r})
with in_place_of(WORKER, behaves("reports_its_pid_to_a_fifo_and_hangs"), folder / "stand-in"):
    supervise(RunJob(spec=cpu_spec(), folder=RunFolder(folder), on_event=print, environment=dict(os.environ)))
"""
    with commands.started("-c", launcher, FIFO=str(fifo)) as (parent, _), fifo.open() as lines:
        worker = int(lines.readline())
        os.kill(parent.pid, signal.SIGKILL)
        # The end of the file: the worker, its only writer, is gone, though nobody may have reaped it yet.
        assert lines.read() == ""
    assert worker != parent.pid
