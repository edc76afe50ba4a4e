"""What the steps of a run add up to, step by step, in memory that does not grow with the run."""

from typing import Any

from gputopo.runs.speed.steadiness import MAX_STEPS, steady
from gputopo.runs.thinned import Thinned
from gputopo.values.run.events import Step

# Steps whose marks are stored for the medians of the devices: the median of so many has a fortieth of the
# noise of one. With marks of 16 towers they take 7 MB. Ours.
KEPT_STEPS = 2000


class CountedSteps:
    """Sums over the steps after the warm-up, the first and the last of them, and some to take medians of.

    `lost_loss`: the first step, warm-up included, whose loss is no number.
    """

    def __init__(self) -> None:
        self.first: Step | None = None
        self.last: Step | None = None
        self.lost_loss: Step | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the steps so far, but for the first one: those that follow are taken by other devices."""
        self.images = 0
        self.seconds = 0.0
        self.in_warmup = 0
        self._kept: Thinned[Step] = Thinned(KEPT_STEPS)
        self._first_seconds: list[float] = []  # of all steps: what steadiness looks at
        self._measured_s = self._waited_s = 0.0  # of steps whose waiting for the input is known

    def add(self, step: Step) -> None:
        """Add the next step of the run."""
        if len(self._first_seconds) < MAX_STEPS:
            self._first_seconds.append(step.seconds)
        if step.loss is None:
            self.lost_loss = self.lost_loss or step
        if step.warmup:
            self.in_warmup += 1
            return
        self.first = self.first or step
        self.last = step
        self.images += step.images
        self.seconds += step.seconds
        if step.waited_s is not None:
            self._measured_s += step.seconds
            self._waited_s += step.waited_s
        self._kept.add(step)

    @property
    def number(self) -> int:
        """How many steps were counted."""
        return self._kept.seen

    @property
    def kept(self) -> list[Step]:
        """Return all counted steps of a short run, evenly spread ones of a long one; always the first."""
        return self._kept.items

    def fields(self) -> dict[str, Any]:
        """Return those fields of `gputopo.values.run.result.Result` that follow from these steps alone."""
        found = steady(self._first_seconds)
        first, last = self.first, self.last
        return {
            "steps": self.number,
            "images": self.images,
            "counted_s": self.seconds if self.number else None,
            "input_waited_share": self._waited_share(),
            "steady_steps": found.steps,
            "steady_s": found.seconds,
            "steady": found.says,
            "first_loss": first.loss if first else None,
            "last_loss": last.loss if last else None,
            "last_top1": last.top1 if last else None,
            "last_top5": last.top5 if last else None,
        }

    def _waited_share(self) -> float | None:
        """Return the share of the steps' time, 0 to 1, in which the devices waited for the input."""
        return min(max(self._waited_s / self._measured_s, 0.0), 1.0) if self._measured_s > 0 else None
