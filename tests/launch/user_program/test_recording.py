"""The record of a program: samples of a scripted NVML and reported steps, whatever becomes of either."""

import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch import Steps
from gputopo.launch.supervise import PROGRAM_PATIENCE, EventLog, HangLimits, OwnChildren, hang_limits
from gputopo.launch.user_program import (
    ErrorOutput,
    Joined,
    ProgramEnd,
    ProgramRecord,
    ProgramStop,
    StallWatch,
    StepPipe,
    failure_of,
    recorded,
    write_stacks,
)
from gputopo.probes import RunWatch
from gputopo.report import program_lines
from gputopo.runs import summarise
from gputopo.values.run.events import Device, Event, GpuSample, Noticed, RankFailed, Sample, Step
from gputopo.values.run.program import ProgramSpec
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import AS_PLANNED, OUTSIDE
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import ProcessSpec, Scenario, changed
from tests.launch.user_program.reports import ended, received, step


@pytest.fixture
def pid() -> Iterator[int]:
    """Start a process that takes steps, as far as its reports say."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


class Printed(ErrorOutput):
    """The stderr of a program that printed these lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    @property
    def last_lines(self) -> tuple[str, ...]:
        return self._lines


def watch(patience: HangLimits, stop: ProgramStop | None = None, *lines: str) -> StallWatch:
    errors = Printed(*lines)
    return StallWatch(patience, "train", stop or ProgramStop(), OwnChildren(), errors, stacks=None, now_s=0.0)


def done(pid: int, number: int, seconds: float = 1.0) -> Any:
    (report,) = received([step(pid, number, seconds)])
    return report


def test_silence_after_a_step_is_a_hang_and_asks_for_the_end_once(pid: int) -> None:
    stop = ProgramStop()
    looks = watch(hang_limits(60), stop)
    looks.reported(done(pid, 1), 10.0)
    looks.sampled(Sample(time_s=1.0, gpus=(GpuSample(gpu=1, graphics_mhz=300, gpu_utilization_percent=100),)))
    assert looks.look(69.0) is None
    found = looks.look(70.0)
    assert isinstance(found, RankFailed)
    assert found.kind == "hung"
    assert found.cause == (
        "train hangs: no progress for 60 s in a step; a step usually takes 1 s; GPU 1 100% busy 300 MHz"
    )
    assert (stop.asked, looks.look(1000.0), looks.wait_s(1000.0)) == (True, None, None)


def test_what_the_stderr_of_a_program_that_hangs_reports_is_named(pid: int) -> None:
    looks = watch(hang_limits(60), None, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    looks.reported(done(pid, 1), 10.0)
    found = looks.look(70.0)
    assert isinstance(found, RankFailed)
    assert found.cause.endswith("; its stderr reports uncorrectable ECC error encountered")
    assert found.remedy.startswith("See nvidia-smi -q -d ECC")


def test_a_program_is_judged_only_while_one_of_its_processes_takes_steps(pid: int) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    looks = watch(hang_limits(60))
    looks.reported(done(pid, 1), 10.0)
    looks.reported(done(gone.pid, 1), 10.0)
    for report in received([ended(pid)]):
        looks.reported(report, 20.0)
    assert looks.look(1000.0) is None  # the other cannot report its end any more
    looks.reported(done(pid, 1), 2000.0)
    assert looks.look(2059.0) is None
    assert isinstance(looks.look(2060.0), RankFailed)


def test_a_program_that_reports_no_step_is_noticed_once_and_never_hangs() -> None:
    looks = watch(hang_limits(60))
    assert (looks.wait_s(10.0), looks.look(59.0)) == (50.0, None)
    said = looks.look(60.0)
    assert isinstance(said, Noticed)
    assert said.says.startswith("No step was reported; ")
    assert (looks.wait_s(61.0), looks.look(1e6), looks.unwatched()) == (None, None, None)
    assert watch(hang_limits(60)).unwatched() is not None  # it ended before that


def test_auto_is_50_steps_and_no_less_than_an_evaluation_may_take(pid: int) -> None:
    for seconds, limit_s in ((1.0, 1800.0), (60.0, 3000.0)):
        looks = watch(PROGRAM_PATIENCE)
        looks.reported(done(pid, 1, seconds), 0.0)
        assert looks.look(limit_s - 1) is None
        assert isinstance(looks.look(limit_s), RankFailed)


STEPS = """
import sys
from gputopo.launch import Steps
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


FOUR = SCENARIOS["four"]
SAMPLES = 48  # those of other GPUs, and processes, are in every eighth


def spec(*gpus: int) -> ProgramSpec:
    devices = tuple(
        Device(tower=place, device=f"/GPU:{place}", gpu=gpu, gpu_name="GeForce")
        for place, gpu in enumerate(gpus)
    )
    return ProgramSpec(model="train", command=("train",), devices=devices, backend="gpu" if gpus else "cpu")


def watched(fake: FakeNvml, *gpus: int, others: Sequence[int] = ()) -> tuple[Result, list[str]]:
    """Record a program by samples of the double, without waiting; return the result and what was noticed."""
    seen: list[Event] = []
    record = ProgramRecord(None, seen.append, lambda line: None)
    record.begin(spec(*gpus))
    with installed(fake), RunWatch(gpus, others) as watch:
        for _ in range(SAMPLES):
            for event in watch.look():
                record.add(event)
    record.finish("train", ProgramEnd(0))
    assert summarise(seen) == record.summary.result()
    return record.summary.result(), [event.says for event in seen if isinstance(event, Noticed)]


def of_the_run(scenario: Scenario, gpu: int) -> Scenario:
    """Let this process use a GPU."""
    return changed(scenario, {gpu: {"processes": (ProcessSpec(os.getpid(), "compute", 2**30),)}})


@pytest.mark.parametrize(
    ("used", "word", "said"),
    [(0, AS_PLANNED, []), (3, OUTSIDE, ["The program runs on GPU 3; planned: GPUs 0-1."])],
)
def test_the_gpus_that_a_program_is_seen_on_are_compared_with_the_plan(
    used: int, word: str, said: list[str]
) -> None:
    result, notices = watched(FakeNvml(of_the_run(FOUR, used)), 0, 1, others=(2, 3))
    assert result.placed is not None
    assert (result.placed.word, result.placed.gpus, notices) == (word, (used,), said)


def test_devices_are_compared_by_what_their_processes_report_and_the_run_with_its_own_past() -> None:
    rng, joined = random.Random(5), Joined(spec(0, 1).towers)
    record = ProgramRecord(None, lambda event: None, lambda line: None)
    record.begin(spec(0, 1))
    steps = []
    for number in range(1, 401):
        for rank, busy_s in enumerate((0.08, 0.1)):
            seconds = (0.2 if number < 200 else 0.25) * rng.gauss(1, 0.01)
            both = {"device": rank, "busy_s": busy_s * rng.gauss(1, 0.01)}
            steps.append(step(rank, number, seconds, examples=32, **both))
    for report in received(steps):
        for event in joined.add(report, report.step / 5):
            record.add(event)
    record.finish("train", ProgramEnd(0))
    result = record.summary.result()
    (slow,) = result.anomalies
    assert (slow.gpu, result.run_verdict is not None and result.run_verdict.word) == (1, "slow")
    said = list(program_lines(result))
    assert any(line.startswith("! GPU 1 ") and "slower than its peers" in line for line in said)
    assert any("The run became" in line and "slower" in line for line in said)


class Stuck:
    """A sampler whose driver never answers, until it is let go."""

    every_s = 0.01

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def look(self) -> tuple[Sample, ...]:
        self.let_go.wait()
        return ()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    sampler = Stuck()
    yield sampler
    sampler.let_go.set()


def steps_recorded(sampler: Stuck | None, events: list[Event], steps: int) -> Result:
    record = ProgramRecord(None, events.append, lambda line: None)
    record.begin(spec(0))
    with closing(StepPipe()) as pipe:
        with recorded(record, sampler, pipe, spec(0)) as state, pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPUTOPO_STEPS", str(pipe.name))
            with Steps(examples=4) as loop:
                for _ in range(steps):
                    loop.done()
        assert not state.stuck
    record.finish("train", ProgramEnd(0))
    return record.summary.result()


def test_steps_are_all_there_at_the_end_also_beside_a_sampler_that_hangs(stuck: Stuck) -> None:
    events: list[Event] = []
    result = steps_recorded(stuck, events, 21)
    assert (result.steps, result.images, result.warmup_steps) == (20, 80, 1)
    assert [event.step for event in events if isinstance(event, Step)] == list(range(21))
    assert not any("loss" in line for line in result.says)


def test_events_that_cannot_be_written_are_reported_once_and_summed_up(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    problems: list[str] = []
    record = ProgramRecord(EventLog(full), lambda event: None, problems.append)
    record.begin(spec(0))
    record.add(Noticed(time_s=1.0, says="noticed"))
    record.finish("train", ProgramEnd(0))
    assert problems == ["cannot write /dev/full: No space left on device; continuing without recording"]
    assert record.summary.result().status == "complete"


@pytest.mark.parametrize(
    ("ending", "kind", "code"),
    [
        (ProgramEnd(0, passed=frozenset({15})), None, None),  # it ended as it was asked to
        (ProgramEnd(3), "error", 3),
        (ProgramEnd(1, passed=frozenset({2})), "interrupted", 1),
        (ProgramEnd(-15, passed=frozenset({15})), "terminated", 143),
        (ProgramEnd(-11), "killed", 139),
        (ProgramEnd(-11, passed=frozenset({10})), "killed", 139),
        (ProgramEnd(-9, out_of_memory=True), "out_of_memory", 137),
    ],
)
def test_why_a_program_ended_is_named(ending: ProgramEnd, kind: str | None, code: int | None) -> None:
    failure = failure_of("/opt/bin/train", ending, time_s=0.0)
    assert (None if failure is None else failure.kind) == kind
    assert (None if failure is None else failure.exit_code) == code
