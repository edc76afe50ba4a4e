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
    others = [one for one in plan.candidates if len(one.gpus) == len(choice.gpus)]
    found = {mode_of(choice): choice}
    for one in others:
        if (one.variable_update == "independent") == (choice.variable_update == "independent"):
            found.setdefault(mode_of(one), one)
    return tuple(found.values())[:count]


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
        ran = [one for one in self.racing if self.runs[one]]
        return max(ran, key=lambda one: median(run.images_per_sec for run in self.runs[one]), default=None)

    def run(self, measure: Callable[[int, int], TimedRun | str], budget: TimeBudget) -> None:
        """Measure in rounds until the race is settled. An error of `measure` ends it; earlier runs are kept.

        `measure`: runs the candidate at a position for a round, counted from 1; returns a text if the run
        failed. The first run starts if the budget is not used up, a later one only if a run as long as the
        longest so far fits in.
        """
        rounds = 0
        while True:
            rounds += 1
            for one in self.racing[:: 1 if rounds % 2 else -1]:
                if not budget.fits():
                    self.settled = "time"
                    return
                found = budget.timed(partial(measure, one, rounds))
                if isinstance(found, str):
                    self.failures[one] = found
                    self.racing.remove(one)
                else:
                    self.runs[one].append(found)
            if self._is_settled():
                return

    def _is_settled(self) -> bool:
        leader = self.leader
        if leader is None or len(self.racing) == 1:
            self.settled = "failed"
            return True
        leads = {one: lead(self.runs[leader], self.runs[one]) for one in self.racing if one != leader}
        self.racing = [one for one in self.racing if one not in leads or leads[one][0] <= leads[one][1]]
        if len(self.racing) == 1:
            self.settled = "lead"
        elif all(sum(leads[one]) < SAME for one in self.racing if one != leader):
            self.settled = "same"
        return self.settled != "stopped"
