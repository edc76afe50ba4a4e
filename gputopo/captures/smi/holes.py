"""Where lines of one GPU are missing in `nvidia-smi -q` text, by its sections and those of the other GPUs.

Every GPU of an output has the same sections in the same order, whatever they hold. After a hole the lines may
be another GPU's, whose own first line was lost.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_OPTIONAL = ("mig device", "mig devices")  # only on GPUs that are split
_WHOLE = "product name"  # the first fact of all, where no part was asked for (`-d`)
_LAST = ("processes", "compute processes")  # in such an output of any driver


class Hole(NamedTuple):
    """Lines that are missing. `before`: the last section above them, `after`: the first below, else ""."""

    before: str
    after: str


class Place(NamedTuple):
    """The section of a line, "" if it is not known, and whether the line begins it."""

    section: str
    begins: bool = True


def first_hole(lines: Sequence[Place], others: Sequence[Sequence[Place]]) -> Hole | None:
    """Return the first hole in the sections of a GPU; `others`: the lines of other GPUs."""
    mine = _in_order(lines)
    peers = [_in_order(one) for one in others]
    seen: set[str] = set()
    for above, below in pairwise(["", *mine, ""]):
        if below and below in seen:
            return Hole(above, below)
        seen.add(below)
        if _is_hole(above, below, peers):
            return Hole(above, below)
    if not peers and _WHOLE in mine and not any(name in mine for name in _LAST):
        return Hole(mine[-1], "")
    return None


def _in_order(lines: Sequence[Place]) -> list[str]:
    names: list[str] = []
    for section, begins in lines:
        if section and section not in _OPTIONAL and (begins or names[-1:] != [section]):
            names.append(section)
    return names


def _is_hole(above: str, below: str, peers: Sequence[Sequence[str]]) -> bool:
    """Return whether the others have sections between these two, and none has them side by side."""
    places = [["", *one, ""] for one in peers]
    beside = any((above, below) in pairwise(one) for one in places)
    apart = any(above in one and (below in one[one.index(above) + 1 :]) for one in places)
    return apart and not beside
