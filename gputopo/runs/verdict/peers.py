"""A device against its peers: the difference with bounds, and the answer: slow, even, or cannot tell. Pure.

Slow: the lower bound of the difference is above `SLOW_PERCENT`. Even: the upper bound is not above
`EVEN_PERCENT`. Cannot tell: neither is proven. What is true of a part of the run, or of single steps all
over it, is answered as such.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import sub
from statistics import NormalDist, fmean, median

import msgspec

from gputopo.runs.devices import is_cpu, name_of, reference_of
from gputopo.runs.verdict.bounds import Interval, interval, min_values
from gputopo.runs.verdict.changes import (
    MAX_PARTS,
    differs_somewhere,
    mean_bounds,
    parts,
    residual_time,
    slow_limit,
)
from gputopo.runs.verdict.paces import Paces, lost_share
from gputopo.runs.verdict.words import (
    EVEN_PERCENT,
    FALSE_ALARM,
    MARKS_OFFSET_S,
    MARKS_RESOLUTION_S,
    MAX_EXCLUDED,
    POWER,
    SLOW_PERCENT,
    WARMUP_SHARE,
    WHOLE_SHARE,
    at_least,
    at_most,
    looks,
    over,
    percent,
    sure,
    when,
)
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import CANNOT_TELL, COMPUTE, EVEN, SLOW, WEIGHTS, Verdict

# A device so many times as fast as its peer is one whose peer stood still.
MAX_TIMES = 100.0
NOT_SLOWER = "not slower than its peers"
# Mean and median disagree from here on, in percent of pace: then slow steps are described.
DISAGREE_PERCENT = 1.0
SPLITS = 4  # of fast from slow steps, halfway between their levels; by then they have settled

_Span = tuple[int, int]  # begin and end, not included
_replace = msgspec.structs.replace


class PeerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device is behind its peer, by row: logarithms of compute times, shares of busy time."""

    device: Device
    peer: int
    part: str
    values: Sequence[float]  # medians of the rows; negative: ahead
    lost: Sequence[float]  # means of the time lost in the rows, as shares of the peer's time
    rows: Sequence[int]  # places of the values in the table
    chance: float


def _chance(paces: Paces) -> float:
    towers = sum(map(len, paces.kinds)) + sum(map(len, paces.links))
    return WHOLE_SHARE * FALSE_ALARM / max(1, towers)


def steps_needed(paces: Paces) -> int:
    """Return how many steps a verdict needs at least."""
    return min_values(_chance(paces))


def differences(paces: Paces) -> list[PeerDifference]:
    """Return the differences of all devices that have a peer with common steps, compute and weights."""
    found = []
    for groups, part in ((paces.kinds, COMPUTE), (paces.links, WEIGHTS)):
        for group in groups:
            level = paces.level if part == COMPUTE else paces.weights_level
            found_levels = {device: level(device.tower) for device in group}
            levels = dict(
                sorted(found_levels.items(), key=lambda one: (math.isnan(one[1]), one[1], one[0].tower))
            )
            of_group = (_difference(paces, levels, device, part) for device in group)
            found += [one for one in of_group if one is not None]
    return found


def _difference(
    paces: Paces, levels: Mapping[Device, float], device: Device, part: str
) -> PeerDifference | None:
    """Return how far a device is behind its peer. `levels`: of its group, the fastest first."""
    kinds = paces.kind_by_tower
    alike = [one for one in levels if kinds[one.tower] == kinds[device.tower]]
    of_kind = alike if len(alike) > 1 else levels  # its own, where there are others of it
    peers = [other for other in of_kind if not math.isnan(levels[other])]
    if device not in peers or len(peers) < 2:
        return None
    peer = reference_of(device.tower, [other.tower for other in peers])
    column = paces.compute if part == COMPUTE else paces.weights
    # The table has the kinds at their speeds.
    allowed = math.log(paces.batch_allowance(device.tower, peer)) if part == COMPUTE else 0.0
    # The time lost is that of an example each.
    excess = lost_share(allowed - paces.batch_ratio(device.tower, peer)) if part == COMPUTE else 0.0
    values = _behind(column(device.tower), column(peer), allowed)
    lost = _behind(paces.lost(device.tower, part), paces.lost(peer, part), excess)
    rows: Sequence[int] = range(len(values))
    if math.isnan(sum(values)):
        rows = [row for row in rows if not math.isnan(values[row])]
        values, lost = [values[row] for row in rows], [lost[row] for row in rows]
    if not rows:
        return None
    return PeerDifference(
        device=device, peer=peer, part=part, values=values, lost=lost, rows=rows, chance=_chance(paces)
    )


def _behind(own: Sequence[float], other: Sequence[float], allowed: float) -> list[float]:
    behind = [*map(sub, own, other)]
    return [one - allowed for one in behind] if allowed else behind


def percent_of(part: str) -> Callable[[float], float]:
    """Return what makes percent of pace of a difference: of logarithms, or of shares of the busy time."""
    return _compute_percent if part == COMPUTE else _weights_percent


def _compute_percent(difference: float) -> float:
    return 100 * (1 - math.exp(-max(difference, -math.log(MAX_TIMES))))


def _weights_percent(difference: float) -> float:
    # Of the time that the device is busy: ten times a wait that is next to nothing is still next to nothing.
    return 100 * difference / (1 + difference) if difference > 1 / MAX_TIMES - 1 else 100 * (1 - MAX_TIMES)


def unknown(device: Device, why: str, like: Verdict | None = None) -> Verdict:
    """Return that nothing can be told, with the measured figures of `like`."""
    gpu = None if is_cpu(device) else device.gpu
    found = like or Verdict(word=CANNOT_TELL, says="", tower=device.tower, gpu=gpu)
    says = f"{name_of(device)}: cannot tell{looks(found)}: {why}"
    return _replace(found, word=CANNOT_TELL, why=why, says=says)


def answer(paces: Paces, found: PeerDifference, among: Sequence[PeerDifference]) -> Verdict:
    """Return the answer for one difference, `among` all of the run."""
    return _Answer(paces, found, among).verdict()


class _Answer:
    """The answer for one difference.

    `offset`: what time marks and expected speeds add to bounds, `floor`: what marks cannot resolve; percent.
    """

    def __init__(self, paces: Paces, found: PeerDifference, among: Sequence[PeerDifference]) -> None:
        self.paces, self.found, self.device = paces, found, found.device
        self.name, self.percent = name_of(found.device), percent_of(found.part)
        kinds = paces.kind_by_tower
        own_kind = kinds[self.device.tower]
        self.others = [
            one.lost
            for one in among
            if one.part == found.part and one is not found and kinds[one.device.tower] == own_kind
        ]
        self.size = paces.blocks.size
        self.differs = differs_somewhere(found.values, self.size)
        self.busy_s = paces.busy_s(self.device.tower)
        unsure = paces.unsure(self.device.tower, found.peer) if found.part == COMPUTE else 0.0
        self.offset = 100 * MARKS_OFFSET_S / self.busy_s + 100 * (1 - math.exp(-unsure))
        self.floor = 100 * MARKS_RESOLUTION_S / self.busy_s
        self.fields = Verdict(
            word=CANNOT_TELL,
            says="",
            tower=self.device.tower,
            gpu=None if is_cpu(self.device) else self.device.gpu,
            against="peers",
            part=found.part,
            percent_under=self.percent(median(found.values)),
            steps=len(found.values) * self.size,
        )

    def is_slow(self, bounds: Interval) -> bool:
        return bounds.low - self.offset > max(SLOW_PERCENT, self.floor)

    def verdict(self) -> Verdict:
        spans = [(0, len(self.found.values))]
        if self.differs:
            spans = parts(self.found.values, self.size)
        if len(spans) > 1:
            spans = self._without_warmup(spans)
            bounds = zip(spans, self._intervals(spans, self.found.chance / MAX_PARTS), strict=True)
            known = {span: one.mapped(self.percent) for span, one in bounds if one is not None}
            slow = {span: one for span, one in known.items() if self.is_slow(one)}
            if slow:
                return self._slow_parts(spans, slow)
        return self._whole(spans)

    def _said(self, found: Verdict, throughout: bool = True) -> Verdict:
        """Return the verdict on a slow device with how much slower it is, and in which part of the run."""
        shown, low = percent(found.percent_under or 0.0), found.percent_under_low or 0.0
        by, where = self.paces.source(self.device.tower, self.found.peer), when(found, throughout)
        if found.part == COMPUTE and by is not None:
            than = f"than it should beside devices of another model ({by})"
            says = f"computes {shown}% slower {than}{where}, at least {at_least(low)}%"
        elif found.part == COMPUTE:
            says = f"computes {shown}% slower than its peers{where} ({sure(low)})"
        else:
            waits = f"as it waits longer for its weights{over(self.device)}"
            says = f"is {shown}% slower than its peers {waits}{where} ({sure(low)})"
        return _replace(found, word=SLOW, says=f"{self.name} {says}")

    def _whole(self, spans: Sequence[_Span]) -> Verdict:
        """Return the answer for all steps of these parts: after what was a warm-up."""
        values = self.found.values[spans[0][0] :]
        steps = len(values) * self.size
        mean = self._mean(spans)
        lost = None if mean is None else mean.mapped(_weights_percent)
        enough = len(values) >= steps_needed(self.paces)
        bounds, half_width = lost if enough else None, 0.0
        if self.differs:  # its level may be proven where the mean is not, beside stalls
            bounds, half_width = self._of_all(spans)
        if lost is not None and bounds is None and enough and self.is_slow(lost):
            return self._on_average(_replace(self.fields, steps=steps), lost)
        if bounds is None or mean is None or lost is None:
            return unknown(self.device, self._too_few(values, steps), self.fields)
        widths = (half_width, *map(self.percent, (mean.high - mean.middle, mean.middle - mean.low)))
        low, high = bounds.low - self.offset, max(max(bounds.high, lost.high) + self.offset, self.floor)
        margin = max(widths) * (1 + NormalDist().inv_cdf(POWER) / -NormalDist().inv_cdf(self.found.chance))
        fields = _replace(
            self.fields,
            percent_under=self.percent(median(values)),
            percent_under_low=low,
            percent_under_high=high,
            resolution_percent=max(SLOW_PERCENT + margin + self.offset, self.floor),
            effective_steps=bounds.effective * self.size,
            steps=steps,
        )
        if self.is_slow(bounds):
            half = len(values) // 2
            if self.percent(min(median(values[:half]), median(values[half:]))) > SLOW_PERCENT:
                return self._said(fields)
        if self.is_slow(lost):
            return self._on_average(fields, lost)
        often = ""
        if lost.middle - (fields.percent_under or 0.0) > DISAGREE_PERCENT:
            share, often = self._slow_steps(lost.middle)
            fields = _replace(fields, percent_under=lost.middle, share_of_steps=share)
        if high <= EVEN_PERCENT:
            slower = max(bounds.high, lost.high) > 0
            even = f"even with its peers to within {at_most(high)}%" if slower else NOT_SLOWER
            return _replace(fields, word=EVEN, says=f"{self.name} is {even}{often}")
        return self._not_known(fields, margin, often)

    def _not_known(self, fields: Verdict, margin: float, often: str) -> Verdict:
        """Return that neither is proven, what is excluded, and how many steps more exclude enough."""
        high = fields.percent_under_high or 0.0
        excluded = f"a difference above {at_most(high)}% is excluded"
        if high > MAX_EXCLUDED:
            excluded = "the run is too short"
        if often:
            excluded = f"{often.removeprefix(': ')}; {excluded}"
        room = EVEN_PERCENT - SLOW_PERCENT - self.offset
        if self.floor > EVEN_PERCENT:
            excluded += f"; threads decide steps of {1000 * self.busy_s:.1f} ms, a larger batch excludes more"
        elif 0 < room < margin:
            more = math.ceil(fields.steps * ((margin / room) ** 2 - 1))
            fields = _replace(fields, more_steps=more)
        return unknown(self.device, excluded, fields)

    def _too_few(self, values: Sequence[float], steps: int) -> str:
        if len(values) < (needed := steps_needed(self.paces)):
            return f"too few steps ({needed} needed, {steps} counted)"
        return f"the pace drifts over many steps, {steps:,} steps are too few to know by how much"

    def _without_warmup(self, spans: list[_Span]) -> list[_Span]:
        """Leave out a first part that is slower than the next and short beside what comes after."""
        first, rest = spans[0], spans[1:]
        steps = rest[-1][1] - first[1]
        slower = median(self.found.values[slice(*first)]) > median(self.found.values[slice(*rest[0])])
        return rest if slower and first[1] - first[0] <= WARMUP_SHARE * steps else spans

    def _intervals(self, spans: Sequence[_Span], chance: float) -> list[Interval | None]:
        """Return the bounds of the median of each part."""
        values = self.found.values
        if len(spans) == 1 and spans[0] == (0, len(values)):
            return [interval(values, chance)]
        time = residual_time(values, spans)
        return [interval(values[slice(*span)], chance, time, of=len(values)) for span in spans]

    def _of_all(self, spans: Sequence[_Span]) -> tuple[Interval | None, float]:
        """Return bounds that hold in all parts, and half of their width, the widest, at no difference."""
        known = [one for one in self._intervals(spans, self.found.chance) if one is not None]
        if len(known) < len(spans):
            return None, 0.0
        everywhere = Interval(
            low=min(one.low for one in known),
            middle=median(self.found.values[spans[0][0] :]),
            high=max(one.high for one in known),
            effective=sum(one.effective for one in known),
        )
        return everywhere.mapped(self.percent), self.percent(max(one.half_width for one in known))

    def _slow_parts(self, spans: Sequence[_Span], slow: Mapping[_Span, Interval]) -> Verdict:
        """Return that a device was slow in some parts, or with differing levels in all of them."""
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
        low, (share, often) = lost.low - self.offset, self._slow_steps(lost.middle)
        waits = f", as it waits for its weights{over(self.device)}" if self.found.part == WEIGHTS else ""
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

    def _mean(self, spans: Sequence[_Span]) -> Interval | None:
        """Return the bounds of the mean time lost in these parts.

        The upper bound is that of what is left above the level of each part; the lower one, which accuses,
        takes levels that differ for noise.
        """
        values = self.found.lost[spans[0][0] :]
        plain = mean_bounds(values, self.found.chance, self.others)
        if len(spans) == 1:
            return plain
        lost = lost_share if self.found.part == COMPUTE else float
        levels = [lost(median(self.found.values[slice(*span)])) for span in spans for _ in range(*span)]
        above = mean_bounds([one - of for one, of in zip(values, levels, strict=True)], self.found.chance)
        if above is None:  # what is left goes on for long: these are no levels
            return plain
        low, level = -1.0 if plain is None else plain.low, fmean(levels)
        return _replace(above, low=low, middle=above.middle + level, high=above.high + level)

    def _slow_steps(self, under: float) -> tuple[float | None, str]:
        """Return the share of the steps that are slow, 0 to 1, and a few words on them; None: no such.

        `under`: percent of pace over all steps. How much a slow one loses is seen in the stored steps.
        """
        steps = self.paces.lost_by_step(self.device.tower, self.found.peer, self.found.part)
        limit = slow_limit(steps)
        if limit is None:
            return None, ""
        border = limit[1]
        for _ in range(SPLITS):
            level = median(one for one in steps if one <= border)
            away = fmean(one for one in steps if one > border) - level
            border = level + away / 2
        share = min(1.0, (under / (100 - under) - level) / away)
        return share, f": {percent(100 * share)}% of its steps take {percent(100 * away)}% longer"
