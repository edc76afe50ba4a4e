"""Which placements are measured before a run, and when the fastest of them is known.

The candidates run in rounds, each once per round. The order alternates, so that drift of the clocks or of the
load of the host affects all of them. Two candidates are compared by the logarithms of the ratios of their
speeds, one logarithm for each round that both have run:

    lead  = median of these
    noise = t * deviation / sqrt(rounds)

`t` is Student's quantile for 97.5 %. The deviation is the standard deviation; with at least FOR_MAD rounds it
is the scaled median absolute deviation, which one disturbed round cannot change. It is never below the noise
within the runs, so that two rounds that agree by chance decide nothing.

If a candidate's lead over another one exceeds the noise, the other one does not run again. The rounds end if
one candidate remains, if lead + noise is below SAME for all that remain, or if there is not enough time for
the next run.
"""

from collections.abc import Callable
from functools import partial
from statistics import median

from gputopo.launch.jobs.budget import TimeBudget
from gputopo.values.run.noise import lead
from gputopo.values.run.plan import Candidate, Plan, Settled, TimedRun, mode_of

SAME = 0.01  # of images/sec: the rounds end if more of them could gain at most this


def contenders(plan: Plan, count: int) -> tuple[Candidate, ...]:
    """Return the choice and the best candidates of the plan in other modes, one for each mode.

    At most `count`, in the plan's order. Candidates with other GPUs, or with the variables on another GPU,
    have the same mode.
    """
    choice = plan.choice
    by_mode = {mode_of(choice): choice}
    for other in plan.candidates:
        trains_alike = (other.variable_update == "independent") == (choice.variable_update == "independent")
        if trains_alike and len(other.gpus) == len(choice.gpus):
            by_mode.setdefault(mode_of(other), other)
    return tuple(by_mode.values())[:count]


class Race:
    """The runs of some candidates, by their positions. They are kept however the race ends."""

    def __init__(self, count: int) -> None:
        self.runs: list[list[TimedRun]] = [[] for _ in range(count)]
        self.racing = list(range(count))
        self.failures: dict[int, str] = {}
        self.settled: Settled = "stopped"

    @property
    def leader(self) -> int | None:
        """The fastest remaining candidate by the median of its rounds; None if none has run."""
        speeds = {
            place: median(run.images_per_sec for run in self.runs[place])
            for place in self.racing
            if self.runs[place]
        }
        return max(speeds, key=speeds.__getitem__, default=None)

    def run(self, measure: Callable[[int, int], TimedRun | str], budget: TimeBudget) -> None:
        """Measure in rounds until the race is settled. An error of `measure` ends it; earlier runs are kept.

        `measure`: runs the candidate at a position for a round, counted from 1; returns a text if the run
        failed. The first run starts if the budget is not used up, a later one only if a run as long as the
        longest so far fits in.
        """
        rounds = 0
        while True:
            rounds += 1
            for place in self.racing[:: 1 if rounds % 2 else -1]:
                if not budget.fits():
                    self.settled = "time"
                    return
                outcome = budget.timed(partial(measure, place, rounds))
                if isinstance(outcome, str):
                    self.failures[place] = outcome
                    self.racing.remove(place)
                else:
                    self.runs[place].append(outcome)
            if self._is_settled():
                return

    def _is_settled(self) -> bool:
        leader = self.leader
        if leader is None or len(self.racing) == 1:
            self.settled = "failed"
            return True
        leads = {place: lead(self.runs[leader], self.runs[place]) for place in self.racing if place != leader}
        near = [place for place, (ahead, noise) in leads.items() if ahead <= noise]
        self.racing = [place for place in self.racing if place == leader or place in near]
        if not near:
            self.settled = "lead"
        elif all(sum(leads[place]) < SAME for place in near):
            self.settled = "same"
        return self.settled != "stopped"
