"""The order of the runs of a screen. Pure.

All of it: three rounds of each device alone, in alternating order, then the runs of several devices. One
run at a time: a worker that starts beside it loads and compiles on the cores that feed the GPUs, and two GPUs
under load share power, air and links, so neither would be alone.

In a limited time: first the run of all at once with nothing exchanged, which compares all devices step by
step; then each device alone, those that it showed as slow first; then the other runs of several devices; then
further rounds, each only as a whole. A run is begun only where one as long as the longest so far would end in
time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.values.run.several_runs import Kind
from gputopo.values.run.verdict import SLOW

ROUNDS = 3  # of each device alone: of two, Student's t leaves differences below 10% open
AT_ONCE: Kind = "independent"


class Stage(NamedTuple):
    """Runs that belong together. `kinds`: of their cells; `number`: of the round; `whole`: all or none."""

    kinds: tuple[Kind, ...]
    number: int = 1
    whole: bool = False


OTHERS: tuple[Kind, ...] = ("together", "pair")
WHOLE = (*(Stage(("alone",), number) for number in range(1, ROUNDS + 1)), Stage((AT_ONCE, *OTHERS)))
QUICK = (
    Stage((AT_ONCE,)),
    Stage(("alone",)),
    Stage(OTHERS),
    *(Stage(("alone",), number, whole=True) for number in range(2, ROUNDS + 1)),
)


def stages(limited: bool) -> tuple[Stage, ...]:
    """Return the stages of a screen. `limited`: in time."""
    return QUICK if limited else WHOLE


def alone_order(devices: Sequence[int], number: int, words: Mapping[int, str]) -> list[int]:
    """Return the order of the devices in a round: alternating, those that `words` calls slow first."""
    ordered = list(devices[:: 1 if number % 2 else -1])
    return sorted(ordered, key=lambda device: words.get(device) != SLOW)
