"""Verdicts on the devices of a run (slow, even to within N %, cannot tell), in bounded memory.

`paces` and `sampled` add up the events of a run; `peers` compares devices of one kind, `changes` finds where
a series changed, `hosts` compares hosts, `cost` replays steps, `causes` explains by `rules`; `judge` combines
them into verdicts. `CAUSES` and `PARTS` are what a verdict can name as a cause.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.runs.verdict.causes import PARTS as PARTS
    from gputopo.runs.verdict.rules import CAUSES as CAUSES

_MODULES = {"CAUSES": "rules", "PARTS": "causes"}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
