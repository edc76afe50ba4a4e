"""The exchange of gradients between the hosts of a run: how long it takes, and whose network is slow. Pure.

All hosts exchange in the same step, so one whose gradients arrive later, or which receives them later, than
the others' is named. Of two hosts neither can be: there is one path between them.
"""

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from gputopo.runs.bounded import Blocks
from gputopo.runs.verdict.bounds import Interval, interval
from gputopo.runs.verdict.thresholds import FALSE_ALARM, SLOW_PERCENT, WHOLE_SHARE
from gputopo.values.run.events import Device, HostExchange, Step
from gputopo.values.run.result import Exchanged, HostExchanged

SENDS, RECEIVES, SUMS = 0, 1, 2
# What the clocks of two hosts may be apart: the least time that a message took counts as their difference,
# and the two directions are not alike. Ours; a message over Ethernet takes 0.05 to 0.2 ms, over gRPC 0.5.
CLOCKS_S = 1e-3
MIN_OTHERS = 2


class SlowNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A host that sends or receives (`column`) later than the others do, in percent of the step."""

    rank: int
    column: int
    percent: Interval
    ms: float
    steps: int


class Exchange:
    """The exchanges of a run's steps, in memory that does not grow with the run."""

    def __init__(self, devices: Sequence[Device]) -> None:
        hosts = {device.rank: device.host for device in devices}
        self._hosts = hosts if len(hosts) > 1 else {}
        self._places = {rank: place for place, rank in enumerate(self._hosts)}
        # Columns: shares of the step of each host (sends, receives, sums), seconds of the step.
        self._blocks = Blocks(mean_limit=math.inf)

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

    def result(self) -> Exchanged | None:
        """Return the medians over the steps, None where nothing is marked."""
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
        """Return the hosts whose network is slow, each once: by what it does later."""
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
        bounds = interval(values, chance) if values else None
        floor = 100 * CLOCKS_S / step_s
        if bounds is None or bounds.low - floor <= SLOW_PERCENT:
            return None
        return SlowNetwork(
            rank=rank,
            column=column,
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
