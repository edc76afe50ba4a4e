"""Steps that the programs of several hosts report: bounded on their way to rank 0, in order of time there.

Rank 0 gets what each process of every host reports, and makes of it what it makes of processes of one host.
"""

import math
from collections import deque
from collections.abc import Sequence

import msgspec

from gputopo.launch.throughput import MAX_EXAMPLES, MAX_SECONDS, Report, StepDone
from gputopo.values.run.events import Sample

# Reports, of 130 bytes, that a host sends at once, which is each second; of more, consecutive steps of a
# process are one report. Ours.
MAX_REPORTS = 1000
# Reports that are held for rank 0 where it does not answer: what 10,000 steps a second are in the 10 s after
# which it is gone. Ours.
MAX_HELD = 100_000
# For which rank 0 holds what is of several hosts. They report each second, and a lost packet is sent again
# after 0.2, 0.4 and 0.8 s (TCP_RTO_MIN of Linux). Ours.
HOLD_S = 3.0

Timed = tuple[float, Report]


class StepsReported(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="steps_reported"):
    """What the program of a host has reported, each with its time: seconds since the epoch, oldest first.

    `rank`: of the host, among those that take part.
    """

    rank: int = 0
    reports: tuple[Timed, ...]


class Batch:
    """What this host's program has reported since the last `take`. One thread adds, another one may take."""

    def __init__(self) -> None:
        self._waiting: deque[Timed] = deque(maxlen=MAX_HELD)

    def add(self, time_s: float, report: Report) -> None:
        """Add a report, which came at that time."""
        self._waiting.append((time_s, report))

    def take(self) -> tuple[StepsReported, ...]:
        """Return what there is, bounded, in one message; none where nothing was reported."""
        reports = [self._waiting.popleft() for _ in range(len(self._waiting))]
        return (StepsReported(reports=tuple(bounded(reports))),) if reports else ()


def bounded(reports: Sequence[Timed], limit: int = MAX_REPORTS) -> list[Timed]:
    """Return the reports, of more than `limit` with consecutive steps of each process as one.

    Where loops begin and end so often that this is no remedy, they are cut off at twice the limit.
    """
    each = math.ceil(len(reports) / limit)
    if each <= 1:
        return list(reports)
    found: list[Timed] = []
    groups: dict[int, list[StepDone]] = {}
    for time_s, report in reports:
        steps = groups.pop(report.pid, [])
        if isinstance(report, StepDone) and report.step > 1:
            steps.append(report)
            if len(steps) < each:
                groups[report.pid] = steps
            else:
                found.append((time_s, _one(steps)))
        else:
            found += [(time_s, _one(steps))] if steps else []
            found.append((time_s, report))
    found += [(reports[-1][0], _one(steps)) for steps in groups.values()]
    return found[: 2 * limit]


def _one(steps: Sequence[StepDone]) -> StepDone:
    busy = [one.busy_s for one in steps if one.busy_s is not None]
    return msgspec.structs.replace(
        steps[-1],
        steps=sum(one.steps for one in steps),
        seconds=min(math.fsum(one.seconds for one in steps), MAX_SECONDS),
        examples=min(sum(one.examples for one in steps), MAX_EXAMPLES),
        busy_s=min(math.fsum(busy), MAX_SECONDS) if len(busy) == len(steps) else None,
    )


class InOrder:
    """Samples and reports of all hosts in the order of time. Reports of one host stay in their own order.

    Where the clock of this host is set back, what is held is released.
    """

    def __init__(self) -> None:
        self._until_s = -math.inf
        self._samples: list[tuple[float, Sample]] = []
        self._reports: dict[int, deque[Timed]] = {}

    def sampled(self, sample: Sample) -> None:
        """Add a sample."""
        self._samples.append((sample.time_s, sample))

    def reported(self, host: int, time_s: float, report: Report, now_s: float) -> None:
        """Add a report, that came now."""
        held = self._reports.setdefault(host, deque())
        held.append((max(min(time_s, now_s), held[-1][0] if held else -math.inf), report))

    def due(self, until_s: float) -> list[tuple[float, Sample | tuple[int, Report]]]:
        """Return what is of up to a time, the earliest first, each with its time, and hold it no longer.

        A report has its host.
        """
        was_set_back, self._until_s = until_s < self._until_s, until_s
        if was_set_back:
            until_s = math.inf
        found: list[tuple[float, Sample | tuple[int, Report]]] = [
            one for one in self._samples if one[0] <= until_s
        ]
        self._samples = [one for one in self._samples if one[0] > until_s]
        for host, held in self._reports.items():
            while held and held[0][0] <= until_s:
                time_s, report = held.popleft()
                found.append((time_s, (host, report)))
        found.sort(key=lambda one: one[0])
        return found
