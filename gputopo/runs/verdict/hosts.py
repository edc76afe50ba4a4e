"""Several hosts: the ones whose devices are all slow, and the exchange of gradients between hosts.

All hosts exchange gradients in the same step. A host is reported if it sends or receives gradients later than
the others. With two hosts this is impossible: there is only one path between them.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from statistics import median, median_low

import msgspec

from gputopo.runs.verdict.bounds import Interval, level_bounds, min_values
from gputopo.runs.verdict.words import WHOLE_SHARE, over, sure, when
from gputopo.values.run.bounded import Blocks
from gputopo.values.run.events import Device, HostExchange, Step
from gputopo.values.run.hosts import host_name, whole_hosts
from gputopo.values.run.result import Exchanged, HostExchanged
from gputopo.values.run.verdict import COMPUTE, FALSE_ALARM, SLOW, SLOW_PERCENT, Verdict
from gputopo.values.words import percent

SENDS, RECEIVES, SUMS = 0, 1, 2
# Maximum difference between the clocks of two hosts. It is estimated as the least time that a message took,
# and the two directions differ. Not measured; chosen because a message takes 0.05 to 0.2 ms over Ethernet and
# 0.5 ms over gRPC.
CLOCKS_S = 1e-3
MIN_OTHERS = 2


class SlowNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A host that sends (or, if not `sends`, receives) later than the others, in percent of the step."""

    rank: int
    sends: bool
    percent: Interval
    ms: float
    steps: int


class ExchangeRecord:
    """The exchanges of a run's steps, in memory that does not grow with the run."""

    def __init__(self, devices: Sequence[Device]) -> None:
        hosts = {device.rank: device.host for device in devices}
        self._hosts = hosts if len(hosts) > 1 else {}
        self._places = {rank: place for place, rank in enumerate(self._hosts)}
        # Columns: each host's shares of the step (sends, receives, sums), then the seconds of the step.
        self._blocks = Blocks()

    def add(self, step: Step) -> None:
        """Add a counted step."""
        if not self._hosts or not step.exchange or step.seconds <= 0:
            return
        row = [math.nan] * (3 * len(self._hosts) + 1)
        for one in step.exchange:
            if (place := self._places.get(one.rank)) is not None:
                row[3 * place : 3 * place + 3] = _shares(one, step.seconds)
        row[-1] = step.seconds
        self._blocks.add(step.step, row)

    def latest(self) -> "ExchangeRecord":
        """Return the exchanges of the recent steps."""
        found = copy.copy(self)
        found._blocks = self._blocks.latest()
        return found

    def result(self) -> Exchanged | None:
        """Return the medians over the steps, or None if there are no marks."""
        step_s = _median(self._blocks.medians(-1))
        if step_s is None:
            return None
        found = [
            HostExchanged(
                rank=rank,
                host=host,
                sends_ms=_ms(self._column(rank, SENDS), step_s),
                receives_ms=_ms(self._column(rank, RECEIVES), step_s),
                sums_ms=_ms(self._column(rank, SUMS), step_s),
            )
            for rank, host in self._hosts.items()
        ]
        latest = [
            max(known)
            for row in zip(*(self._column(rank, SUMS) for rank in self._hosts), strict=True)
            if (known := [value for value in row if not math.isnan(value)])
        ]
        share = _median(latest)
        return Exchanged(
            hosts=tuple(found),
            ms=None if share is None else 1000 * share * step_s,
            percent=None if share is None else 100 * share,
        )

    def slow(self) -> list[SlowNetwork]:
        """Return the hosts whose network is slow, each once, with the larger delay."""
        step_s = _median(self._blocks.medians(-1))
        if step_s is None:
            return []
        chance = WHOLE_SHARE * FALSE_ALARM / (2 * len(self._hosts))
        worst: dict[int, SlowNetwork] = {}
        for column in (SENDS, RECEIVES):
            for rank in self._hosts:
                found = self._later(rank, column, chance, step_s)
                if found is not None and (
                    rank not in worst or found.percent.middle > worst[rank].percent.middle
                ):
                    worst[rank] = found
        return list(worst.values())

    def _later(self, rank: int, column: int, chance: float, step_s: float) -> SlowNetwork | None:
        own = self._column(rank, column)
        others = [self._column(other, column) for other in self._hosts if other != rank]
        values = [
            100 * (value - median(known))
            for value, *rest in zip(own, *others, strict=True)
            if not math.isnan(value)
            and len(known := [one for one in rest if not math.isnan(one)]) >= MIN_OTHERS
        ]
        bounds = level_bounds(values, chance)
        floor = 100 * CLOCKS_S / step_s
        if bounds is None or bounds.effective < min_values(chance) or bounds.low - floor <= SLOW_PERCENT:
            return None
        return SlowNetwork(
            rank=rank,
            sends=column == SENDS,
            percent=bounds,
            ms=10 * bounds.middle * step_s,
            steps=len(values) * self._blocks.size,
        )

    def _column(self, rank: int, column: int) -> list[float]:
        return self._blocks.medians(3 * self._places[rank] + column)


def _shares(one: HostExchange, seconds: float) -> list[float]:
    return [
        math.nan if value is None else value / seconds for value in (one.sends_s, one.receives_s, one.sums_s)
    ]


def _ms(shares: Sequence[float], step_s: float) -> float | None:
    share = _median(shares)
    return None if share is None else 1000 * share * step_s


def _median(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else None


def named_by_host(devices: Sequence[Device], verdicts: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """Return the verdicts by tower. If a host is slow as a whole, its devices share one sentence.

    A device that is slower than its host, by more than the limit for slow, keeps its own verdict.
    """
    slow = {
        tower: (found.part, found.share_of_steps is not None)
        for tower, found in verdicts.items()
        if found.word == SLOW
    }
    named = dict(verdicts)
    for own in whole_hosts(devices, slow).values():
        found = [verdicts[device.tower] for device in own]
        if max(one.from_step or 0 for one in found) > min(one.to_step or math.inf for one in found):
            continue  # they are slow at different times
        says = _says(own, found)
        middle = median(one.percent_under_high or 0.0 for one in found)
        for device, one in zip(own, found, strict=True):
            if (one.percent_under_low or 0.0) <= middle + SLOW_PERCENT:
                named[device.tower] = msgspec.structs.replace(one, says=says)
    return named


def _says(devices: Sequence[Device], found: Sequence[Verdict]) -> str:
    """Return how much slower the devices of a host are, since when, and their common cause."""
    begins = [one.from_step for one in found if one.from_step is not None]
    ends = [one.to_step for one in found if one.to_step is not None]
    together = msgspec.structs.replace(
        found[0],
        percent_under=median(one.percent_under or 0.0 for one in found),
        percent_under_low=min(one.percent_under_low or 0.0 for one in found),
        from_step=median_low(begins) if len(begins) == len(found) else None,
        to_step=median_low(ends) if len(ends) == len(found) else None,
    )
    than = f"{percent(together.percent_under or 0.0)}% slower than on other hosts"
    waits = f"are {than} because they wait longer for weights{over(devices[0])}"
    what = f"compute {than}" if together.part == COMPUTE else waits
    average = "" if together.share_of_steps is None else " on average, not in all steps"
    proven = sure(together.percent_under_low or 0.0)
    says = f"{host_name(devices)} {what}{average}{when(together)} ({proven})"
    first = {one.causes.found[0].id if one.causes and one.causes.found else None for one in found}
    if len(first) > 1 or None in first:
        return says
    place = sorted(range(len(found)), key=lambda one: found[one].percent_under or 0.0)[len(found) // 2]
    causes = found[place].causes
    assert causes is not None
    return f"{says}. On {devices[place].short_name}: {causes.says}"
