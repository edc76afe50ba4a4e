"""What is told of an automatic loss scale: the first step that was left out, and at the end how it went."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gputopo.values.events import Event, Noticed, Step


@dataclass(frozen=True)
class ScaleReport:
    """Where the loss scales of a run stand: one for all towers, or one per tower of independent ones.

    `skipped_steps`: how many steps were left out so far, because a gradient was not finite.
    """

    loss_scales: tuple[float, ...]
    skipped_steps: tuple[int, ...]


class ScaleWatch:
    """An observer of the loop. `report` tells where the scale stands, None where there is none."""

    def __init__(self, report: Callable[[], ScaleReport | None], emit: Callable[[Event], None]) -> None:
        self._report = report
        self._emit = emit
        self._told = False

    def before(self, number: int) -> None:
        """Nothing to get ready."""

    def after(self, told: Step, outcome: Any) -> None:
        """Tell the first step that was left out."""
        report = None if self._told else self._report()
        if report is None or not any(report.skipped_steps):
            return
        self._told = True
        which = "A step of the warm-up" if told.warmup else f"Step {told.step}"
        self._notice(f"{which} was left out: a gradient was not finite. {_scales(report)}")

    def close(self) -> None:
        """Tell how often that was, and where the scale stands."""
        report = self._report()
        if report is None or not any(report.skipped_steps):
            return
        counts = report.skipped_steps
        left = ", ".join(f"{count} of tower {tower}" for tower, count in enumerate(counts) if count)
        many = left if len(counts) > 1 else str(counts[0])
        self._notice(f"Steps left out because a gradient was not finite: {many}. {_scales(report)}")

    def _notice(self, says: str) -> None:
        self._emit(Noticed(time_s=time.time(), says=says))


def _scales(report: ScaleReport) -> str:
    listed = ", ".join(f"{scale:g}" for scale in report.loss_scales)
    return f"The loss scale is {listed} now." if len(report.loss_scales) == 1 else f"Loss scales: {listed}."
