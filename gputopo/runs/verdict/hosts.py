"""Several hosts: the ones whose devices are all slow, and the exchange of gradients between hosts.

All hosts exchange gradients in the same step. A host is reported if it sends or receives gradients later than
the others. With two hosts this is impossible: there is only one path between them.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, median_low

import msgspec

from gputopo.runs.verdict.bounds import Interval, level_bounds, min_values
from gputopo.runs.verdict.words import COMPUTE, WHOLE_SHARE, over, sure, when
from gputopo.values.grouping import medians_of_others
from gputopo.values.run.bounded import Blocks
from gputopo.values.run.events import Device, Step
from gputopo.values.run.hosts import host_name, whole_hosts
from gputopo.values.run.result import Exchanged, HostExchanged
from gputopo.values.run.verdict import FALSE_ALARM, SLOW, SLOW_PERCENT, Verdict
from gputopo.values.words import percent

SENDS, RECEIVES, SUMS = _OF_HOST = ("sends_s", "receives_s", "sums_s")  # as in `HostExchange`
_STEP = (-1, "seconds")
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
        # For each host the shares of the step, then the seconds of the step.
        columns = [*((rank, part) for rank in self._hosts for part in _OF_HOST), _STEP]
        self._columns = {column: number for number, column in enumerate(columns)}
        self._blocks = Blocks()

    def add(self, step: Step) -> None:
        """Add a counted step."""
        if not self._hosts or not step.exchange or step.seconds <= 0:
            return
        row = {_STEP: step.seconds}
        for host in step.exchange:
            for part in _OF_HOST:
                if (seconds := getattr(host, part)) is not None:
                    row[host.rank, part] = seconds / step.seconds
        self._blocks.add(step.step, [row.get(column, math.nan) for column in self._columns])

    def latest(self) -> "ExchangeRecord":
        """Return the exchanges of the recent steps."""
        recent = copy.copy(self)
        recent._blocks = self._blocks.latest()
        return recent

    def result(self) -> Exchanged | None:
        """Return the medians over the steps, or None if there are no marks."""
        step_s = self._blocks.middle(self._columns[_STEP])
        if math.isnan(step_s):
            return None

        def ms(rank: int, part: str) -> float | None:
            share = self._blocks.middle(self._columns[rank, part])
            return None if math.isnan(share) else 1000 * share * step_s

        latest = [max(known.values()) for known in self._known(SUMS) if known]
        share = median(latest) if latest else None
        return Exchanged(
            hosts=tuple(
                HostExchanged(
                    rank=rank,
                    host=host,
                    sends_ms=ms(rank, SENDS),
                    receives_ms=ms(rank, RECEIVES),
                    sums_ms=ms(rank, SUMS),
                )
                for rank, host in self._hosts.items()
            ),
            ms=None if share is None else 1000 * share * step_s,
            percent=None if share is None else 100 * share,
        )

    def slow(self) -> list[SlowNetwork]:
        """Return the hosts whose network is slow, each once, with the larger delay.

        Each host is compared with the median of the others: an exchange has two ends, so the fastest host
        does not show how long a sound one takes, as the fastest device does.
        """
        step_s = self._blocks.middle(self._columns[_STEP])
        if math.isnan(step_s):
            return []
        chance = WHOLE_SHARE * FALSE_ALARM / (2 * len(self._hosts))
        worst: dict[int, SlowNetwork] = {}
        for part in (SENDS, RECEIVES):
            later: dict[int, list[float]] = {rank: [] for rank in self._hosts}  # percent of the step, by row
            for known in self._known(part):
                usual = medians_of_others(known) if len(known) > MIN_OTHERS else {}
                for rank, share in usual.items():
                    later[rank].append(100 * (known[rank] - share))
            for rank, percents in later.items():
                bounds = level_bounds(percents, chance)
                if bounds is None or bounds.effective < min_values(chance):
                    continue
                if bounds.low - 100 * CLOCKS_S / step_s <= SLOW_PERCENT:
                    continue
                if rank not in worst or bounds.middle > worst[rank].percent.middle:
                    worst[rank] = SlowNetwork(
                        rank=rank,
                        sends=part == SENDS,
                        percent=bounds,
                        ms=10 * bounds.middle * step_s,
                        steps=len(percents) * self._blocks.size,
                    )
        return list(worst.values())

    def _known(self, part: str) -> Iterator[dict[int, float]]:
        """Iterate over the rows: the known shares of a part, by host."""
        columns = [self._blocks.medians(self._columns[rank, part]) for rank in self._hosts]
        for row in zip(*columns, strict=True):
            shares = zip(self._hosts, row, strict=True)
            yield {rank: share for rank, share in shares if not math.isnan(share)}


def named_by_host(devices: Sequence[Device], verdicts: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """Return the verdicts by tower. If a host is slow as a whole, its devices share one sentence.

    A device that is slower than its host, by more than the limit for slow, keeps its own verdict.
    """
    slow = {
        tower: (verdict.part, verdict.share_of_steps is not None)
        for tower, verdict in verdicts.items()
        if verdict.word == SLOW
    }
    named = dict(verdicts)
    for of_host in whole_hosts(devices, slow).values():
        of_its_devices = [verdicts[device.tower] for device in of_host]
        begin = max(verdict.from_step or 0 for verdict in of_its_devices)
        if begin > min(verdict.to_step or math.inf for verdict in of_its_devices):
            continue  # they are slow at different times
        says = _says(of_host, of_its_devices)
        middle = median(verdict.percent_under_high or 0.0 for verdict in of_its_devices)
        for verdict in of_its_devices:
            if (verdict.percent_under_low or 0.0) <= middle + SLOW_PERCENT:
                named[verdict.tower or 0] = msgspec.structs.replace(verdict, says=says)
    return named


def _says(devices: Sequence[Device], verdicts: Sequence[Verdict]) -> str:
    """Return how much slower the devices of a host are, since when, and their common cause."""
    begins = [verdict.from_step for verdict in verdicts if verdict.from_step is not None]
    ends = [verdict.to_step for verdict in verdicts if verdict.to_step is not None]
    together = msgspec.structs.replace(
        verdicts[0],
        from_step=median_low(begins) if len(begins) == len(verdicts) else None,
        to_step=median_low(ends) if len(ends) == len(verdicts) else None,
    )
    under = median(verdict.percent_under or 0.0 for verdict in verdicts)
    than = f"{percent(under)}% slower than on other hosts"
    waits = f"are {than} because they wait longer for weights{over(devices[0])}"
    what = f"compute {than}" if together.part == COMPUTE else waits
    average = "" if together.share_of_steps is None else " on average, not in all steps"
    proven = sure(min(verdict.percent_under_low or 0.0 for verdict in verdicts))
    says = f"{host_name(devices)} {what}{average}{when(together)} ({proven})"
    causes = [verdict.causes for verdict in verdicts if verdict.causes and verdict.causes.found]
    if len(causes) < len(verdicts) or len({cause.found[0].id for cause in causes}) > 1:
        return says
    middle = sorted(range(len(verdicts)), key=lambda place: verdicts[place].percent_under or 0.0)
    place = middle[len(middle) // 2]
    return f"{says}. On {devices[place].short_name}: {causes[place].says}"
