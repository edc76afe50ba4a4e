"""Names with numbers in their natural order."""

import re


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]
