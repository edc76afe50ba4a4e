"""How far predicted images/sec are from measured ones, on machines that were not used for the fit.

The factors hold for 80 % of published figures: `python -m tests.fits.ranges` prints them. For one GPU see
`gputopo.prediction.one_gpu_speeds`.
"""

from collections.abc import Sequence
from math import exp, hypot, log

from gputopo.prediction.one_gpu_speeds import FACTOR, Speed

EXCHANGE = 1.21  # of several GPUs, if the speed of one is known
EXCHANGE_MEASURED = 1.1  # the same if steps of this machine were measured
WIDEST = 2.0  # high over low: a wider range is given in words


def range_of(speeds: Sequence[Speed], *, exchanges: bool, measured: bool = False) -> tuple[float, float]:
    """Return the range over the prediction for GPUs with these speeds. `measured`: their steps were measured.

    Errors of one GPU and of the exchange are independent, so their logarithms add up as squares.
    """
    of_one = max(FACTOR[speed.basis] for speed in speeds)
    of_exchange = 1.0 if not exchanges else EXCHANGE_MEASURED if measured else EXCHANGE
    factor = exp(hypot(log(of_one), log(of_exchange)))
    return 1 / factor, factor


def is_number(low: float, high: float) -> bool:
    """Return whether a range is narrow enough to be shown as numbers."""
    return high / low <= WIDEST
