"""The order of the runs of a screen.

A full screen runs three rounds of each device by itself, in alternating order, then the runs of several
devices. Only one run at a time: a worker that starts next to it loads and compiles on the cores that feed the
GPUs, and two GPUs under load share power, air and links.

A screen with a time limit starts with the run of all devices at once without exchange, which compares all
devices step by step. Then each device runs by itself, the slow ones of that run first, then the other runs of
several devices, then further rounds, each only as a whole. A run starts only if one as long as the longest so
far would end in time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.values.run.several_runs import Kind
from gputopo.values.run.verdict import SLOW

ROUNDS = 3  # of each device by itself: with two, Student's t cannot decide differences below 10%
AT_ONCE: Kind = "independent"


class Stage(NamedTuple):
    """Runs that belong together.

    `kinds`: of their cells; `number`: of the round; `whole`: all or none run.
    """

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
    """Return the stages of a screen. `limited`: the screen has a time limit."""
    return QUICK if limited else WHOLE


def alone_order(devices: Sequence[int], number: int, words: Mapping[int, str]) -> list[int]:
    """Return the order of the devices in a round: alternating; devices that `words` calls slow come first."""
    ordered = list(devices[:: 1 if number % 2 else -1])
    return sorted(ordered, key=lambda device: words.get(device) != SLOW)
