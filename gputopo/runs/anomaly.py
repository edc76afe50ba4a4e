"""Devices that are slower than their peers beyond the noise of the run, of all its steps at once. Pure.

The verdicts, and how they are made from events one by one, are in `gputopo.runs.verdict`.
"""

from collections.abc import Sequence
from typing import Self

import msgspec

from gputopo.runs.verdict.judge import Judgement, judge
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.thresholds import CONFIDENCE
from gputopo.values.run.events import Anomaly, Device, Step
from gputopo.values.run.verdict import Verdict


class AnomalyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether devices were compared at all, with the verdicts.

    `not_made`: why they were not, None if they were. `left_out`: devices that were not, and why.
    """

    judgement: Judgement = Judgement(devices=())
    not_made: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def anomalies(self) -> tuple[Verdict, ...]:
        """The verdicts on slow devices."""
        return self.judgement.slow

    @property
    def made(self) -> bool:
        """Whether devices were compared."""
        return self.not_made is None

    @property
    def verdict(self) -> str:
        """The check in words, as in `gputopo.result/1`: "made", "made, but not for ...", "not made: ..."."""
        if self.not_made is not None:
            return f"not made: {self.not_made}"
        return "made" + (f", but not for {'; nor for '.join(self.left_out)}" if self.left_out else "")

    @classmethod
    def of(cls, judgement: Judgement) -> Self:
        """Return the check that verdicts make: not made where no device could be compared."""
        left_out = [verdict for verdict in judgement.devices if verdict.percent_under_low is None]
        if len(left_out) == len(judgement.devices):
            whys = dict.fromkeys(verdict.why or "" for verdict in left_out)
            return cls(judgement=judgement, not_made="; ".join(whys) or "no devices are known")
        return cls(judgement=judgement, left_out=tuple(verdict.says for verdict in left_out))


def event_of(verdict: Verdict, time_s: float, rank: int = 0) -> Anomaly:
    """Return the event for a slow device; `time_s` in seconds since the epoch."""
    return Anomaly(
        time_s=time_s,
        rank=rank,
        tower=0 if verdict.tower is None else verdict.tower,
        part=verdict.part or "compute",
        percent_under=verdict.percent_under or 0.0,
        percent_under_low=verdict.percent_under_low or 0.0,
        confidence=CONFIDENCE,
        says=verdict.says,
        gpu=verdict.gpu,
        causes=verdict.causes,
    )


def find_anomalies(
    devices: Sequence[Device], steps: Sequence[Step], batches: Sequence[int] = ()
) -> AnomalyCheck:
    """Return the check of all steps of a run. `batches`: examples of each device; none: equal ones."""
    paces = Paces(devices, batches=batches)
    for step in steps:
        paces.add(step)
    return AnomalyCheck.of(judge(paces))
