"""The launcher and a worker that fails in one respect at a time, or a disk that is full."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.supervise import EventQueue, HangLimits, WorkerLimits
from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.run.events import (
    BatchTried,
    Event,
    GpuSample,
    RankFailed,
    Restarted,
    RunFinished,
    RunStarted,
    Sample,
    Step,
)
from tests.launch.jobs.supervised import Run, failure
from tests.launch.specs import cpu_spec
from tests.launch.train.small_disk import small_disk


def test_a_traceback_is_reported_by_its_last_line_with_exit_code_3(run: Run) -> None:
    outcome = run("traceback")
    assert outcome.exit_code == 3
    failed = failure(outcome)
    assert (failed.kind, failed.signal) == ("error", None)
    assert failed.cause == "the worker failed: ValueError: the shapes (3,) and (4,) do not go together"
    assert failed.last_lines[0] == "Traceback (most recent call last):" or "loading" in failed.last_lines
    assert "Traceback" in run.folder.log.read_text()
    assert summarise(run.written()).steps == 1


@pytest.fixture
def count_of_kills(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the kernel show these counts of kills for lack of memory, one after the other."""
    read_text = Path.read_text

    def counts(*kills: int) -> None:
        shown = iter(kills)

        def read(path: Path, *given: Any, **options: Any) -> str:
            if str(path) == "/proc/self/cgroup":
                return "0::/job\n"
            if str(path) == "/sys/fs/cgroup/job/memory.events":
                return f"oom_kill {next(shown)}\n"
            return read_text(path, *given, **options)

        monkeypatch.setattr(Path, "read_text", read)

    return counts


def test_a_killed_worker_names_the_signal_and_keeps_what_was_measured(
    run: Run, count_of_kills: Callable[..., None]
) -> None:
    count_of_kills(5, 5)
    outcome = run("killed")
    failed = failure(outcome)
    assert (failed.kind, failed.signal, outcome.exit_code) == ("killed", "SIGKILL", 137)
    assert "out of memory" not in failed.cause
    assert failed.last_lines == ("about to go",)
    result = summarise(run.written())
    assert (result.status, result.exit_code, result.steps) == ("failed", 137, 1)


def test_a_crash_while_collectives_between_hosts_are_tried_says_how_to_leave_them_out(run: Run) -> None:
    assert "--all-reduce copy" in failure(run("crashes_in_the_exchange")).remedy
    assert "--all-reduce" not in failure(run("crashes_after_the_exchange")).remedy


def test_a_worker_that_the_kernel_killed_for_memory_is_reported_as_that(
    run: Run, count_of_kills: Callable[..., None]
) -> None:
    count_of_kills(5, 6, 6, 6)  # the trial with half the batch is killed as well, but not for memory
    failed = failure(run("killed"))
    assert (failed.kind, failed.signal, failed.exit_code) == ("out_of_memory", "SIGKILL", 3)
    assert "out of memory" in failed.cause
    assert "--batch-size" in failed.remedy


def test_after_out_of_memory_the_largest_batch_that_fits_is_found_by_workers_of_their_own(run: Run) -> None:
    schema.write(run.folder.spec, cpu_spec())
    outcome = run("needs_a_batch_of_one")
    tried = [(event.batch_size, event.fits) for event in outcome.events if isinstance(event, BatchTried)]
    assert tried == [(2, False), (1, True)]
    failed = failure(outcome)
    assert (failed.cause, failed.kind, outcome.exit_code) == ("no memory for 4", "out_of_memory", 3)
    assert failed.remedy.startswith("use --batch-size 1: ")
    assert [type(event) for event in run.written()[-2:]] == [RankFailed, RunFinished]
    assert not list(run.folder.path.glob("trial-*"))


def test_a_worker_that_takes_no_step_any_more_is_ended_with_the_reason_and_its_stacks(run: Run) -> None:
    impatient = WorkerLimits(after_term=60, patience=HangLimits(factor=1, min_s=0.2))
    with contextlib.closing(EventQueue[Event]()) as others:
        others.put(Sample(time_s=1.0, rank=0, gpus=(GpuSample(gpu=2, gpu_utilization_percent=50),)))
        others.put(Sample(time_s=2.0, rank=1, gpus=(GpuSample(gpu=5, gpu_utilization_percent=60),)))
        outcome = run("hangs_with_stacks", limits=impatient, others=others)
    failed = failure(outcome)
    assert (failed.kind, outcome.exit_code) == ("hung", 3)
    assert "a step usually takes 0.2 s" in failed.cause
    assert "the worker waits, using no CPU time" in failed.cause
    assert failed.cause.endswith("; GPU 2 50% busy"), "of this host"
    assert any("misbehave.py" in line and "in hang" in line for line in failed.last_lines), "its stacks"
    assert summarise(run.written()).status == "failed"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [("is_stopped", "the worker is stopped (SIGSTOP)"), ("ignores_sigterm_and_hangs", "the worker waits")],
)
def test_a_worker_that_is_stopped_or_ignores_sigterm_is_ended_nevertheless(
    run: Run, behaviour: str, words: str
) -> None:
    impatient = WorkerLimits(after_term=0.2, patience=HangLimits(factor=1, min_s=0.2))
    assert words in failure(run(behaviour, limits=impatient)).cause


def test_a_worker_that_never_comes_to_its_first_step_is_ended_with_the_reason(run: Run) -> None:
    outcome = run("hangs_before_all", limits=WorkerLimits(after_term=60, patience=HangLimits(start_s=0.5)))
    failed = failure(outcome)
    assert (failed.kind, outcome.exit_code) == ("hung", 3)
    assert "in starting TensorFlow and building the model; the worker waits" in failed.cause


def test_the_first_failure_counts(run: Run) -> None:
    outcome = run("reports_two_failures")
    assert (failure(outcome).cause, outcome.exit_code) == ("the first", 3)


def test_an_event_that_is_cut_short_is_an_error_where_the_worker_calls_it_a_success(run: Run) -> None:
    outcome = run("half_a_line")
    assert outcome.exit_code == 3
    assert "cut short" in failure(outcome).cause


def test_what_is_no_event_ends_the_run_and_is_shown(run: Run) -> None:
    outcome = run("garbage")
    failed = failure(outcome)
    assert (failed.kind, outcome.exit_code) == ("error", 3)
    assert "not an event" in failed.cause
    assert [type(event) for event in run.written()] == [RunStarted, Step, RankFailed, RunFinished]


def test_a_worker_that_ends_well_without_a_step_has_failed(run: Run) -> None:
    outcome = run("nothing")
    assert (failure(outcome).cause, outcome.exit_code) == ("the worker ended without a counted step", 3)


def test_a_full_disk_ends_the_run_and_keeps_in_memory_what_was_measured(run: Run) -> None:
    with small_disk(10_000):
        outcome = run("slow_tower")
    failed = failure(outcome)
    assert (failed.kind, outcome.exit_code, outcome.result.status) == ("disk_full", 3, "failed")
    assert "File too large" in failed.cause
    written = sum(isinstance(event, Step) for event in run.written())
    assert outcome.result.steps >= written > 0


@pytest.mark.usefixtures("ends_in_time")
def test_an_events_file_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        Run(tmp_path / "absent")("works")


def test_a_run_goes_on_from_its_checkpoint_after_a_failure_by_chance_and_counts_it(run: Run) -> None:
    outcome = run("is_killed_until_it_resumes", spec=cpu_spec(num_batches=4), restarts=2)
    assert (outcome.exit_code, outcome.result.status) == (0, "complete")
    (restarted,) = (event for event in run.written() if isinstance(event, Restarted))
    assert (restarted.number, restarted.of, restarted.steps) == (1, 2, 12)
    assert any("Restart 1 of 2: the worker was ended by SIGKILL" in said for said in outcome.result.says)
    assert not any(isinstance(event, RankFailed) for event in run.written())


def test_restarts_end_with_the_failure_of_the_last_one(run: Run) -> None:
    outcome = run("killed", restarts=1)
    assert (outcome.exit_code, failure(outcome).kind) == (137, "killed")
    assert sum(isinstance(event, Restarted) for event in run.written()) == 1
