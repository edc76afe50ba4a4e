"""How numbers and dates are written in sentences."""

import math
from datetime import UTC, datetime


def date_in_words(seconds: float) -> str:
    """Return seconds since the epoch as `2026-11-20 16:02 UTC`."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "unknown date"


def percent(value: float) -> str:
    """Write a percentage: with a decimal below 10."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def at_least(value: float) -> str:
    """Write a lower bound, rounded down."""
    return f"{math.floor(value)}" if value >= 10 else f"{math.floor(value * 10) / 10:.1f}"


def at_most(value: float) -> str:
    """Write an upper bound, rounded up."""
    return f"{math.ceil(value)}" if value >= 10 else f"{math.ceil(value * 10) / 10:.1f}"


def speed(images_per_sec: float) -> str:
    """Write images/sec: with a decimal below 100."""
    return f"{images_per_sec:,.0f}" if images_per_sec >= 100 else f"{images_per_sec:.1f}"
