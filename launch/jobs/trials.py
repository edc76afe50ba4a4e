"""Short runs in separate workers, for `sweep`, `screen`, `--autotune` and `bench-reduction`."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gputopo.launch.jobs.budget import TimeBudget
from gputopo.launch.jobs.race import Race
from gputopo.launch.jobs.run import Display, RunJob, supervise
from gputopo.launch.spec.prepare import MIN_WARMUP_S, without_nccl
from gputopo.launch.supervise import run_folder, signals
from gputopo.launch.supervise.sampling import watch_of
from gputopo.launch.target import Target
from gputopo.report import autotune_run_line, to_stderr
from gputopo.runs import with_prediction
from gputopo.values import schema
from gputopo.values.run.events import Event
from gputopo.values.run.plan import Autotune, Candidate, MeasuredPlacement, TimedRun, mode_words
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import AUTOTUNE_RUNS
from gputopo.values.run.spec import Lifecycle, RunSpec
from gputopo.values.run.verdict import Known

FILE = "autotune.json"
BUDGET_S = 110.0  # for all runs together; most of it is the start of TensorFlow
COUNTED_S = 5.0  # for one run
MAX_STEPS = 200  # for one run
MAX_WARMUP = 10  # steps: the first steps choose kernels and allocate buffers


@dataclass(frozen=True)
class Trial:
    """A target and its spec as a short run. `known`: what its result is compared with."""

    target: Target
    spec: RunSpec
    known: Known | None = None

    @property
    def candidate(self) -> Candidate:
        """The placement that is measured."""
        return self.target.plan.choice


class StoppedError(Exception):
    """A signal ended a run. `exit_code`: 128 plus the signal's number."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class SeriesEnd:
    """How a series of short runs ended. `code`: 0, or 128 plus the number of the signal that ended it."""

    code = 0


def trial_of(spec: RunSpec, *, counted_s: float = COUNTED_S, num_batches: int | None = None) -> RunSpec:
    """Return a run of `counted_s` seconds after the warm-up and up to MAX_STEPS steps, which saves nothing.

    `num_batches`: counted steps to run instead, however long they take.
    """
    return msgspec.structs.replace(
        spec,
        num_batches=num_batches,
        time_budget_s=None if num_batches else counted_s,
        max_error=None,
        max_batches=num_batches or MAX_STEPS,
        num_warmup_batches=min(spec.num_warmup_batches, MAX_WARMUP),
        min_warmup_s=None if spec.min_warmup_s is None else MIN_WARMUP_S,
        lifecycle=Lifecycle(),
        optimization=msgspec.structs.replace(spec.optimization, on_nan="warn"),  # only its speed is needed
    )


@contextlib.contextmanager
def until_stopped() -> Iterator[SeriesEnd]:
    """Run the block until it ends or a signal ends it; the `with` value then has the exit code."""
    ending = SeriesEnd()
    try:
        with signals.raised():
            yield ending
    except StoppedError as stopped:
        ending.code = stopped.exit_code
    except KeyboardInterrupt:
        ending.code = 130
    except signals.EndedError as ended:
        ending.code = 128 + ended.number


def run_trial(
    trial: Trial,
    path: Path,
    *,
    display: Display | None = None,
    note: Callable[[Event], None] = lambda event: None,
    may_replan: bool = True,
) -> Result:
    """Run one trial in the folder `path`; return its result. Raises StoppedError if a signal ended it.

    `display`: shows the run, whose GPUs are then sampled. `note`: gets each event. `may_replan`: train with
    another placement if NCCL fails.
    """
    spec, plan = trial.spec, trial.target.plan
    folder = run_folder.create_run_folder(path, spec=spec, plan=plan, machine=trial.target.site.machine)
    with contextlib.ExitStack() as shown:
        sampler = None if display is None else shown.enter_context(watch_of(spec))
        show = note if display is None else shown.enter_context(display())

        def on_event(event: Event) -> None:
            note(event)
            show(event)

        job = RunJob(
            spec=spec,
            folder=folder,
            on_event=note if display is None else on_event,
            environment=trial.target.environment(os.environ, spec),
            sampler=sampler,
            finds_batch=False,
            known=trial.known or Known(),
            fallback=without_nccl(trial.target, spec) if may_replan else None,
        )
        outcome = supervise(job)
    if outcome.stopped:
        raise StoppedError(outcome.exit_code)
    return run_folder.save_result(folder, with_prediction(outcome.result, plan))


def mode_ran(trial: Trial, result: Result) -> str:
    """Return the placement that ran, with the reason if the trial has another placement."""
    if result.replanned is None:
        return mode_words(trial.candidate)
    return f"{mode_words(result.replanned.choice)} (NCCL failed)"


def timed(result: Result) -> TimedRun | str:
    """Return the speed of a run, or why it failed."""
    speed = result.throughput
    if result.failure is not None:
        return result.failure.cause
    if speed is None or not speed.median > 0:
        return "no counted step"
    return TimedRun(speed.median, speed.jitter / speed.median / result.steps**0.5)


def tune(trials: Sequence[Trial], folder: Path) -> tuple[Autotune, int]:
    """Run the trials in alternating order until the fastest is known; return that and the exit code.

    The code is 0, or 128 plus the number of the signal that ended it. The runs are in
    `folder`/autotune/ROUND-PLACE, and a line about each is printed to stderr. The outcome is in
    `folder`/autotune.json, also if it was stopped. Raises GputopoError if the files cannot be written.
    """
    race, budget = Race(len(trials)), TimeBudget(BUDGET_S, time.monotonic)

    def measure(place: int, number: int) -> TimedRun | str:
        path = folder / AUTOTUNE_RUNS / f"{number}-{place + 1}"
        # Another placement must not be timed under this one's name.
        run = timed(run_trial(trials[place], path, may_replan=False))
        to_stderr(f"{autotune_run_line(number, trials[place].candidate, run)}\n")
        return run

    with until_stopped() as ending:
        race.run(measure, budget)
    with signals.deferred():
        outcome = Autotune(
            winner=race.leader,
            settled="stopped" if ending.code else race.settled,
            measured=tuple(
                MeasuredPlacement(
                    candidate=msgspec.structs.replace(trial.candidate, reasons=()),
                    runs=tuple(race.runs[place]),
                    failure=race.failures.get(place),
                )
                for place, trial in enumerate(trials)
            ),
            seconds=round(budget.used, 3),
            budget_s=BUDGET_S,
            model=trials[0].spec.model,
            batch_size=trials[0].spec.batch_size,
        )
        folder.mkdir(parents=True, exist_ok=True)
        schema.write(folder / FILE, outcome)
    return outcome, ending.code
