"""How numbers and dates are written in sentences."""

import math
from collections.abc import Sequence
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


def at_most(value: float) -> str:
    """Write an upper bound, rounded up."""
    return f"{math.ceil(value)}" if value >= 10 else f"{math.ceil(value * 10) / 10:.1f}"


def speed(images_per_sec: float) -> str:
    """Write images/sec: with a decimal below 100."""
    return f"{images_per_sec:,.0f}" if images_per_sec >= 100 else f"{images_per_sec:.1f}"


def listed(words: Sequence[str], limit: int = 3) -> str:
    """Return the first words of a list and how many more there are."""
    more = len(words) - limit
    return "; ".join([*words[:limit], *([f"and {more} more"] if more > 0 else [])])


def figure(images_per_sec: float | None) -> str:
    """Return images/sec with at least four figures: `38.27`, `4,618`."""
    value = images_per_sec or 0.0
    return f"{value:,.4g}" if value < 9999.5 else f"{value:,.0f}"
