"""Where a run becomes steady: the shortest warm-up after which step times keep one level. Pure.

The rule, for the steps that follow a warm-up of k: the medians of the first few of them, of their first half
and of their second half agree, and the robust slope (H. Theil, 1950; P. K. Sen, 1968) is none that would
matter. What differs by less than `LEVEL_SHARE`, or by less than the noise of the steps explains, agrees.
Medians ignore single slow steps, so regular ones (a checkpoint every hundredth step) do not count. A ramp
slower than the noise is not detected: more steps would be needed.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from gputopo.runs.speed.throughput import MAD_TO_SIGMA

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
    """Where a run became steady. `steps`, `seconds`: length of the warm-up before; None: it did not.

    `says`: the same in words, or why it is unknown.
    """

    steps: int | None = None
    seconds: float | None = None
    says: str


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
