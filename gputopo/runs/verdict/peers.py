"""A device against its peers: the difference with bounds, and the answer: slow, even, or cannot tell. Pure.

Slow: the lower bound of the difference is above `SLOW_PERCENT`. Even: the upper bound is not above
`EVEN_PERCENT`. Cannot tell: neither is proven. What is true of a part of the run, or of single steps all
over it, is answered as such.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, median

import msgspec

from gputopo.runs.bounded import FOLD
from gputopo.runs.devices import is_cpu, kind_of, name_of, reference_of
from gputopo.runs.verdict.bounds import Interval, correlation_time, interval, lacking, min_values
from gputopo.runs.verdict.changes import MAX_PARTS, dips, parts, residual_time, slow_values
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.words import (
    EVEN_PERCENT,
    FALSE_ALARM,
    MARKS_OFFSET_S,
    MARKS_RESOLUTION_S,
    POWER,
    SLOW_PERCENT,
    WARMUP_SHARE,
    WHOLE_SHARE,
    at_least,
    at_most,
    looks,
    over,
    percent,
    rounded,
    sure,
    when,
)
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import CANNOT_TELL, COMPUTE, EVEN, SLOW, WEIGHTS, Verdict

# A device so many times as fast as its peer is one whose peer stood still.
MAX_TIMES = 100.0
# Steps of a row whose mean says something that its median does not.
MIN_OF_MEAN = FOLD**3

_Span = tuple[int, int]  # begin and end, not included
_replace = msgspec.structs.replace


class PeerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device is behind its peer, by row: logarithms of compute times, shares of busy time."""

    device: Device
    peer: int
    part: str
    values: tuple[float, ...]  # negative: ahead
    rows: tuple[int, ...]  # places of the values in the table
    interval: Interval | None  # of the values; None: too few steps, or too few independent ones
    allowed: float  # what the values are without: see `Paces.allowance`
    chance: float

    def percent(self, bounds: Interval) -> Interval:
        """Return an interval of differences in percent of pace."""
        of = percent_of(self.part)
        return _replace(bounds, low=of(bounds.low), middle=of(bounds.middle), high=of(bounds.high))


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
            levels = {device: _level(paces, device, part) for device in group}
            of_group = (_difference(paces, levels, device, part) for device in group)
            found += [one for one in of_group if one is not None]
    return found


def _level(paces: Paces, device: Device, part: str) -> float:
    """Return the median of a device over the steps, NaN of none."""
    if part == COMPUTE:
        return paces.level(device.tower)
    known = [value for value in paces.weights(device.tower) if not math.isnan(value)]
    return median(known) if known else math.nan


def _difference(
    paces: Paces, levels: Mapping[Device, float], device: Device, part: str
) -> PeerDifference | None:
    alike = [other for other in levels if kind_of(other) == kind_of(device)]
    of_kind = alike if len(alike) > 1 else levels  # its own, where there are others of it
    peers = [other for other in of_kind if not math.isnan(levels[other])]
    if device not in peers or len(peers) < 2:
        return None
    fastest_first = sorted(peers, key=lambda other: (levels[other], other.tower))
    peer = reference_of(device.tower, [other.tower for other in fastest_first])
    column = paces.compute if part == COMPUTE else paces.weights
    # The table has the kinds at their speeds.
    allowed = math.log(paces.batch_allowance(device.tower, peer)) if part == COMPUTE else 0.0
    both = enumerate(zip(column(device.tower), column(peer), strict=True))
    known = {row: own - other - allowed for row, (own, other) in both if not math.isnan(own - other)}
    if not known:
        return None
    chance, values = _chance(paces), tuple(known.values())
    return PeerDifference(
        device=device,
        peer=peer,
        part=part,
        values=values,
        rows=tuple(known),
        interval=interval(values, chance),
        allowed=allowed,
        chance=chance,
    )


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


def answer(paces: Paces, found: PeerDifference) -> Verdict:
    """Return the answer for one difference."""
    return _Answer(paces, found).verdict()


class _Answer:
    """The answer for one difference.

    `offset`: what time marks and expected speeds add to bounds, `floor`: what marks cannot resolve; percent.
    """

    def __init__(self, paces: Paces, found: PeerDifference) -> None:
        self.paces, self.found, self.device = paces, found, found.device
        self.name, self.percent = name_of(found.device), percent_of(found.part)
        self.size = paces.blocks.size
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
        spans = parts(self.found.values, self.size)
        if len(spans) > 1:
            spans = self._without_warmup(spans)
            bounds = self._of_spans(spans, self.found.chance / MAX_PARTS)
            slow = {span: one for span, one in bounds.items() if one is not None and self.is_slow(one)}
            if slow:
                return self._slow_parts(spans, slow)
        whole = self._whole(spans)
        if whole.word == SLOW or self.found.part != COMPUTE:
            return whole
        means = self._means()
        if slow_steps := self._slow_steps(means):
            return slow_steps
        return self._but_for_steps(whole, means) if whole.word == EVEN else whole

    def _slow(self, low: float, high: float, **more: object) -> Verdict:
        return _replace(
            self.fields,
            word=SLOW,
            percent_under_low=low,
            percent_under_high=high,
            **more,
        )

    def _said(self, found: Verdict, throughout: bool = True) -> Verdict:
        """Return the verdict on a slow device with how much slower it is, and in which part of the run."""
        shown, low = percent(found.percent_under or 0.0), found.percent_under_low or 0.0
        by, where = self.paces.source(self.device.tower, self.found.peer), when(found, throughout)
        if found.part == COMPUTE and by is not None:
            than = f"than it should beside devices of another model ({by})"
            says = f"computes {shown} % slower {than}{where}, at least {at_least(low)} %"
        elif found.part == COMPUTE:
            says = f"computes {shown} % slower than its peers{where} ({sure(low)})"
        else:
            waits = f"as it waits longer for its weights{over(self.device)}"
            says = f"is {shown} % slower than its peers {waits}{where} ({sure(low)})"
        return _replace(found, word=SLOW, says=f"{self.name} {says}")

    def _whole(self, spans: Sequence[_Span]) -> Verdict:
        """Return the answer for all steps of these parts: after what was a warm-up."""
        values = self.found.values[spans[0][0] :]
        steps = len(values) * self.size
        bounds, half_width = self._of_all(spans)
        if bounds is None:
            return unknown(self.device, self._too_few(values, steps), self.fields)
        low, high = bounds.low - self.offset, max(bounds.high + self.offset, self.floor)
        margin = half_width * (1 + NormalDist().inv_cdf(POWER) / -NormalDist().inv_cdf(self.found.chance))
        fields = _replace(
            self.fields,
            percent_under=bounds.middle,
            percent_under_low=low,
            percent_under_high=high,
            resolution_percent=max(SLOW_PERCENT + margin + self.offset, self.floor),
            effective_steps=bounds.effective * self.size,
            steps=steps,
        )
        half = len(values) // 2
        halves = self.percent(median(values[:half])), self.percent(median(values[half:]))
        if self.is_slow(bounds) and min(halves) > SLOW_PERCENT:
            return self._said(fields)
        if high <= EVEN_PERCENT:
            says = f"{self.name} is even with its peers to within {at_most(high)} %"
            return _replace(fields, word=EVEN, says=says)
        resolves = f"this run resolves differences above {at_most(fields.resolution_percent or 0.0)} %"
        room = EVEN_PERCENT - SLOW_PERCENT - self.offset
        if self.floor > EVEN_PERCENT:
            short = f"threads decide steps of {1000 * self.busy_s:.1f} ms, a larger batch resolves more"
            return unknown(self.device, f"{resolves}; {short}", fields)
        if 0 < room < margin:  # steps resolve more
            more = math.ceil(steps * ((margin / room) ** 2 - 1))
            fields = _replace(fields, more_steps=more)
            resolves += f"; about {rounded(more)} more steps would resolve {EVEN_PERCENT:g} %"
        return unknown(self.device, resolves, fields)

    def _too_few(self, values: Sequence[float], steps: int) -> str:
        if len(values) < (needed := steps_needed(self.paces)):
            return f"too few steps ({needed} needed, {steps} counted)"
        few = f"the pace drifts over many steps, {steps:,} steps are too few to know by how much"
        more = self.size * lacking(len(values), correlation_time(values))
        return f"{few}; about {rounded(more)} more are enough if it continues like this" if more else few

    def _without_warmup(self, spans: list[_Span]) -> list[_Span]:
        """Leave out a first part that is slower than the next and short beside what comes after."""
        first, rest = spans[0], spans[1:]
        steps = rest[-1][1] - first[1]
        slower = median(self.found.values[slice(*first)]) > median(self.found.values[slice(*rest[0])])
        return rest if slower and first[1] - first[0] <= WARMUP_SHARE * steps else spans

    def _of_spans(self, spans: Sequence[_Span], chance: float) -> dict[_Span, Interval | None]:
        """Return the bounds of each part, in percent."""
        values = self.found.values
        time = residual_time(values, spans)
        bounds = {span: interval(values[slice(*span)], chance, time, of=len(values)) for span in spans}
        return {span: None if one is None else self.found.percent(one) for span, one in bounds.items()}

    def _of_all(self, spans: Sequence[_Span]) -> tuple[Interval | None, float]:
        """Return bounds that hold in all parts, and half of their width, the widest, at no difference."""
        values = self.found.values
        if len(spans) == 1 and spans[0] == (0, len(values)):
            of_parts = [self.found.interval]
        else:
            time = residual_time(values, spans)
            of_parts = [
                interval(values[slice(*one)], self.found.chance, time, of=len(values)) for one in spans
            ]
        known = [one for one in of_parts if one is not None]
        if len(known) < len(spans):
            return None, 0.0
        everywhere = Interval(
            low=min(one.low for one in known),
            middle=median(values[spans[0][0] :]),
            high=max(one.high for one in known),
            effective=sum(one.effective for one in known),
        )
        return self.found.percent(everywhere), self.percent(max(one.half_width for one in known))

    def _slow_parts(self, spans: Sequence[_Span], slow: Mapping[_Span, Interval]) -> Verdict:
        """Return that a device was slow in some parts, or with differing levels in all of them."""
        slow_spans, first_steps = list(slow), self.paces.blocks.first_steps
        values = [value for span in slow_spans for value in self.found.values[slice(*span)]]
        (begin, _), (_, end) = slow_spans[0], slow_spans[-1]
        last = first_steps[self.found.rows[end - 1]] + self.size - 1
        verdict = self._slow(
            min(one.low for one in slow.values()) - self.offset,
            max(one.high for one in slow.values()) + self.offset,
            percent_under=self.percent(median(values)),
            effective_steps=sum(one.effective for one in slow.values()) * self.size,
            steps=len(values) * self.size,
            from_step=None if slow_spans[0] == spans[0] else first_steps[self.found.rows[begin]],
            to_step=None if slow_spans[-1] == spans[-1] else last,
        )
        return self._said(verdict, throughout=end - begin == len(values))

    def _means(self) -> list[float]:
        """Return the difference in each row by the means of its steps: a median hides single ones."""
        own = self.paces.compute_means(self.device.tower)
        peer = self.paces.compute_means(self.found.peer)
        return [own[row] - peer[row] - self.found.allowed for row in self.found.rows]

    def _slow_steps(self, means: Sequence[float]) -> Verdict | None:
        """Return that a device is slow in single steps all over the run, or None."""
        dip = dips(means)
        if dip is None:
            return self._slow_on_average(means)
        low = self.percent(dip.mean_low + dip.level) - self.offset
        high = self.percent(dip.away + dip.level)
        if high <= self.floor or low <= SLOW_PERCENT:
            return None
        under = self.percent(dip.share * dip.away + dip.level)
        away, share = percent(self.percent(dip.away)), percent(100 * dip.share)
        steps = f"{away} % slower than its peers in {share} % of the steps"
        average = f"{percent(under)} % on average (at least {at_least(low)} %)"
        says = f"{self.name} computes {steps}, {average}"
        return self._slow(low, high, percent_under=under, share_of_steps=dip.share, says=says)

    def _slow_on_average(self, means: Sequence[float]) -> Verdict | None:
        """Return that a device is slow in steps that no row shows: rows of a long run are means of many."""
        bounds = interval(means, self.found.chance) if self.size >= MIN_OF_MEAN else None
        if bounds is None or not self.is_slow(shown := self.found.percent(bounds)):
            return None
        low, high = shown.low - self.offset, shown.high + self.offset
        slower = f"computes {percent(shown.middle)} % slower than its peers on average"
        says = f"{self.name} {slower}, but not in most steps (at least {at_least(low)} %)"
        return self._slow(low, high, percent_under=shown.middle, says=says)

    def _but_for_steps(self, even: Verdict, means: Sequence[float]) -> Verdict:
        """Return an even device with the few steps in which it is slow, where there are such."""
        slow = slow_values(means)
        away = 0.0 if slow is None else self.percent(median(slow.distances) + slow.level)
        if slow is None or away <= max(EVEN_PERCENT, self.floor):
            return even
        share = len(slow.distances) / len(means)
        steps = f"in {percent(100 * share)} % of the steps it is {percent(away)} % slower"
        return _replace(even, share_of_steps=share, says=f"{even.says} on average; {steps}")
