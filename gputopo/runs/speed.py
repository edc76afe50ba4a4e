"""Speed of a run: throughput by the formulas of tf_cnn_benchmarks, length of the warm-up, sums of its steps.

A run is steady after a warm-up of k steps where the medians of the first few of the others, of their first
half and of their second half agree, and the robust slope (H. Theil, 1950; P. K. Sen, 1968) is small. What
differs by less than `LEVEL_SHARE`, or by less than the noise of the steps explains, agrees. Medians ignore
single slow steps, so regular ones (a checkpoint every hundredth step) do not count. A ramp slower than the
noise is not detected: more steps would be needed.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from gputopo.runs.bounded import Blocks, Thinned
from gputopo.runs.verdict.bounds import error_of_ratio
from gputopo.values.run.events import Event, Restarted, Step, WarmupDone
from gputopo.values.run.result import Throughput

# Makes the median absolute deviation of normal noise equal to its standard deviation: 1 / Phi^-1(3/4).
MAD_TO_SIGMA = 1.4826
# Speeds that are stored for median and jitter: beyond, they are those of evenly spread steps. Ours.
KEPT_SPEEDS = 10_000


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


# A smaller difference is no warm-up; runs on an idle machine repeat within 1 to 2 %. Ours.
LEVEL_SHARE = 0.05
# Fewer steps than this hide a slope in their noise; more make short runs impossible to judge. Ours.
MIN_STEPS = 20
HEAD_STEPS = 5  # the median of five ignores two outliers
# A slope is looked at over so many steps: a slow ramp must not pass because few steps were seen. Ours.
HORIZON_STEPS = 50
# Limit of the search, which takes quadratic time; a warm-up that is longer is a drift.
MAX_STEPS = 600
# Blocks whose medians the slope is taken of, so that its cost does not grow with the run.
MAX_BLOCKS = 30
# A median of n values of normal noise scatters by this times sigma / sqrt(n).
MEDIAN_EFFICIENCY = 1.2533
SIGMAS = 3.0  # beyond this a difference is no noise


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run became steady. `steps`, `seconds`: length of the warm-up before; None: it did not."""

    steps: int | None = None
    seconds: float | None = None
    says: str  # the same in words, or why it is unknown


def steady_from(seconds: Sequence[float]) -> int | None:
    """Return the length of the shortest prefix after which the step times (in order) are steady.

    None where there is none: too few steps, or they still change. At least `MIN_STEPS` steps follow it.
    Only the first `MAX_STEPS` are looked at.
    """
    times = list(seconds[:MAX_STEPS])
    for prefix in range(len(times) - MIN_STEPS + 1):
        if _is_steady(times[prefix:]):
            return _past_outliers(times, prefix)
    return None


def steady(seconds: Sequence[float]) -> Steady:
    """Return where a run became steady, with the time until then, in words too."""
    if len(seconds) < MIN_STEPS:
        return Steady(says=f"not determined: needs {MIN_STEPS} steps, has {len(seconds)}")
    found = steady_from(seconds)
    if found is None:
        looked_at = min(len(seconds), MAX_STEPS)
        return Steady(says=f"not found: the step times still change within {looked_at} steps")
    took = sum(seconds[:found])
    counted = f"{found} step{'' if found == 1 else 's'}, {took:.2f} s"
    return Steady(steps=found, seconds=took, says=f"after {counted}" if found else "from the first step")


def _is_steady(times: Sequence[float]) -> bool:
    middle = len(times) // 2
    later = times[middle:]
    level = median(later)
    sigma = MAD_TO_SIGMA * median(abs(time - level) for time in later)
    if not _agree(median(times[:HEAD_STEPS]), level, sigma, HEAD_STEPS):
        return False
    if not _agree(median(times[:middle]), level, sigma, middle):
        return False
    blocks = _blocks(times)
    change = abs(_slope(blocks)) * len(blocks) / len(times) * HORIZON_STEPS
    # The slope of n values of noise scatters by sigma * sqrt(12 / n^3).
    noise: float = SIGMAS * sigma * (12 / len(times) ** 3) ** 0.5 * HORIZON_STEPS
    return change <= max(LEVEL_SHARE * level, noise)


def _agree(found: float, level: float, sigma: float, count: int) -> bool:
    noise: float = SIGMAS * MEDIAN_EFFICIENCY * sigma / count**0.5
    return abs(found - level) <= max(LEVEL_SHARE * level, noise)


def _blocks(times: Sequence[float]) -> list[float]:
    """Return the medians of at most `MAX_BLOCKS` blocks of the same length."""
    size = -(-len(times) // MAX_BLOCKS)
    whole = len(times) // size * size  # a short last block would weigh as much as the others
    return [median(times[begin : begin + size]) for begin in range(0, whole, size)]


def _slope(values: Sequence[float]) -> float:
    """Return the median slope of all pairs, per value."""
    count = len(values)
    return median((values[b] - values[a]) / (b - a) for a in range(count) for b in range(a + 1, count))


def _past_outliers(times: Sequence[float], prefix: int) -> int:
    """Return the prefix extended past the last outliers of the warm-up, which the head's median ignores."""
    rest = times[prefix:]
    level = median(rest)
    sigma = MAD_TO_SIGMA * median(abs(time - level) for time in rest)
    outliers = 0
    for number, time in enumerate(rest[: HEAD_STEPS // 2], 1):
        if abs(time - level) > max(LEVEL_SHARE * level, SIGMAS * sigma):
            outliers = number
    return prefix + outliers


# Steps whose marks are stored for the medians of the devices: the median of so many has a fortieth of the
# noise of one. With marks of 16 towers they take 7 MB. Ours.
KEPT_STEPS = 2000


class CountedSteps:
    """First and last step after the warm-up, some to take medians of, and how long they waited for input.

    `lost_loss`: the first step, warm-up included, whose loss is no number.
    """

    def __init__(self) -> None:
        self.first: Step | None = None
        self.last: Step | None = None
        self.lost_loss: Step | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the steps so far, but for the first one: those that follow are taken by other devices."""
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
        if step.waited_s is not None:
            self._measured_s += step.seconds
            self._waited_s += step.waited_s
        self._kept.add(step)

    @property
    def kept(self) -> list[Step]:
        """Return all counted steps of a short run, evenly spread ones of a long one; always the first."""
        return self._kept.items

    def fields(self) -> dict[str, Any]:
        """Return those fields of `gputopo.values.run.result.Result` that follow from these steps alone."""
        found = steady(self._first_seconds)
        first, last = self.first, self.last
        return {
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
