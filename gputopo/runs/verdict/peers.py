"""A device against its peers: whether it is slow, equal, or at most N % slower.

Slow: the lower bound of the difference is above `SLOW_PERCENT`, in the typical step or in the mean of all
steps. Equal: both upper bounds are at most `EVEN_PERCENT`. Otherwise, the upper bound is the answer. If a
device is slow in a part of the run, or in single steps, the verdict says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, fmean, median

import msgspec

from gputopo.runs.devices import reference_of
from gputopo.runs.verdict.bounds import Interval, level_bounds, mean_bounds, min_values, part_bounds
from gputopo.runs.verdict.changes import (
    PLACES,
    Span,
    lost_bounds,
    noise_limit,
    parts,
    slow_limit,
)
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.words import (
    COMPUTE,
    MARKS_OFFSET_S,
    MARKS_RESOLUTION_S,
    POWER,
    WARMUP_SHARE,
    WEIGHTS,
    WHOLE_SHARE,
    at_least,
    over,
    slower_at_most,
    sure,
    when,
)
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import (
    CANNOT_TELL,
    EVEN,
    EVEN_PERCENT,
    FALSE_ALARM,
    SLOW,
    SLOW_PERCENT,
    Verdict,
)
from gputopo.values.words import at_most, percent

# If a device is this many times as fast as its peer, the peer stood still.
MAX_TIMES = 100.0
NOT_SLOWER = "not slower than its peers"
# percent of pace: if mean and median differ by more, slow steps are described.
DISAGREE_PERCENT = 1.0
SPLITS = 4  # iterations that split fast from slow steps, halfway between their levels; this converges

_POWER = NormalDist().inv_cdf(POWER)
_replace = msgspec.structs.replace


class PeerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device is behind its peer, by row: logarithms of compute times, or shares of busy time."""

    device: Device
    peer: int
    part: str
    values: Sequence[float]  # medians of the rows; negative: the device is ahead
    lost: Sequence[float]  # time lost to the peer with the least mean, as shares of that peer's time, by row
    rows: Sequence[int]  # indices of the values in the table
    chance: float


def differences(paces: Paces) -> list[PeerDifference]:
    """Return the differences of all devices that have a peer with common steps, for computing and weights."""
    compared = sum(map(len, (*paces.kinds, *paces.links)))
    chance = WHOLE_SHARE * FALSE_ALARM / max(1, compared)
    result = []
    for groups, part in ((paces.kinds, COMPUTE), (paces.links, WEIGHTS)):
        for group in groups:
            towers = [device.tower for device in group if not math.isnan(paces.level(device.tower, part))]
            by_level = sorted(towers, key=lambda tower: (paces.level(tower, part), tower))
            by_mean = sorted(towers, key=lambda tower: (paces.mean_s(tower, part), tower))
            for device in group:
                if device.tower in towers:
                    difference = _difference(paces, by_level, by_mean, device, part, chance)
                    result += [] if difference is None else [difference]
    return result


def _difference(
    paces: Paces, by_level: Sequence[int], by_mean: Sequence[int], device: Device, part: str, chance: float
) -> PeerDifference | None:
    """Return how far a device is behind its peers.

    `by_level`, `by_mean`: the towers of its group, the fastest first.
    """
    kinds, tower = paces.kind_by_tower, device.tower
    alike = [other for other in by_level if kinds[other] == kinds[tower]]
    peers = alike if len(alike) > 1 else by_level  # of one kind if possible
    if len(peers) < 2:
        return None
    peer = reference_of(tower, peers)
    least = reference_of(
        tower, [other for other in by_mean if other in peers and kinds[other] == kinds[peer]]
    )
    columns = zip(paces.relative(tower, part), paces.relative(peer, part), strict=True)
    # The table already accounts for the speeds of kinds.
    allowed = math.log(paces.batch_allowance(tower, peer)) if part == COMPUTE else 0.0
    values = [value - other - allowed for value, other in columns]
    longer_s, others_s = paces.lost(tower, least, part)
    rows = [row for row, value in enumerate(zip(values, longer_s, strict=True)) if not math.isnan(sum(value))]
    if not rows:
        return None
    # Shares whose mean is the ratio of the two means, and whose spread is the spread of its error.
    mean_s = fmean(others_s[row] for row in rows)
    ratio = fmean(longer_s[row] for row in rows) / mean_s
    return PeerDifference(
        device=device,
        peer=peer,
        part=part,
        values=[values[row] for row in rows],
        lost=[ratio + (longer_s[row] - ratio * others_s[row]) / mean_s for row in rows],
        rows=rows,
        chance=chance,
    )


def percent_of(part: str) -> Callable[[float], float]:
    """Return the function that converts a difference of this part to percent of pace."""
    if part == COMPUTE:
        return lambda difference: 100 * (1 - math.exp(-max(difference, -math.log(MAX_TIMES))))
    return _weights_percent


def _weights_percent(difference: float) -> float:
    # Percent of the time that the device is busy: ten times a negligible wait is still negligible.
    return 100 * difference / (1 + difference) if difference > 1 / MAX_TIMES - 1 else 100 * (1 - MAX_TIMES)


def unknown(device: Device, why: str, like: Verdict | None = None) -> Verdict:
    """Return that a device is neither slow nor even, and why, with the measured figures of `like`."""
    verdict = like or Verdict(word=CANNOT_TELL, says="", tower=device.tower, gpu=gpu_of(device))
    known = f" is {slower_at_most(verdict)}" if verdict.percent_under_high is not None else ": not compared"
    return _replace(verdict, word=CANNOT_TELL, why=why, says=f"{device.name}{known}: {why}")


def gpu_of(device: Device) -> int | None:
    """Return the index of a device's GPU; None for a CPU device, even if it represents a GPU."""
    return None if device.is_cpu else device.gpu


class Answer:
    """The answer for one difference. `among`: all differences of the run.

    `offset`: percent that time marks and expected speeds add to the bounds. `floor`: percent that marks
    cannot resolve.
    """

    def __init__(self, paces: Paces, difference: PeerDifference, among: Sequence[PeerDifference]) -> None:
        self.paces, self.difference, self.device = paces, difference, difference.device
        self.name, self.percent = difference.device.name, percent_of(difference.part)
        kinds, tower = paces.kind_by_tower, difference.device.tower
        alike = (other for other in among if kinds[other.device.tower] == kinds[tower])
        others = (other for other in alike if other is not difference)
        self.others = [other.lost for other in others if other.part == difference.part]
        self.size = paces.blocks.size
        self.busy_s = paces.busy_s(tower)
        unsure = paces.unsure(tower, difference.peer) if difference.part == COMPUTE else 0.0
        self.offset = 100 * MARKS_OFFSET_S / self.busy_s + 100 * (1 - math.exp(-unsure))
        self.floor = 100 * MARKS_RESOLUTION_S / self.busy_s
        self.fields = Verdict(
            word=CANNOT_TELL,
            says="",
            tower=tower,
            gpu=gpu_of(self.device),
            against="peers",
            part=difference.part,
            percent_under=self.percent(median(difference.values)),
            steps=len(difference.values) * self.size,
        )

    def _is_slow(self, bounds: Interval) -> bool:
        return bounds.effective >= min_values(self.difference.chance) and self._is_above(bounds)

    def _is_above(self, bounds: Interval) -> bool:
        return bounds.low - self.offset > max(SLOW_PERCENT, self.floor)

    def verdict(self) -> Verdict:
        """Return the verdict on the device by this difference."""
        values = self.difference.values
        spans = parts(values, self.size)
        if len(spans) > 1:
            # Remove a first part that is slower than the next and short compared with the rest.
            (_, first_end), rest = spans[0], spans[1:]
            slower = median(values[:first_end]) > median(values[slice(*rest[0])])
            if slower and first_end <= WARMUP_SHARE * (rest[-1][1] - first_end):
                spans = rest
            chance = self.difference.chance / PLACES
            bounds = {span: part_bounds(values[slice(*span)], chance).mapped(self.percent) for span in spans}
            slow = {span: bound for span, bound in bounds.items() if self._is_above(bound)}
            if sum(bound.effective for bound in slow.values()) >= min_values(chance):
                return self._slow_parts(spans, slow)
        return self._whole(spans)

    def _said(self, verdict: Verdict, throughout: bool = True) -> Verdict:
        """Return the verdict on a slow device: how much slower it is, and in which part of the run."""
        shown, low = percent(verdict.percent_under or 0.0), verdict.percent_under_low or 0.0
        by, where = self.paces.source(self.device.tower, self.difference.peer), when(verdict, throughout)
        if verdict.part == COMPUTE and by is not None:
            than = f"than it should compared with devices of another model ({by})"
            says = f"computes {shown}% slower {than}{where}, at least {at_least(low)}%"
        elif verdict.part == COMPUTE:
            says = f"computes {shown}% slower than its peers{where} ({sure(low)})"
        else:
            waits = f"because it waits longer for weights{over(self.device)}"
            says = f"is {shown}% slower than its peers {waits}{where} ({sure(low)})"
        return _replace(verdict, word=SLOW, says=f"{self.name} {says}")

    def _whole(self, spans: Sequence[Span]) -> Verdict:
        """Return the answer for all steps of these parts, without a warm-up."""
        first, chance = spans[0][0], self.difference.chance
        values, of_lost = self.difference.values[first:], self.difference.lost[first:]
        steps = len(values) * self.size
        pattern = slow_limit(of_lost)
        typical = level_bounds(values, chance)
        mean = lost_bounds(of_lost, chance, pattern, self.others)
        if typical is None or mean is None:
            return unknown(self.device, "a bound needs at least two counted steps", self.fields)
        if len(spans) > 1:  # different levels of the parts are not noise
            typical = _replace(typical, high=_joint_high(level_bounds, self.difference.values, spans, chance))
            mean = _replace(mean, high=_joint_high(mean_bounds, self.difference.lost, spans, chance))
        level, lost = typical.mapped(self.percent), mean.mapped(_weights_percent)
        high = max(level.high, lost.high)
        is_known = level.effective >= min_values(chance)
        margin = (level.middle - level.low) * (1 + _POWER / -NormalDist().inv_cdf(chance))
        resolution = max(SLOW_PERCENT + margin + self.offset, self.floor) if is_known else 100.0
        fields = _replace(
            self.fields,
            percent_under=level.middle,
            percent_under_low=level.low - self.offset,
            percent_under_high=min(max(high + self.offset, self.floor), 100.0),
            resolution_percent=min(resolution, 100.0),
            effective_steps=level.effective * self.size,
            steps=steps,
        )
        now_and_then = pattern is not None and 100 * pattern[0] <= SLOW_PERCENT
        if self._is_slow(level) and not (now_and_then and self._is_slow(lost)):
            return self._said(fields)
        if self._is_slow(lost):
            return self._on_average(fields, lost)
        often = ""
        if lost.middle - level.middle > DISAGREE_PERCENT:
            share, often = self._slow_steps(lost.middle, level.middle)
            fields = _replace(fields, percent_under=lost.middle, share_of_steps=share)
        bound = fields.percent_under_high or 0.0
        if bound <= EVEN_PERCENT:
            even = f"equal to its peers within {at_most(bound)}%" if high > 0 else NOT_SLOWER
            return _replace(fields, word=EVEN, says=f"{self.name} is {even}{often}")
        if self.floor > EVEN_PERCENT:
            why = f"thread scheduling dominates steps of {1000 * self.busy_s:.1f} ms; use a larger batch"
            return unknown(self.device, why, fields)
        # How many more steps would exclude EVEN_PERCENT if the means stay.
        rooms = [(bound, EVEN_PERCENT - self.offset - max(bound.middle, 0.0)) for bound in (level, lost)]
        if all(room > 0 for _, room in rooms):
            factor = max(((bound.high - bound.middle) / room) ** 2 for bound, room in rooms)
            fields = _replace(fields, more_steps=max(0, math.ceil(steps * (factor - 1))))
        typically = ""
        if level.high + self.offset <= EVEN_PERCENT:
            typically = f", {at_most(max(level.high + self.offset, 0.1))}% without single slow steps"
        return _replace(
            fields,
            why=f"{steps:,} steps {'vary too much' if is_known else 'are too few'} for a tighter bound",
            says=f"{self.name} is {slower_at_most(fields)}{typically}{often}",
        )

    def _slow_parts(self, spans: Sequence[Span], slow: Mapping[Span, Interval]) -> Verdict:
        """Return that a device was slow in some parts, or in all of them with different levels."""
        slow_spans, first_steps = list(slow), self.paces.blocks.first_steps
        values = [value for span in slow_spans for value in self.difference.values[slice(*span)]]
        (begin, _), (_, end) = slow_spans[0], slow_spans[-1]
        last = first_steps[self.difference.rows[end - 1]] + self.size - 1
        verdict = _replace(
            self.fields,
            percent_under_low=min(bound.low for bound in slow.values()) - self.offset,
            percent_under_high=max(bound.high for bound in slow.values()) + self.offset,
            percent_under=self.percent(median(values)),
            effective_steps=sum(bound.effective for bound in slow.values()) * self.size,
            steps=len(values) * self.size,
            from_step=None if slow_spans[0] == spans[0] else first_steps[self.difference.rows[begin]],
            to_step=None if slow_spans[-1] == spans[-1] else last,
        )
        return self._said(verdict, throughout=end - begin == len(values))

    def _on_average(self, fields: Verdict, lost: Interval) -> Verdict:
        """Return that a device is slow by the mean of its steps."""
        low = lost.low - self.offset
        share, often = self._slow_steps(lost.middle, fields.percent_under or 0.0)
        waits = (
            f", because it waits for weights{over(self.device)}" if self.difference.part == WEIGHTS else ""
        )
        slower = f"is {percent(lost.middle)}% slower than its peers on average{waits}"
        return _replace(
            fields,
            word=SLOW,
            percent_under=lost.middle,
            percent_under_low=low,
            percent_under_high=lost.high + self.offset,
            resolution_percent=None,
            share_of_steps=share,
            says=f"{self.name} {slower} (at least {at_least(low)}%){often}",
        )

    def _slow_steps(self, under: float, level: float) -> tuple[float | None, str]:
        """Return the share of slow steps, 0 to 1, and a few words about them; None if there are none.

        `under`: percent of pace over all steps. `level`: percent of the typical step. The kept steps show how
        much a slow step loses.
        """
        steps = self.paces.lost_by_step(self.device.tower, self.difference.peer, self.difference.part)
        fast, away = noise_limit(steps)
        border = fast + away
        if not any(share > border for share in steps):
            return None, f": {percent(100 * (under - level) / under)}% of that in few single steps"
        for _ in range(SPLITS):
            fast = median(share for share in steps if share <= border)
            away = fmean(share for share in steps if share > border) - fast
            border = fast + away / 2
        share = min(1.0, (under / (100 - under) - fast) / away)
        return share, f": {percent(100 * share)}% of its steps take {percent(100 * away)}% longer"


def _joint_high(
    bounds: Callable[[Sequence[float], float], Interval | None],
    values: Sequence[float],
    spans: Sequence[Span],
    chance: float,
) -> float:
    """Return the mean of the upper bounds of these parts."""
    known = [(end - begin, bounds(values[begin:end], chance)) for begin, end in spans]
    return sum(count * bound.high for count, bound in known if bound) / sum(count for count, _ in known)
