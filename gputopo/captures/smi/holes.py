"""Where lines of one GPU are missing in `nvidia-smi -q` text, by its sections and those of the other GPUs.

Every GPU of an output has the same sections in the same order, whatever they hold. After a hole the lines may
be another GPU's, whose own first line was lost.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_OPTIONAL = ("mig device", "mig devices")  # only on GPUs that are split
_WHOLE = "product name"  # the first fact of all, where no part was asked for (`-d`)
# In such an output of any driver, in this order: for a GPU without another one to compare with.
_LANDMARKS = (_WHOLE, "pci", "performance state", "utilization", "temperature", "clocks", "max clocks")
_LAST = ("processes", "compute processes")


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
    least = 1  # sections that are missing
    if not peers and _WHOLE in mine:
        mine = [name for name in mine if name in _LANDMARKS or name in _LAST]
        peers, least = [[*_LANDMARKS, name] for name in _LAST], 2  # one may have been cut out by hand
    seen: set[str] = set()
    for above, below in pairwise(["", *mine, ""]):
        if below and below in seen:
            return Hole(above, below)
        seen.add(below)
        if _missing(above, below, peers) >= (least if below else 1):
            return Hole(above, below)
    return None


def _in_order(lines: Sequence[Place]) -> list[str]:
    names: list[str] = []
    for section, begins in lines:
        if section and section not in _OPTIONAL and (begins or names[-1:] != [section]):
            names.append(section)
    return names


def _missing(above: str, below: str, peers: Sequence[Sequence[str]]) -> int:
    """Return how many sections the others have at least between these two."""
    places = [["", *one, ""] for one in peers]
    between = (one[one.index(above) + 1 :] for one in places if above in one)
    return min((rest.index(below) for rest in between if below in rest), default=0)
