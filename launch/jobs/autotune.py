"""Short runs of some candidates, each in a worker and a folder of its own, to train with the fastest."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gputopo.launch.jobs.batch_search import WorkerCommand
from gputopo.launch.jobs.run import worker_command
from gputopo.launch.jobs.trials import Trial, run_trial, timed, until_stopped
from gputopo.launch.spec.run_spec import Backend
from gputopo.launch.supervise import run_folder
from gputopo.launch.supervise.process import signals
from gputopo.planner.autotune import Race
from gputopo.runs.repeats import TimeBudget
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Autotune, Measured, Timed

FILE = "autotune.json"
# Of all runs together: about ten, most of whose time is starting TensorFlow.
BUDGET_S: Mapping[Backend, float] = {"cpu": 120.0, "gpu": 300.0}


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
    budget_s = BUDGET_S[trials[0].spec.backend] if budget_s is None else budget_s
    race, budget = Race(len(trials)), TimeBudget(budget_s, time.monotonic)

    def measure(place: int, number: int) -> Timed | str:
        path = folder / run_folder.AUTOTUNE / f"{number}-{place + 1}"
        found = timed(run_trial(trials[place], path, machine, command))
        on_run(number, trials[place], found)
        return found

    with until_stopped() as ending:
        race.run(measure, budget)
    with signals.deferred():
        found = Autotune(
            winner=race.leader,
            settled="stopped" if ending.code else race.settled,
            measured=tuple(
                Measured(
                    candidate=msgspec.structs.replace(trial.candidate, reasons=()),
                    runs=tuple(race.runs[place]),
                    failure=race.failures.get(place),
                )
                for place, trial in enumerate(trials)
            ),
            seconds=round(budget.used, 3),
            budget_s=budget_s,
            model=trials[0].spec.model,
            batch_size=trials[0].spec.batch_size,
        )
        folder.mkdir(parents=True, exist_ok=True)
        schema.write(folder / FILE, found)
    return found, ending.code
