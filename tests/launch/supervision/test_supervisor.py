"""The launcher and a worker that misbehaves in one way at a time. Waiting is on pipes and processes only."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from gputopo import schema
from gputopo.errors import InputError
from gputopo.events import (
    Anomaly,
    BatchTried,
    CheckpointSaved,
    Event,
    GpuSample,
    ModelBuilt,
    Noticed,
    RankFailed,
    RunFinished,
    RunStarted,
    Sample,
    Step,
    read_events,
)
from gputopo.launch.runs import EventLog, RunFolder
from gputopo.launch.spec import Lifecycle, RunSpec
from gputopo.launch.supervision.supervisor import Limits, Outcome, supervise
from gputopo.launch.supervision.watchdog import Patience
from gputopo.summary import summarise
from tests.kit_workers import misbehave
from tests.launch.specs import cpu_spec

SHORT = Limits(after_term=0.2, after_last_event=0.2, after_kill=20)  # of workers that never end by themselves
LONG = Limits(after_term=60, after_last_event=60, after_kill=60)  # that a test fails by, never waits for


class Run:
    """One run of a misbehaving worker in a folder of its own, and what is left of it."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.pid = 0
        self.on_step: Callable[[], None] = lambda: None

    def __call__(
        self,
        behaviour: str,
        *,
        spec: RunSpec | None = None,
        limits: Limits = LONG,
        environment: dict[str, str] | None = None,
        **more: object,
    ) -> Outcome:
        def command(file: Path, events_fd: int) -> Sequence[str]:
            return (sys.executable, "-I", misbehave.__file__, behaviour, str(file), str(events_fd))

        def on_event(event: Event) -> None:
            for child in psutil.Process().children():
                self.pid = child.pid
            if isinstance(event, Step):
                self.on_step()

        parent = dict(os.environ) if environment is None else environment
        outcome = supervise(
            spec or cpu_spec(),
            self.folder,
            on_event,
            environment=parent,
            command=command,
            limits=limits,
            **more,  # type: ignore[arg-type]
        )
        assert psutil.Process().children(recursive=True) == []
        return outcome

    def written(self) -> list[Event]:
        with self.folder.events.open("rb") as lines:
            return list(read_events(lines, origin="events.jsonl"))


@pytest.fixture(autouse=True)
def _a_hanging_test_fails() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError("a run did not end")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def once(act: Callable[[], None]) -> Callable[[], None]:
    left = [act]
    return lambda: left.pop()() if left else None


def failure(outcome: Outcome) -> RankFailed:
    (found,) = (event for event in outcome.events if isinstance(event, RankFailed))
    return found


def test_a_worker_that_works_ends_in_a_complete_run_whose_events_are_all_in_the_file(run: Run) -> None:
    outcome = run("works")
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


def test_the_event_is_in_the_file_before_anybody_is_told(run: Run) -> None:
    seen: list[int] = []
    run.on_step = lambda: seen.append(sum(isinstance(event, Step) for event in run.written()))
    run("works")
    assert seen == [1, 2, 3]


def test_a_traceback_is_told_by_its_last_line_with_exit_code_3(run: Run) -> None:
    outcome = run("traceback")
    assert outcome.exit_code == 3
    told = failure(outcome)
    assert (told.kind, told.signal) == ("error", None)
    assert told.cause == "the worker failed: ValueError: the shapes (3,) and (4,) do not go together"
    assert told.last_lines[0] == "Traceback (most recent call last):" or "loading" in told.last_lines
    assert "Traceback" in run.folder.log.read_text()
    assert summarise(run.written()).steps == 1


def test_a_worker_without_tensorflow_is_told_in_one_line(run: Run) -> None:
    told = failure(run("no_tensorflow"))
    assert "No module named 'tensorflow_that_is_not_there'" in told.cause
    assert "pip install" in told.remedy


def test_an_allocation_that_failed_in_cpp_is_out_of_memory(run: Run) -> None:
    outcome = run("bad_alloc_in_cpp")
    assert (failure(outcome).kind, outcome.exit_code) == ("out_of_memory", 3)
    assert failure(outcome).remedy.startswith("even --batch-size 1 does not fit")


def test_a_killed_worker_names_the_signal_and_keeps_what_was_measured(run: Run) -> None:
    outcome = run("killed", count_oom_kills=lambda: 5)
    told = failure(outcome)
    assert (told.kind, told.signal, outcome.exit_code) == ("killed", "SIGKILL", 137)
    assert "out of memory" not in told.cause
    assert told.last_lines == ("about to go",)
    result = summarise(run.written())
    assert (result.status, result.exit_code, result.steps) == ("failed", 137, 1)


def test_a_worker_that_the_kernel_killed_for_memory_is_told_as_that(run: Run) -> None:
    counts = iter([5, 6, 6, 6])  # the trial with half the batch is killed as well, but not for memory
    told = failure(run("killed", count_oom_kills=lambda: next(counts)))
    assert (told.kind, told.signal, told.exit_code) == ("out_of_memory", "SIGKILL", 3)
    assert "out of memory" in told.cause
    assert "--batch-size" in told.remedy


def test_out_of_memory_that_the_worker_tells_is_taken_with_its_last_lines(run: Run) -> None:
    outcome = run("tells_out_of_memory")
    told = failure(outcome)
    assert (told.kind, outcome.exit_code) == ("out_of_memory", 3)
    assert told.remedy.startswith("even --batch-size 1 does not fit")
    assert told.last_lines == ("W bfc_allocator: ran out",)


def test_after_out_of_memory_the_largest_batch_that_fits_is_found_by_workers_of_their_own(run: Run) -> None:
    schema.write(run.folder.spec, cpu_spec())
    outcome = run("needs_a_batch_of_one")
    tried = [(event.batch_size, event.fits) for event in outcome.events if isinstance(event, BatchTried)]
    assert tried == [(2, False), (1, True)]
    told = failure(outcome)
    assert (told.cause, told.kind, outcome.exit_code) == ("no memory for 4", "out_of_memory", 3)
    assert told.remedy.startswith("use --batch-size 1: ")
    assert [type(event) for event in run.written()[-2:]] == [RankFailed, RunFinished]
    assert not list(run.folder.path.glob("trial-*"))


def test_a_worker_that_takes_no_step_any_more_is_ended_with_the_reason(run: Run) -> None:
    impatient = Limits(after_term=60, patience=Patience(factor=1, least_s=0.2))
    outcome = run("hangs", limits=impatient)
    told = failure(outcome)
    assert (told.kind, outcome.exit_code) == ("hung", 3)
    assert "a step usually takes 0.2 s" in told.cause
    assert summarise(run.written()).status == "failed"


def test_a_worker_that_never_comes_to_its_first_step_is_ended_with_the_reason(run: Run) -> None:
    outcome = run("hangs_before_all", limits=Limits(after_term=60, patience=Patience(start_s=0.5)))
    told = failure(outcome)
    assert (told.kind, outcome.exit_code) == ("hung", 3)
    assert told.cause.endswith("in starting TensorFlow and building the model")


def test_the_first_failure_counts(run: Run) -> None:
    outcome = run("tells_two_failures")
    assert (failure(outcome).cause, outcome.exit_code) == ("the first", 3)


def test_a_worker_that_told_its_failure_and_hangs_is_ended(run: Run) -> None:
    outcome = run("tells_failure_and_hangs", limits=SHORT)
    assert (failure(outcome).kind, outcome.exit_code) == ("placement", 3)


@pytest.mark.parametrize(
    ("signum", "kind", "code"),
    [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGTERM, "terminated", 143),
        (signal.SIGHUP, "terminated", 129),
    ],
)
def test_a_signal_to_the_launcher_ends_the_worker_and_reports(
    run: Run, signum: signal.Signals, kind: str, code: int
) -> None:
    run.on_step = lambda: os.kill(os.getpid(), signum)
    outcome = run("hangs")
    assert (failure(outcome).kind, failure(outcome).signal, outcome.exit_code) == (kind, signum.name, code)
    result = summarise(run.written())
    assert (result.status, result.steps, result.exit_code) == ("interrupted", 1, code)


SAVES = cpu_spec(lifecycle=Lifecycle(checkpoints="/c"))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_worker_that_saves_is_asked_to_end_after_its_step_and_to_save(
    run: Run, signum: signal.Signals, code: int
) -> None:
    run.on_step = once(lambda: os.kill(os.getpid(), signum))
    outcome = run("ends_as_asked", spec=SAVES)
    assert outcome.exit_code == code
    assert failure(outcome).signal == signum.name
    assert "--resume" in failure(outcome).remedy
    result = summarise(run.written())
    assert (result.status, result.steps, result.exit_code) == ("interrupted", 2, code)
    assert [saved.steps for saved in result.checkpoints] == [3]


def test_that_the_last_state_could_not_be_saved_is_said(run: Run) -> None:
    run.on_step = once(lambda: os.kill(os.getpid(), signal.SIGTERM))
    outcome = run("ends_as_asked_on_a_full_disk", spec=SAVES)
    assert (failure(outcome).kind, outcome.exit_code) == ("terminated", 143)
    (said,) = (event.says for event in outcome.events if isinstance(event, Noticed))
    assert said == "The last state is lost: cannot write c: No space left on device"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_worker_that_is_still_saving(run: Run, second: signal.Signals) -> None:
    def in_turn() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), second)

    run.on_step = in_turn
    outcome = run("does_not_end_as_asked", spec=SAVES)
    assert (failure(outcome).kind, outcome.exit_code) == ("interrupted", 130)
    assert not any(isinstance(event, CheckpointSaved) for event in outcome.events)


def test_a_worker_that_hangs_while_it_saves_is_ended_and_it_is_said(run: Run) -> None:
    run.on_step = once(lambda: os.kill(os.getpid(), signal.SIGINT))
    limits = Limits(after_term=60, patience=Patience(phase_s=0.2))
    outcome = run("does_not_end_as_asked", spec=SAVES, limits=limits)
    assert (failure(outcome).kind, outcome.exit_code) == ("interrupted", 130)
    (said,) = (event.says for event in outcome.events if isinstance(event, Noticed))
    assert said.startswith("The last state is lost: the worker hangs: nothing for 0 s in the phase 'checkp")


@pytest.mark.parametrize("behaviour", ["ends_as_asked", "hangs"])
def test_a_worker_with_nothing_to_keep_or_no_step_yet_is_ended_at_once(run: Run, behaviour: str) -> None:
    spec = cpu_spec() if behaviour == "ends_as_asked" else SAVES  # "hangs" never tells its placement
    run.on_step = once(lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome = run(behaviour, spec=spec)
    assert outcome.exit_code == 130
    assert summarise(run.written()).steps == 1


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(run: Run) -> None:
    run.on_step = lambda: os.kill(os.getpid(), signal.SIGTERM)
    outcome = run("ignores_sigterm", limits=Limits(after_term=0.05))
    assert (failure(outcome).kind, outcome.exit_code) == ("terminated", 143)


def test_a_second_ctrl_c_kills_at_once(run: Run) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    run.on_step = twice
    outcome = run("ignores_sigterm")  # with a grace of a minute: only the kill ends it in time
    assert (failure(outcome).kind, outcome.exit_code) == ("interrupted", 130)
    finished = outcome.events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.wall_s < 30


def test_the_handlers_that_were_set_before_are_set_again(run: Run) -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run("works")
    after = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert before == after


def test_an_event_that_is_cut_short_is_an_error_where_the_worker_calls_it_a_success(run: Run) -> None:
    outcome = run("half_a_line")
    assert outcome.exit_code == 3
    assert "cut short" in failure(outcome).cause
    assert summarise(run.written()).steps == 1


def test_an_event_that_is_cut_short_by_a_kill_is_told_as_the_kill(run: Run) -> None:
    assert failure(run("half_a_line_then_killed")).kind == "killed"


def test_a_line_that_comes_in_pieces_is_one_event(run: Run) -> None:
    outcome = run("line_in_pieces")
    assert [event.parameters for event in outcome.events if isinstance(event, ModelBuilt)] == [7]
    assert outcome.exit_code == 0


@pytest.mark.parametrize("behaviour", ["garbage", "an_event_of_the_launcher"])
def test_what_is_no_event_of_a_worker_ends_the_run_and_is_shown(run: Run, behaviour: str) -> None:
    outcome = run(behaviour)
    told = failure(outcome)
    assert (told.kind, outcome.exit_code) == ("error", 3)
    assert "not an event" in told.cause or "run_finished" in told.cause
    assert [type(event) for event in run.written()] == [RunStarted, Step, RankFailed, RunFinished]


def test_a_worker_that_closes_its_pipe_and_hangs_is_ended(run: Run) -> None:
    outcome = run("closes_the_pipe_and_hangs", limits=SHORT)
    assert outcome.exit_code == 3
    assert "did not end within 0.2 s" in failure(outcome).cause


def test_a_worker_that_ends_well_without_a_step_has_failed(run: Run) -> None:
    outcome = run("nothing")
    assert (failure(outcome).cause, outcome.exit_code) == ("the worker ended without a counted step", 3)


def test_a_flood_on_stderr_blocks_nobody_and_its_end_is_kept(run: Run) -> None:
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


def test_a_display_that_fails_leaves_no_worker_behind(run: Run) -> None:
    def broken() -> None:
        raise BrokenPipeError

    run.on_step = broken
    with pytest.raises(BrokenPipeError):
        run("hangs")
    assert psutil.Process().children(recursive=True) == []
    assert not psutil.pid_exists(run.pid)


class FullDisk(EventLog):
    """A disk that has room for so many events."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path)
        self.room = room

    def write(self, event: Event) -> None:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        self.room -= 1
        super().write(event)


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_ends_the_run_and_keeps_in_memory_what_was_measured(run: Run, room: int) -> None:
    outcome = run("hangs", open_log=lambda path: FullDisk(path, room))
    told = failure(outcome)
    assert (told.kind, outcome.exit_code) == ("disk_full", 3)
    assert "No space left on device" in told.cause
    assert len(run.written()) == room
    result = summarise(outcome.events)
    assert (result.status, result.steps) == ("failed", room)  # no room for the start: it does not start


def test_a_disk_that_is_full_only_for_the_last_event_still_fails_the_run(run: Run) -> None:
    outcome = run("works", open_log=lambda path: FullDisk(path, 4))
    assert (failure(outcome).kind, outcome.exit_code) == ("disk_full", 3)
    assert summarise(outcome.events).status == "failed"


def test_the_device_that_is_always_full_ends_the_run(run: Run) -> None:
    run.folder.events.symlink_to("/dev/full")
    outcome = run("hangs")
    assert (failure(outcome).kind, outcome.exit_code) == ("disk_full", 3)


def test_an_events_file_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        Run(tmp_path / "absent")("works")


def test_samples_are_among_the_events(run: Run) -> None:
    class Two:
        def sample(self) -> tuple[GpuSample, ...]:
            return (GpuSample(gpu=0, memory_mhz=810), GpuSample(gpu=1))

    outcome = run("works", sampler=Two())
    sample = next(event for event in outcome.events if isinstance(event, Sample))
    assert [gpu.memory_mhz for gpu in sample.gpus] == [810, None]
    assert sample in run.written()


def test_the_worker_gets_the_environment_it_was_given_and_nothing_else(run: Run) -> None:
    run("prints_its_environment", environment={"ONLY": "this"})
    seen = json.loads(run.folder.log.read_text())
    assert seen.pop("ONLY") == "this"
    assert set(seen) <= {"LC_CTYPE"}  # Python's own, of a process without a locale


def test_a_worker_does_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launcher = f"""
import os, sys
from pathlib import Path
from gputopo.launch.runs import RunFolder
from gputopo.launch.supervision.supervisor import supervise
from tests.launch.specs import cpu_spec
supervise(cpu_spec(), RunFolder(Path({str(tmp_path)!r})), print, environment=dict(os.environ),
    command=lambda spec, fd: (sys.executable, "-I", {misbehave.__file__!r},
        "tells_its_pid_to_a_fifo_and_hangs", str(spec), str(fd)))
"""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "FIFO": str(fifo), "PYTHONPATH": str(root)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", launcher], env=environment, stdout=subprocess.DEVNULL
        ) as parent,
        fifo.open() as lines,
    ):
        worker = int(lines.readline())
        parent.kill()
        # The end of the file: the worker, its only writer, is gone, though nobody may have reaped it yet.
        assert lines.read() == ""
    assert worker != parent.pid
