"""What the parsers of bandwidth texts give: a machine, and which lines of the text they understood."""

from dataclasses import dataclass

from gputopo.machine import Machine


@dataclass(frozen=True, slots=True)
class Read:
    """One program's part of a text. `understood`: numbers of its lines, from 1."""

    machine: Machine
    understood: frozenset[int]
