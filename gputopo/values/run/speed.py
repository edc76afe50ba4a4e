"""The speed of a run so far, by the formulas of tf_cnn_benchmarks, and the time limit of counting."""

import math
from statistics import median, pstdev

from gputopo.values.run.bounded import Blocks, Thinned
from gputopo.values.run.events import Event, Step, WarmupDone
from gputopo.values.run.noise import MAD_TO_SIGMA, error_of_ratio
from gputopo.values.run.result import Throughput

# Maximum number of speeds for median and jitter; of more, evenly spread steps are used. Not measured.
KEPT_SPEEDS = 10_000
# Counting to a relative error: minimum steps and seconds, and maximum seconds until there are this many
# steps. Not measured; chosen because a verdict on two devices needs 11 steps, the host is sampled once a
# second, noise that lasts for a second does not show in less, and a minute is a long wait for 12 steps.
MIN_COUNTED, MIN_COUNTED_S, LONGEST_S = 12, 2.0, 60.0


def time_left_s(budget_s: float, max_error: float | None, steps: int, used_s: float) -> float:
    """Return the maximum remaining seconds of counting, after `steps` counted steps in `used_s` seconds.

    `budget_s`, `max_error`: `time_budget_s` and `max_error` of the run's spec.
    """
    if max_error is None or not 0 < steps < MIN_COUNTED:
        return budget_s - used_s
    return min(LONGEST_S - used_s, max(budget_s - used_s, (MIN_COUNTED - steps) * used_s / steps))


class RunningThroughput:
    """The speed of a run so far. Counts the steps after the warm-up at a constant cost per event.

    If hosts are lost it starts again, because other devices have another speed.

    `mean` and `now` are images per second of all devices together, None before the first counted step.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.steps = 0
        self.images = 0
        self.now: float | None = None
        self.seconds = 0.0  # sum of the step times
        self._began_s: float | None = None  # start of the first counted step, since the epoch
        self._ended_s = 0.0
        self._speeds: Thinned[float] = Thinned(KEPT_SPEEDS)
        self._blocks = Blocks()  # columns: seconds, images

    def add(self, event: Event) -> None:
        """Add an event of the run. The warm-up, and most events other than steps, change nothing."""
        if isinstance(event, WarmupDone) and not self.steps:
            self._began_s = event.time_s
        if not isinstance(event, Step) or event.warmup:
            return
        if self._began_s is None:
            self._began_s = event.time_s - event.seconds
        self._ended_s = event.time_s
        self.steps += 1
        self.images += event.images
        self.seconds += event.seconds
        self._blocks.add(event.step, (event.seconds, event.images))
        if event.seconds > 0:
            self.now = event.images / event.seconds
            self._speeds.add(self.now)

    @property
    def mean(self) -> float | None:
        """Images per step divided by the mean step time."""
        return self.images / self.seconds if self.seconds > 0 else None

    @property
    def uncertainty(self) -> float:
        """Standard error of the mean: of images over time, by blocks of steps; 0 for fewer than two."""
        return (self.mean or 0.0) * error_of_ratio(self._blocks.means(0), self._blocks.means(1))

    def uncertainty_of_independent_steps(self) -> float:
        """Return the uncertainty of tf_cnn_benchmarks: deviation of the speeds / sqrt(steps); or 0."""
        return pstdev(self._speeds.items) / math.sqrt(self.steps) if self._speeds.items else 0.0

    def is_known_to(self, error: float) -> bool:
        """Return whether the speed's relative standard error is at most `error`, with enough steps."""
        is_enough = self.steps >= MIN_COUNTED and self.seconds >= MIN_COUNTED_S
        return is_enough and self.uncertainty <= error * (self.mean or 0.0)

    @property
    def total(self) -> float | None:
        """All counted images divided by the wall time of the counted steps."""
        if self._began_s is None:
            return None
        # If the wall time is less than the sum of the steps, the system's clock was set back meanwhile.
        wall_s = max(self._ended_s - self._began_s, self.seconds)
        return self.images / wall_s if wall_s > 0 else None

    @property
    def window(self) -> tuple[float, float] | None:
        """Start and end of the counted steps, seconds since the epoch; None before the first one."""
        return (self._began_s, self._ended_s) if self.steps and self._began_s is not None else None

    def jitter(self) -> float:
        """Return the scaled median absolute deviation of the speeds, 0 without speeds; sorts them."""
        speeds = self._speeds.items
        if not speeds:
            return 0.0
        middle = median(speeds)
        return MAD_TO_SIGMA * median(abs(speed - middle) for speed in speeds)

    def throughput(self) -> Throughput | None:
        """Return all five figures, or None before the first counted step with a duration."""
        mean, total = self.mean, self.total
        if mean is None or total is None or not self._speeds.seen:
            return None
        return Throughput(
            mean=mean,
            uncertainty=self.uncertainty,
            jitter=self.jitter(),
            median=median(self._speeds.items),
            total=total,
        )
