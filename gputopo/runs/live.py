"""Verdicts during a run, from its latest steps: when to look, and what is new since the previous look.

A look judges as the end of a run does, but uses only the latest steps. So a change is found as fast in a run
of days as in its first minutes, and each look takes the same time. A device is reported only if two
consecutive looks find it slow, so that many looks cause no more false alarms than one (measured in
tests/benchmarks/bench_live.py). The verdict over all steps is made at the end.
"""

from collections.abc import Callable, Iterable

from gputopo.runs.summary import Summary
from gputopo.runs.verdict.judge import Judgement
from gputopo.values.grouping import grouped
from gputopo.values.run.events import (
    NETWORK,
    Anomaly,
    AnomalyOver,
    Event,
    Judged,
    Restarted,
    Standing,
    Step,
    WarmupDone,
)
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW, Verdict
from gputopo.values.words import at_most

# Minimum distance of two looks. Not measured; chosen because a slow device is then reported within 100 steps.
EVERY_STEPS, EVERY_S = 25, 2.0
# Maximum share of one core for all looks together. Not measured.
MAX_SHARE = 0.005


class RecentSteps:
    """Decides when the next look at a run is due. `summary`: of the run; it must get each event first."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._new_steps = 0
        self._step = 0
        self._next_s = 0.0

    def add(self, event: Event) -> None:
        """Count the next event of the run."""
        match event:
            case Step() if not event.warmup:
                self._step = event.step
                self._new_steps += 1
            case WarmupDone() | Restarted():
                self._new_steps = 0

    def is_due(self, now_s: float) -> bool:
        """Return whether to look now. `now_s`: seconds of a monotonic clock."""
        return self._new_steps >= EVERY_STEPS and now_s >= self._next_s and self._summary.has_peers

    def take(self, now_s: float) -> tuple[Callable[[], Judgement], int]:
        """Return the function that performs the look that starts now, and the number of its last step."""
        self._new_steps = 0
        self._next_s = now_s + EVERY_S
        return self._summary.latest(), self._step

    def took(self, now_s: float, seconds: float) -> None:
        """Record how much processor time the last look took; after an expensive one, the next is later."""
        self._next_s = max(self._next_s, now_s + seconds / MAX_SHARE)


class Reports:
    """What was reported about the devices of a run, and what a new look adds."""

    def __init__(self) -> None:
        self._reported: dict[int, tuple[str, str | None]] = {}  # by tower: part and cause
        self._ended: set[tuple[int, str]] = set()  # tower and part that were reported slow, then even again
        self._before: dict[int, Verdict] = {}  # by tower: verdict of the previous look

    def look(self, judgement: Judgement, step: int, time_s: float) -> tuple[Event, ...]:
        """Return the events of a look: the verdicts, what became slow, and what is no longer slow."""
        news: list[Event] = []
        for verdict in judgement.devices:
            tower = verdict.tower or 0
            before = self._before.get(tower)
            self._before[tower] = verdict
            if before is not None:
                news += self._changed(judgement, before, verdict, time_s)
        judged = Judged(
            time_s=time_s,
            step=step,
            devices=tuple(self._standing(verdict) for verdict in judgement.devices),
            run=judgement.run.says if judgement.run is not None and judgement.run.word == SLOW else None,
        )
        return (judged, *_each_host_once(news))

    def end(self, judgement: Judgement, time_s: float) -> tuple[Event, ...]:
        """Return what the verdict over all steps adds to the reports or withdraws."""
        news: list[Event] = []
        for slow in judgement.slow:
            tower, part = slow.tower or 0, slow.part or "compute"
            was, _ = self._reported.get(tower, (None, None))
            if was != part and not (_is_over(slow) and (tower, part) in self._ended):
                news.append(judgement.anomaly(slow, time_s))
        for verdict in judgement.devices if judgement.not_made is None else ():
            known = self._reported.get(verdict.tower or 0)
            if known is not None and verdict.word != SLOW:
                says = f"Over all steps: {verdict.says}"
                news.append(_over(judgement, verdict, known[0], says, time_s))
        return tuple(_each_host_once(news))

    def _standing(self, verdict: Verdict) -> Standing:
        """Return a verdict in one word: "slow" only if it was reported, "even" also if it is even again."""
        tower, word, cause = verdict.tower or 0, CANNOT_TELL, None
        percent = verdict.resolution_percent
        if _is_slow(verdict) and tower in self._reported:
            word, percent, cause = SLOW, verdict.percent_under, _cause(verdict)
        elif _is_over(verdict):
            word, percent = EVEN, verdict.percent_under_high if verdict.word == EVEN else None
        return Standing(tower=tower, gpu=verdict.gpu, word=word, percent=percent, cause=cause)

    def _changed(self, judgement: Judgement, before: Verdict, now: Verdict, time_s: float) -> Iterable[Event]:
        tower = now.tower or 0
        known = self._reported.get(tower)
        if _is_slow(before) and _is_slow(now) and before.part == now.part:
            part, cause = now.part or "compute", _cause(now)
            if known is None or known[0] != part or (known[1] != cause and _cause(before) == cause):
                self._reported[tower] = part, cause
                yield judgement.anomaly(now, time_s)
        elif known is not None and _is_over(before) and _is_over(now):
            del self._reported[tower]
            self._ended.add((tower, known[0]))
            since = f" since about step {now.to_step + 1:,}" if now.to_step is not None else ""
            even = "" if now.word == SLOW else f", to within {at_most(now.percent_under_high or 0.0)}%"
            device = judgement.device_of(now)
            name = f"device {tower}" if device is None else device.short_name
            says = f"{name} is no longer slower than its peers{since}{even}"
            yield _over(judgement, now, known[0], says, time_s)


def _is_slow(verdict: Verdict) -> bool:
    return verdict.word == SLOW and verdict.to_step is None


def _is_over(verdict: Verdict) -> bool:
    return verdict.word == EVEN or (verdict.word == SLOW and verdict.to_step is not None)


def _cause(verdict: Verdict) -> str | None:
    if verdict.part == NETWORK:
        return NETWORK
    causes = verdict.causes.found if verdict.causes is not None else ()
    return causes[0].id if causes else None


def _each_host_once(events: Iterable[Event]) -> Iterable[Event]:
    """Keep one event if several devices of a host have the same sentence."""
    keyed = ((event.says if isinstance(event, Anomaly) else id(event), event) for event in events)
    return [same[0] for same in grouped(keyed).values()]


def _over(judgement: Judgement, verdict: Verdict, part: str, says: str, time_s: float) -> AnomalyOver:
    device = judgement.device_of(verdict)
    rank, tower = 0 if device is None else device.rank, verdict.tower or 0
    return AnomalyOver(time_s=time_s, rank=rank, tower=tower, gpu=verdict.gpu, part=part, says=says)
