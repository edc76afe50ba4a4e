"""Whether a program hangs, by its reports, a clock that is passed in, and processes that live or not."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputopo.launch.supervise.child import Ours
from gputopo.launch.supervise.watchdog import PROGRAM_PATIENCE, Patience, of_seconds
from gputopo.launch.throughput import StepDone, StepsEnded
from gputopo.launch.user_program.program import Ending, Stop
from gputopo.launch.user_program.stall import StallWatch, write_stacks
from gputopo.values.run.events import GpuSample, Noticed, RankFailed, Sample


@pytest.fixture
def pid() -> Iterator[int]:
    """Start a process that takes steps, as far as its reports say."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def watch(patience: Patience, stop: Stop | None = None, stacks: Path | None = None) -> StallWatch:
    return StallWatch(patience, "train", stop or Stop(), Ours(), stacks=stacks, now_s=0.0)


def done(pid: int, step: int, seconds: float = 1.0) -> StepDone:
    return StepDone(pid=pid, step=step, seconds=seconds, examples=8)


def test_silence_after_a_step_is_a_hang_and_asks_for_the_end_once(pid: int) -> None:
    stop = Stop()
    looks = watch(of_seconds(60), stop)
    looks.reported(done(pid, 1), 10.0)
    looks.sampled(Sample(time_s=1.0, gpus=(GpuSample(gpu=1, graphics_mhz=300, gpu_utilization_percent=100),)))
    assert looks.look(69.0) is None
    found = looks.look(70.0)
    assert isinstance(found, RankFailed)
    assert found.kind == "hung"
    assert found.cause == (
        "train hangs: nothing for 60 s in a step; a step usually takes 1 s; GPU 1 100 % busy 300 MHz"
    )
    assert (stop.asked, looks.look(1000.0), looks.wait_s(1000.0)) == (True, None, None)


def test_a_program_that_ends_meanwhile_does_not_hang(pid: int) -> None:
    stop = Stop()
    looks = watch(of_seconds(60), stop)
    looks.reported(done(pid, 1), 10.0)
    assert not stop.over()
    assert looks.look(70.0) is None


def test_a_process_that_is_stopped_is_named(pid: int) -> None:
    looks = watch(of_seconds(60))
    looks.reported(done(pid, 1), 10.0)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    found = looks.look(70.0)
    assert isinstance(found, RankFailed)
    assert f"process {pid} is stopped (SIGSTOP)" in found.cause


def test_a_program_is_judged_only_while_one_of_its_processes_takes_steps(pid: int) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    looks = watch(of_seconds(60))
    looks.reported(done(pid, 1), 10.0)
    looks.reported(done(gone.pid, 1), 10.0)
    looks.reported(StepsEnded(pid=pid), 20.0)
    assert looks.look(1000.0) is None  # the other cannot report its end any more
    looks.reported(done(pid, 1), 2000.0)
    assert looks.look(2059.0) is None
    assert isinstance(looks.look(2060.0), RankFailed)


def test_a_program_that_reports_no_step_is_noticed_once_and_never_hangs() -> None:
    looks = watch(of_seconds(60))
    assert (looks.wait_s(10.0), looks.look(59.0)) == (50.0, None)
    said = looks.look(60.0)
    assert isinstance(said, Noticed)
    assert said.says.startswith("No step was reported: ")
    assert (looks.wait_s(61.0), looks.look(1e6), looks.unwatched()) == (None, None, None)
    assert watch(of_seconds(60)).unwatched() is not None  # it ended before that


def test_auto_is_50_steps_and_no_less_than_an_evaluation_may_take(pid: int) -> None:
    for seconds, limit_s in ((1.0, 1800.0), (60.0, 3000.0)):
        looks = watch(PROGRAM_PATIENCE)
        looks.reported(done(pid, 1, seconds), 0.0)
        assert looks.look(limit_s - 1) is None
        assert isinstance(looks.look(limit_s), RankFailed)


STEPS = """
import sys
from gputopo.launch.throughput import Steps
with Steps(examples=8):
    print("ready", flush=True)
    sys.stdin.read()
print("left", flush=True)
"""


def test_a_process_writes_its_stacks_and_one_that_would_end_by_the_signal_is_left_alone(
    tmp_path: Path, pid: int
) -> None:
    file = tmp_path / "stacks.log"
    file.touch()
    environment = {**os.environ, "GPUTOPO_STEPS": os.devnull, "GPUTOPO_STACKS": str(file)}
    with subprocess.Popen(
        [sys.executable, "-c", STEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert write_stacks([pid, process.pid], file)
        process.stdin.close()
        assert process.stdout.readline() == b"left\n"
    written = file.read_text()
    assert written.startswith(f"process {process.pid}\n")
    assert re.search(r'File "<string>", line \d in <module>', written)
    assert not write_stacks([pid], file)


def test_the_exit_code_of_a_hang_is_that_of_the_hang_whatever_the_program_ended_with() -> None:
    assert {Ending(status, stopped=3).exit_code for status in (0, 5, -15)} == {3}
