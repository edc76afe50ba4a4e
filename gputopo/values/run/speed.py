"""The speed of a run so far, by the formulas of tf_cnn_benchmarks, and how long counting takes at most."""

import math
from statistics import median, pstdev

from gputopo.values.run.bounded import Blocks, Thinned
from gputopo.values.run.events import Event, Restarted, Step, WarmupDone
from gputopo.values.run.noise import MAD_TO_SIGMA, error_of_ratio
from gputopo.values.run.result import Throughput

# Speeds that are stored for median and jitter: beyond, they are those of evenly spread steps. Ours.
KEPT_SPEEDS = 10_000
# Counting by a relative error: steps and seconds at least, and seconds at most until there are as many steps.
# A verdict on two devices needs 11 steps, the host is sampled once a second, and noise that lasts for a
# second does not show in less. Nobody waits longer than a minute for 12 steps. Ours.
MIN_COUNTED, MIN_COUNTED_S, LONGEST_S = 12, 2.0, 60.0


def time_left_s(budget_s: float, max_error: float | None, steps: int, used_s: float) -> float:
    """Return the seconds that counting takes at most, after these counted steps in so many seconds.

    `budget_s`, `max_error`: `time_budget_s` and `max_error` of the run's spec.
    """
    if max_error is None or not 0 < steps < MIN_COUNTED:
        return budget_s - used_s
    return min(LONGEST_S - used_s, max(budget_s - used_s, (MIN_COUNTED - steps) * used_s / steps))


class RunningThroughput:
    """The speed of a run so far. Counts the steps after the warm-up; each event costs the same few additions.

    Where hosts were lost it begins anew: other devices have another speed.

    `mean` and `now` are images per second of all devices together, None before the first counted step.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.steps = 0
        self.images = 0
        self.now: float | None = None
        self.seconds = 0.0  # sum of the step times
        self._began_s: float | None = None  # epoch, begin of the first counted step
        self._ended_s = 0.0
        self._speeds: Thinned[float] = Thinned(KEPT_SPEEDS)
        self._blocks = Blocks()  # columns: seconds, images

    def add(self, event: Event) -> None:
        """Add an event of the run. The warm-up, and most events other than steps, change nothing."""
        if isinstance(event, Restarted) and event.fewer is not None:
            self._begin()
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
        """Images of a step by the mean step time."""
        return self.images / self.seconds if self.seconds > 0 else None

    @property
    def uncertainty(self) -> float:
        """Standard error of the mean: of images over time, by blocks of steps; 0 of fewer than two."""
        return (self.mean or 0.0) * error_of_ratio(self._blocks.means(0), self._blocks.means(1))

    def uncertainty_of_independent_steps(self) -> float:
        """Return the uncertainty of tf_cnn_benchmarks: deviation of the speeds / sqrt(steps); 0 of none."""
        return pstdev(self._speeds.items) / math.sqrt(self.steps) if self._speeds.items else 0.0

    def is_known_to(self, error: float) -> bool:
        """Whether the standard error of the speed is at most this share of it, by enough steps and time."""
        is_enough = self.steps >= MIN_COUNTED and self.seconds >= MIN_COUNTED_S
        return is_enough and self.uncertainty <= error * (self.mean or 0.0)

    @property
    def total(self) -> float | None:
        """All counted images by the wall time of the counted steps."""
        if self._began_s is None:
            return None
        # Less wall time than the steps took together means that the system's clock was set back meanwhile.
        wall_s = max(self._ended_s - self._began_s, self.seconds)
        return self.images / wall_s if wall_s > 0 else None

    @property
    def window(self) -> tuple[float, float] | None:
        """Begin and end of the counted steps, seconds since the epoch; None before the first one."""
        return (self._began_s, self._ended_s) if self.steps and self._began_s is not None else None

    def jitter(self) -> float:
        """Return the scaled median absolute deviation of the speeds, 0 of none; sorts the stored ones."""
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
