"""The counted steps of a run: sums over all of them, and a sample for medians."""

from typing import Any

from gputopo.values.run.bounded import Thinned
from gputopo.values.run.events import Step

# Steps that are kept for the medians of the devices. Not measured; chosen because the median of this many has
# a fortieth of the noise of one step, and with marks of 16 towers they take 7 MB.
KEPT_STEPS = 2000


class CountedSteps:
    """First and last step after the warm-up, a sample of steps for medians, and the wait for input.

    `lost_loss`: the first step, warm-up included, whose loss is not a number.
    """

    def __init__(self) -> None:
        self.first: Step | None = None
        self.last: Step | None = None
        self.lost_loss: Step | None = None
        self.in_warmup = 0
        self._kept: Thinned[Step] = Thinned(KEPT_STEPS)
        self._measured_s = self._waited_s = 0.0  # over the steps whose wait for the input is known

    def add(self, step: Step) -> None:
        """Add the next step of the run."""
        if step.loss is None:
            self.lost_loss = self.lost_loss or step
        if step.warmup:
            self.in_warmup += 1
            return
        self.first = self.first or step
        self.last = step
        if step.waited_s is not None:
            self._measured_s += step.seconds
            self._waited_s += step.waited_s
        self._kept.add(step)

    @property
    def kept(self) -> list[Step]:
        """All counted steps of a short run, or evenly spread ones of a long run; always with the first."""
        return self._kept.items

    def fields(self) -> dict[str, Any]:
        """Return the fields of `gputopo.values.run.result.Result` that depend only on these steps."""
        first, last = self.first, self.last
        waited_share = self._waited_s / self._measured_s if self._measured_s > 0 else None
        return {
            "input_waited_share": None if waited_share is None else min(max(waited_share, 0.0), 1.0),
            "first_loss": first.loss if first else None,
            "last_loss": last.loss if last else None,
            "last_top1": last.top1 if last else None,
            "last_top5": last.top5 if last else None,
        }
