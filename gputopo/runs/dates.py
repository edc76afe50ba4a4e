"""Points in time as people read them."""

from datetime import UTC, datetime


def date_in_words(seconds: float) -> str:
    """Give seconds since the epoch as `2026-11-20 16:02 UTC`."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "a day that cannot be"
