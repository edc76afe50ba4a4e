"""Which placements are measured before a run, and when the fastest of them is known. Pure.

The candidates run in rounds, each once in a round, in alternating order, so that a drift of clocks or of the
load of the host meets all of them. Two are compared by the logarithms of their speeds' ratios, one for each
round that both have run:

    lead  = median of these
    noise = t * deviation / sqrt(rounds)

`t` is Student's quantile for 97.5 %; the deviation is the standard deviation, from FOR_MAD rounds on the
scaled median absolute deviation, which one disturbed round cannot move. It is never below the noise within
the runs, so that two rounds that agree by chance settle nothing. A candidate whose lead on another exceeds
the noise ends that one's runs. All end where one is left, where lead + noise is below SAME for all that are
left, or where the time does not suffice for the next run.
"""

from collections.abc import Callable
from functools import partial
from statistics import median

from gputopo.values.run.budget import TimeBudget
from gputopo.values.run.noise import lead
from gputopo.values.run.plan import Candidate, Plan, Settled, TimedRun, mode_of

SAME = 0.01  # of images/sec: what further rounds could gain at most where they are no longer made


def contenders(plan: Plan, count: int) -> tuple[Candidate, ...]:
    """Return the choice and the best candidates of the plan that differ from it and one another in mode.

    Up to `count`, in the plan's order. Other GPUs, as many, and which of them has the variables make no other
    mode.
    """
    choice = plan.choice
    others = [one for one in plan.candidates if len(one.gpus) == len(choice.gpus)]
    found = {mode_of(choice): choice}
    for one in others:
        if (one.variable_update == "independent") == (choice.variable_update == "independent"):
            found.setdefault(mode_of(one), one)
    return tuple(found.values())[:count]


class Race:
    """The runs of some candidates, by their places. It holds what was measured, however it ends."""

    def __init__(self, count: int) -> None:
        self.runs: list[list[TimedRun]] = [[] for _ in range(count)]
        self.racing = list(range(count))
        self.failures: dict[int, str] = {}
        self.settled: Settled = "stopped"

    @property
    def leader(self) -> int | None:
        """The fastest of those that are left: by the median of its rounds, else the first; None: none ran."""
        ran = [one for one in self.racing if self.runs[one]]
        return max(ran, key=lambda one: median(run.images_per_sec for run in self.runs[one]), default=None)

    def run(self, measure: Callable[[int, int], TimedRun | str], budget: TimeBudget) -> None:
        """Measure in rounds until it is settled. What `measure` raises ends it; what was measured stays.

        `measure`: runs the candidate of a place for a round, from 1; a text is why it failed. The first round
        is made as long as the budget is not used up, later runs only if one like the longest so far fits in.
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
