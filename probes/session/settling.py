"""Which repeats of a number were taken during clock ramp-up, and how many of the others agree."""

from collections.abc import Sequence
from statistics import median

from gputopo.values.bandwidth import AGREE_SHARE

# A repeat that is this many median deviations from the median is not noise: 3 sigma, 1.4826 * 3. Not
# measured.
DEVIATIONS = 4.5
# One high value among low ones may be a clock error; two that agree are not.
FEWEST_LATER = 2


def count_ramp_up(values: Sequence[float]) -> int:
    """Return how many leading repeats were taken during clock ramp-up.

    These are well below the value on which all later ones agree. `values`: in the order they were taken;
    higher is faster.
    """
    for first in range(len(values) - FEWEST_LATER, 0, -1):
        later = values[first:]
        middle = median(later)
        deviation = median(abs(value - middle) for value in later)
        floor = middle - max(AGREE_SHARE * middle, DEVIATIONS * deviation)
        if all(value < floor for value in values[:first]):
            return first
    return 0


def count_agreeing(values: Sequence[float]) -> int:
    """Return how many repeats after clock ramp-up are within `AGREE_SHARE` of their median."""
    settled = values[count_ramp_up(values) :]
    middle = median(settled) if settled else 0.0
    return sum(abs(value - middle) <= AGREE_SHARE * middle for value in settled)
