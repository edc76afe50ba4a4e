"""What the parsers of bandwidth texts give: a machine, and which lines of the text they understood."""

from collections.abc import Callable
from dataclasses import dataclass

from gputopo.captures.bandwidth.matrix_rows import plain
from gputopo.values.machine import Machine


@dataclass(frozen=True, slots=True)
class Read:
    """One program's part of a text. `understood`: numbers of its lines, from 1."""

    machine: Machine
    understood: frozenset[int]


def understood_of(text: str, take: Callable[[int, str], bool]) -> frozenset[int]:
    """Offer each line that is not empty to `take`, with its number; give the numbers of those it took."""
    lines = ((number, plain(line)) for number, line in enumerate(text.splitlines(), 1))
    return frozenset(number for number, line in lines if line and take(number, line))
