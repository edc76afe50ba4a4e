"""How far predicted images/sec are from measured ones, on machines that were not used for the fit.

The factors hold for 80 % of published figures: `python -m tests.fits.ranges` prints them.
"""

from collections.abc import Sequence
from math import exp, hypot, log

from gputopo.prediction import Speed

EXCHANGE = 1.21  # of several GPUs, if the speed of one is known
EXCHANGE_MEASURED = 1.1  # the same if steps of this machine were measured
WIDEST = 2.0  # high over low: a wider range is given in words


def range_factor(speeds: Sequence[Speed], *, exchanges: bool, measured: bool = False) -> float:
    """Return the factor between the predicted speed of these GPUs and both ends of its range.

    `exchanges`: whether gradients or weights are copied. `measured`: whether steps of the machine were.
    """
    factor = max(speed.factor for speed in speeds)
    if not exchanges:
        return factor
    return combined(factor, EXCHANGE_MEASURED if measured else EXCHANGE)


def combined(factor: float, other: float) -> float:
    """Return the factor of two independent errors: their logarithms add up as squares."""
    return exp(hypot(log(factor), log(other)))


def is_number(factor: float) -> bool:
    """Return whether a range is narrow enough to be shown as numbers."""
    return factor**2 <= WIDEST
