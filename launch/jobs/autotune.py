"""Short runs of some candidates, each in a worker and a folder of its own, to train with the fastest."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from gputopo.launch.jobs.batch_search import WorkerCommand
from gputopo.launch.jobs.run import supervise, worker_command
from gputopo.launch.spec.run_spec import Backend, Lifecycle, RunSpec
from gputopo.launch.supervise import run_folder, signals
from gputopo.planner.autotune import Race
from gputopo.runs.predicted.compare import with_prediction
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.run.autotune import Autotune, Measured, Timed
from gputopo.values.run.plan import Candidate, Plan

FILE = "autotune.json"
# Of all runs together: about ten, most of whose time is starting TensorFlow.
BUDGET_S: Mapping[Backend, float] = {"cpu": 120.0, "gpu": 300.0}
COUNTED_S = 5.0  # of one run
MAX_STEPS = 200  # of one run
MAX_WARMUP = 10  # steps: kernels are chosen and buffers allocated in the first few


@dataclass(frozen=True)
class Trial:
    """A candidate as a run: its plan, its spec, and the environment of its worker, as a whole."""

    plan: Plan
    spec: RunSpec
    environment: Mapping[str, str]

    @property
    def candidate(self) -> Candidate:
        """The candidate."""
        return self.plan.choice


class StoppedError(Exception):
    """A signal ended a run. `exit_code`: 128 and its number."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def trial_of(spec: RunSpec) -> RunSpec:
    """Return a run of COUNTED_S seconds after the warm-up, at most MAX_STEPS steps, which saves nothing."""
    return msgspec.structs.replace(
        spec,
        num_batches=None,
        time_budget_s=COUNTED_S,
        max_batches=MAX_STEPS,
        num_warmup_batches=min(spec.num_warmup_batches, MAX_WARMUP),
        detect_warmup=False,
        lifecycle=Lifecycle(training_accuracy=spec.lifecycle.training_accuracy),
        optimization=msgspec.structs.replace(spec.optimization, on_nan="warn"),  # only its speed is asked for
    )


def tune(
    trials: Sequence[Trial],
    folder: Path,
    *,
    machine: Machine | None = None,
    on_run: Callable[[int, Trial, Timed | str], None] = lambda *_: None,
    budget_s: float | None = None,
    command: WorkerCommand = worker_command,
) -> tuple[Autotune, int]:
    """Run the trials in alternating order until the fastest is known; return that and the exit code.

    The code is 0, or that of the signal that ended it. The runs are in `folder`/autotune/ROUND-PLACE, the
    outcome in `folder`/autotune.json, also where it was stopped. `on_run` gets round, trial and what was
    measured, or why it failed. `budget_s`: seconds; None: BUDGET_S. Raises GputopoError where the files
    cannot be written.
    """
    race, began, code = Race(len(trials)), time.monotonic(), 0
    budget_s = BUDGET_S[trials[0].spec.backend] if budget_s is None else budget_s

    def measure(place: int, number: int) -> Timed | str:
        found = _run(trials[place], folder / run_folder.TRIALS / f"{number}-{place + 1}", machine, command)
        on_run(number, trials[place], found)
        return found

    try:
        with signals.raised():
            race.run(measure, budget_s=budget_s, clock=time.monotonic)
    except StoppedError as stopped:
        code = stopped.exit_code
    except KeyboardInterrupt:
        code = 130
    except signals.EndedError as ended:
        code = 128 + ended.number
    with signals.deferred():
        found = Autotune(
            winner=race.leader,
            settled="stopped" if code else race.settled,
            measured=tuple(
                Measured(
                    candidate=msgspec.structs.replace(trial.candidate, reasons=()),
                    runs=tuple(race.runs[place]),
                    failure=race.failures.get(place),
                )
                for place, trial in enumerate(trials)
            ),
            seconds=round(time.monotonic() - began, 3),
            budget_s=budget_s,
            model=trials[0].spec.model,
            batch_size=trials[0].spec.batch_size,
        )
        folder.mkdir(parents=True, exist_ok=True)
        schema.write(folder / FILE, found)
    return found, code


def _run(trial: Trial, path: Path, machine: Machine | None, command: WorkerCommand) -> Timed | str:
    """Return the speed of one run, or why it failed. Raises StoppedError where a signal ended it."""
    folder = run_folder.create(
        path,
        home=path.parent,
        now=datetime.now(),
        spec=trial.spec,
        plan=trial.plan,
        machine=machine,
    )
    outcome = supervise(
        trial.spec,
        folder,
        lambda event: None,
        environment=trial.environment,
        command=command,
        finds_batch=False,
    )
    if outcome.stopped:
        raise StoppedError(outcome.exit_code)
    result = with_prediction(outcome.result, trial.plan)
    result = run_folder.save_result(folder, result, time_s=time.time())
    speed = result.throughput
    if result.failure is not None:
        return result.failure.cause
    if speed is None or not speed.median > 0:
        return "no counted step"
    return Timed(speed.median, speed.jitter / speed.median / result.steps**0.5)
