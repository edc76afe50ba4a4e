"""Thresholds and sentences of verdicts."""

import math

from gputopo.values.run.events import NETWORK, Device
from gputopo.values.run.verdict import CONFIDENCE, Verdict
from gputopo.values.words import at_most, percent

COMPUTE, WEIGHTS = "compute", "weights"  # parts of a step that are compared
# Half of the chance of error is for the run as a whole, half for its parts.
WHOLE_SHARE = 0.5
# Probability that a difference of the size of the resolution is reported.
POWER = 0.95
# Towers that do the same work on idle CPU devices differ steadily by up to 0.14 ms: the clock is read where
# tower 0 computes, and threads of other towers must be scheduled in between.
MARKS_OFFSET_S = 0.15e-3
# Under load it is more. So at steps of a few milliseconds, 5% is thread scheduling.
MARKS_RESOLUTION_S = 0.5e-3
# A slower first part is a warm-up of the device (clocks rise, caches fill) if it is not longer than this
# share of the rest. Not measured.
WARMUP_SHARE = 0.25


def sure(low: float) -> str:
    """Return that a difference is proven: "at least 4.1%, 99.9% confidence"."""
    return f"at least {at_least(low)}%, {100 * CONFIDENCE:g}% confidence"


def when(verdict: Verdict, throughout: bool = True) -> str:
    """Return in which part of the run a device was slow. `throughout`: without fast parts in between."""
    first, last = verdict.from_step, verdict.to_step
    if first is not None and last is not None:
        return f" {'from about step' if throughout else 'in parts of steps'} {first:,} to {last:,}"
    if not throughout:
        return " in some parts of the run"
    if first is not None:
        return f" since about step {first:,}"
    return "" if last is None else f" until about step {last:,}"


def over(device: Device) -> str:
    """Return that a device's weights come from another host; empty if they do not."""
    return " from the network" if device.hop_to_variables == NETWORK else ""


def slower_at_most(verdict: Verdict) -> str:
    """Return the bound in words: "at most 9.9% slower than its peers (99.9% confidence)"."""
    bound, under = at_most(max(verdict.percent_under_high or 0.0, 0.1)), verdict.percent_under or 0.0
    measured = "" if under < 1 else f"; {percent(under)}% in these steps"
    return f"at most {bound}% slower than its peers ({100 * CONFIDENCE:g}% confidence{measured})"


def at_least(value: float) -> str:
    """Write a lower bound, rounded down."""
    return f"{math.floor(value)}" if value >= 10 else f"{math.floor(value * 10) / 10:.1f}"
