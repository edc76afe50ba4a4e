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
    MARKS_OFFSET_S,
    MARKS_RESOLUTION_S,
    POWER,
    WARMUP_SHARE,
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
    COMPUTE,
    EVEN,
    EVEN_PERCENT,
    FALSE_ALARM,
    SLOW,
    SLOW_PERCENT,
    WEIGHTS,
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


def _chance(paces: Paces) -> float:
    towers = sum(map(len, paces.kinds)) + sum(map(len, paces.links))
    return WHOLE_SHARE * FALSE_ALARM / max(1, towers)


def differences(paces: Paces) -> list[PeerDifference]:
    """Return the differences of all devices that have a peer with common steps, for computing and weights."""
    found = []
    for groups, part in ((paces.kinds, COMPUTE), (paces.links, WEIGHTS)):
        for group in groups:
            level = paces.level if part == COMPUTE else paces.weights_level
            known = [device for device in group if not math.isnan(level(device.tower))]
            by_level = sorted(known, key=lambda one: (level(one.tower), one.tower))
            by_mean = sorted(known, key=lambda one: (paces.mean_s(one.tower, part), one.tower))
            of_group = (_difference(paces, by_level, by_mean, device, part) for device in known)
            found += [one for one in of_group if one is not None]
    return found


def _difference(
    paces: Paces, by_level: Sequence[Device], by_mean: Sequence[Device], device: Device, part: str
) -> PeerDifference | None:
    """Return how far a device is behind its peers. `by_level`, `by_mean`: its group, the fastest first."""
    kinds = paces.kind_by_tower
    alike = [one.tower for one in by_level if kinds[one.tower] == kinds[device.tower]]
    peers = alike if len(alike) > 1 else [one.tower for one in by_level]  # of one kind if possible
    if len(peers) < 2:
        return None
    peer = reference_of(device.tower, peers)
    like_peer = {tower for tower in peers if kinds[tower] == kinds[peer]}
    least = reference_of(device.tower, [one.tower for one in by_mean if one.tower in like_peer])
    column = paces.compute if part == COMPUTE else paces.weights
    # The table already accounts for the speeds of kinds.
    allowed = math.log(paces.batch_allowance(device.tower, peer)) if part == COMPUTE else 0.0
    values = [own - other - allowed for own, other in zip(column(device.tower), column(peer), strict=True)]
    longer_s, others_s = paces.lost(device.tower, least, part)
    rows = [row for row, value in enumerate(zip(values, longer_s, strict=True)) if not math.isnan(sum(value))]
    if not rows:
        return None
    return PeerDifference(
        device=device,
        peer=peer,
        part=part,
        values=[values[row] for row in rows],
        lost=_shares([longer_s[row] for row in rows], [others_s[row] for row in rows]),
        rows=rows,
        chance=_chance(paces),
    )


def _shares(longer_s: Sequence[float], others_s: Sequence[float]) -> list[float]:
    """Return shares whose mean is the ratio of the two means, and whose spread is the spread of its error."""
    mean_s = fmean(others_s)
    ratio = fmean(longer_s) / mean_s
    return [ratio + (one - ratio * other) / mean_s for one, other in zip(longer_s, others_s, strict=True)]


def percent_of(part: str) -> Callable[[float], float]:
    """Return the function that converts a difference of this part to percent of pace."""
    return _compute_percent if part == COMPUTE else _weights_percent


def _compute_percent(difference: float) -> float:
    return 100 * (1 - math.exp(-max(difference, -math.log(MAX_TIMES))))


def _weights_percent(difference: float) -> float:
    # Percent of the time that the device is busy: ten times a negligible wait is still negligible.
    return 100 * difference / (1 + difference) if difference > 1 / MAX_TIMES - 1 else 100 * (1 - MAX_TIMES)


def unknown(device: Device, why: str, like: Verdict | None = None) -> Verdict:
    """Return that a device is neither slow nor even, and why, with the measured figures of `like`."""
    gpu = None if device.is_cpu else device.gpu
    found = like or Verdict(word=CANNOT_TELL, says="", tower=device.tower, gpu=gpu)
    known = f" is {slower_at_most(found)}" if found.percent_under_high is not None else ": not compared"
    return _replace(found, word=CANNOT_TELL, why=why, says=f"{device.name}{known}: {why}")


def answer(paces: Paces, found: PeerDifference, among: Sequence[PeerDifference]) -> Verdict:
    """Return the answer for one difference. `among`: all differences of the run."""
    return _Answer(paces, found, among).verdict()


class _Answer:
    """The answer for one difference.

    `offset`: percent that time marks and expected speeds add to the bounds. `floor`: percent that marks
    cannot resolve.
    """

    def __init__(self, paces: Paces, found: PeerDifference, among: Sequence[PeerDifference]) -> None:
        self.paces, self.found, self.device = paces, found, found.device
        self.name, self.percent = found.device.name, percent_of(found.part)
        kinds = paces.kind_by_tower
        own_kind = kinds[self.device.tower]
        self.others = [
            one.lost
            for one in among
            if one.part == found.part and one is not found and kinds[one.device.tower] == own_kind
        ]
        self.size = paces.blocks.size
        self.busy_s = paces.busy_s(self.device.tower)
        unsure = paces.unsure(self.device.tower, found.peer) if found.part == COMPUTE else 0.0
        self.offset = 100 * MARKS_OFFSET_S / self.busy_s + 100 * (1 - math.exp(-unsure))
        self.floor = 100 * MARKS_RESOLUTION_S / self.busy_s
        self.fields = Verdict(
            word=CANNOT_TELL,
            says="",
            tower=self.device.tower,
            gpu=None if self.device.is_cpu else self.device.gpu,
            against="peers",
            part=found.part,
            percent_under=self.percent(median(found.values)),
            steps=len(found.values) * self.size,
        )

    def is_slow(self, bounds: Interval) -> bool:
        return bounds.effective >= min_values(self.found.chance) and self.is_above(bounds)

    def is_above(self, bounds: Interval) -> bool:
        return bounds.low - self.offset > max(SLOW_PERCENT, self.floor)

    def verdict(self) -> Verdict:
        values = self.found.values
        spans = parts(values, self.size)
        if len(spans) > 1:
            spans = self._without_warmup(spans)
            chance = self.found.chance / PLACES
            bounds = {span: part_bounds(values[slice(*span)], chance) for span in spans}
            known = {span: one.mapped(self.percent) for span, one in bounds.items()}
            slow = {span: one for span, one in known.items() if self.is_above(one)}
            if sum(one.effective for one in slow.values()) >= min_values(chance):
                return self._slow_parts(spans, slow)
        return self._whole(spans)

    def _said(self, found: Verdict, throughout: bool = True) -> Verdict:
        """Return the verdict on a slow device: how much slower it is, and in which part of the run."""
        shown, low = percent(found.percent_under or 0.0), found.percent_under_low or 0.0
        by, where = self.paces.source(self.device.tower, self.found.peer), when(found, throughout)
        if found.part == COMPUTE and by is not None:
            than = f"than it should compared with devices of another model ({by})"
            says = f"computes {shown}% slower {than}{where}, at least {at_least(low)}%"
        elif found.part == COMPUTE:
            says = f"computes {shown}% slower than its peers{where} ({sure(low)})"
        else:
            waits = f"because it waits longer for weights{over(self.device)}"
            says = f"is {shown}% slower than its peers {waits}{where} ({sure(low)})"
        return _replace(found, word=SLOW, says=f"{self.name} {says}")

    def _whole(self, spans: Sequence[Span]) -> Verdict:
        """Return the answer for all steps of these parts, without a warm-up."""
        first, chance = spans[0][0], self.found.chance
        values, of_lost = self.found.values[first:], self.found.lost[first:]
        steps = len(values) * self.size
        pattern = slow_limit(of_lost)
        typical = level_bounds(values, chance)
        mean = lost_bounds(of_lost, chance, pattern, self.others)
        if typical is None or mean is None:
            return unknown(self.device, "a bound needs at least two counted steps", self.fields)
        if len(spans) > 1:  # different levels of the parts are not noise
            typical = _replace(typical, high=_joint_high(level_bounds, self.found.values, spans, chance))
            mean = _replace(mean, high=_joint_high(mean_bounds, self.found.lost, spans, chance))
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
        if self.is_slow(level) and not (now_and_then and self.is_slow(lost)):
            return self._said(fields)
        if self.is_slow(lost):
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
        more = [self._more_steps(one, steps) for one in (level, lost)]
        if None not in more:
            fields = _replace(fields, more_steps=max(one or 0 for one in more))
        typically = ""
        if level.high + self.offset <= EVEN_PERCENT:
            typically = f", {at_most(max(level.high + self.offset, 0.1))}% without single slow steps"
        return _replace(
            fields,
            why=f"{steps:,} steps {'vary too much' if is_known else 'are too few'} for a tighter bound",
            says=f"{self.name} is {slower_at_most(fields)}{typically}{often}",
        )

    def _more_steps(self, bounds: Interval, steps: int) -> int | None:
        """Return how many more steps would exclude `EVEN_PERCENT` if the mean stays, or None."""
        room = EVEN_PERCENT - self.offset - max(bounds.middle, 0.0)
        if room <= 0:
            return None
        return max(0, math.ceil(steps * (((bounds.high - bounds.middle) / room) ** 2 - 1)))

    def _without_warmup(self, spans: list[Span]) -> list[Span]:
        """Remove a first part that is slower than the next and short compared with the rest."""
        first, rest = spans[0], spans[1:]
        steps = rest[-1][1] - first[1]
        slower = median(self.found.values[slice(*first)]) > median(self.found.values[slice(*rest[0])])
        return rest if slower and first[1] - first[0] <= WARMUP_SHARE * steps else spans

    def _slow_parts(self, spans: Sequence[Span], slow: Mapping[Span, Interval]) -> Verdict:
        """Return that a device was slow in some parts, or in all of them with different levels."""
        slow_spans, first_steps = list(slow), self.paces.blocks.first_steps
        values = [value for span in slow_spans for value in self.found.values[slice(*span)]]
        (begin, _), (_, end) = slow_spans[0], slow_spans[-1]
        last = first_steps[self.found.rows[end - 1]] + self.size - 1
        verdict = _replace(
            self.fields,
            percent_under_low=min(one.low for one in slow.values()) - self.offset,
            percent_under_high=max(one.high for one in slow.values()) + self.offset,
            percent_under=self.percent(median(values)),
            effective_steps=sum(one.effective for one in slow.values()) * self.size,
            steps=len(values) * self.size,
            from_step=None if slow_spans[0] == spans[0] else first_steps[self.found.rows[begin]],
            to_step=None if slow_spans[-1] == spans[-1] else last,
        )
        return self._said(verdict, throughout=end - begin == len(values))

    def _on_average(self, fields: Verdict, lost: Interval) -> Verdict:
        """Return that a device is slow by the mean of its steps."""
        low = lost.low - self.offset
        share, often = self._slow_steps(lost.middle, fields.percent_under or 0.0)
        waits = f", because it waits for weights{over(self.device)}" if self.found.part == WEIGHTS else ""
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
        steps = self.paces.lost_by_step(self.device.tower, self.found.peer, self.found.part)
        fast, away = noise_limit(steps)
        border = fast + away
        if not any(one > border for one in steps):
            return None, f": {percent(100 * (under - level) / under)}% of that in few single steps"
        for _ in range(SPLITS):
            fast = median(one for one in steps if one <= border)
            away = fmean(one for one in steps if one > border) - fast
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
    return sum(count * one.high for count, one in known if one) / sum(count for count, _ in known)
