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
from gputopo.runs.devices import is_cpu, kind_of, reference_of
from gputopo.runs.verdict import words
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
)
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import CANNOT_TELL, COMPUTE, EVEN, SLOW, WEIGHTS, Verdict

# A device so many times as fast as its peer is one whose peer stood still.
MAX_TIMES = 100.0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device is behind its peer, in percent of pace, over all steps; negative: ahead.

    `values`, `percent`: the difference by row, and what makes percent of one. `interval`, of
    the values, is None where there are too few steps, or too few independent ones.
    """

    device: Device
    peer: int
    part: str
    values: tuple[float, ...]
    rows: tuple[int, ...]  # places of the values in the table
    interval: Interval | None
    allowed: float  # what the values are without: see `Paces.allowance`
    chance: float

    @property
    def middle(self) -> float:
        """Median over the steps, in percent."""
        return percent_of(self.part)(median(self.values))


def differences(paces: Paces) -> list[Difference]:
    """Return the differences of all devices that have a peer with common steps, compute and weights."""
    towers = sum(map(len, paces.kinds)) + sum(map(len, paces.links))
    chance = WHOLE_SHARE * FALSE_ALARM / max(1, towers)
    return [
        found
        for groups, part in ((paces.kinds, COMPUTE), (paces.links, WEIGHTS))
        for group in groups
        for levels in [_levels(paces, group, part)]
        for device in group
        if (found := _difference(paces, levels, device, part, chance)) is not None
    ]


def steps_needed(paces: Paces) -> int:
    """Return how many steps a verdict needs at least."""
    towers = sum(map(len, paces.kinds)) + sum(map(len, paces.links))
    return min_values(WHOLE_SHARE * FALSE_ALARM / max(1, towers))


def percent_of(part: str) -> Callable[[float], float]:
    """Return what makes percent of pace of a difference: of logarithms, or of shares of the busy time."""
    return _compute_percent if part == COMPUTE else _weights_percent


def in_percent(bounds: Interval, part: str) -> Interval:
    """Return an interval of differences in percent of pace."""
    percent = percent_of(part)
    return Interval(
        low=percent(bounds.low),
        middle=percent(bounds.middle),
        high=percent(bounds.high),
        effective=bounds.effective,
    )


def _difference(
    paces: Paces, levels: Mapping[Device, float], device: Device, part: str, chance: float
) -> Difference | None:
    column = paces.compute if part == COMPUTE else paces.weights
    alike = [other for other in levels if kind_of(other) == kind_of(device)]
    peers = {  # of its own kind, where there are
        other.tower: levels[other]
        for other in (alike if len(alike) > 1 else levels)
        if not math.isnan(levels[other])
    }
    if device.tower not in peers or len(peers) < 2:
        return None
    peer = reference_of(device.tower, sorted(peers, key=lambda tower: (peers[tower], tower)))
    # The table has the kinds at their speeds.
    allowed = math.log(paces.batch_allowance(device.tower, peer)) if part == COMPUTE else 0.0
    both = [
        (row, own - others - allowed)
        for row, (own, others) in enumerate(zip(column(device.tower), column(peer), strict=True))
        if not math.isnan(own - others)
    ]
    if not both:
        return None
    values = tuple(value for _, value in both)
    bounds = interval(values, chance)
    return Difference(
        device=device,
        peer=peer,
        part=part,
        values=values,
        rows=tuple(row for row, _ in both),
        interval=bounds,
        allowed=allowed,
        chance=chance,
    )


def _levels(paces: Paces, group: Sequence[Device], part: str) -> dict[Device, float]:
    """Return the median of each device over the steps, NaN of none."""
    if part == COMPUTE:
        return {device: paces.level(device.tower) for device in group}
    columns = {
        device: [value for value in paces.weights(device.tower) if not math.isnan(value)] for device in group
    }
    return {device: median(known) if known else math.nan for device, known in columns.items()}


def _compute_percent(difference: float) -> float:
    return 100 * (1 - math.exp(-max(difference, -math.log(MAX_TIMES))))


def _weights_percent(difference: float) -> float:
    # Of the time that the device is busy: ten times a wait that is next to nothing is still next to nothing.
    return 100 * difference / (1 + difference) if difference > 1 / MAX_TIMES - 1 else 100 * (1 - MAX_TIMES)


# Steps of a row whose mean says something that its median does not.
MIN_OF_MEAN = FOLD**3


class _Limits(msgspec.Struct, frozen=True):
    """What time marks and expected speeds add to bounds, and what marks cannot resolve, in percent."""

    offset: float
    floor: float
    busy_s: float

    def is_slow(self, bounds: Interval) -> bool:
        return bounds.low - self.offset > max(SLOW_PERCENT, self.floor)


def answer(paces: Paces, found: Difference) -> Verdict:
    """Return the answer for one difference."""
    device = found.device
    busy_s = paces.busy_s(device.tower)
    unsure = paces.unsure(device.tower, found.peer) if found.part == COMPUTE else 0.0
    offset = 100 * MARKS_OFFSET_S / busy_s + 100 * (1 - math.exp(-unsure))
    limits = _Limits(offset, 100 * MARKS_RESOLUTION_S / busy_s, busy_s)
    fields = Verdict(
        word=CANNOT_TELL,
        says="",
        tower=device.tower,
        gpu=None if is_cpu(device) else device.gpu,
        against="peers",
        part=found.part,
        percent_under=found.middle,
        steps=len(found.values) * paces.blocks.size,
    )
    chance = found.chance / MAX_PARTS
    spans = parts(found.values, paces.blocks.size)
    if len(spans) > 1:
        spans = _without_warmup(spans, found)
        time = residual_time(found.values, spans)
        slow = [
            (span, bounds)
            for span in spans
            if (raw := _bounds(found, span, chance, time))
            and limits.is_slow(bounds := in_percent(raw, found.part))
        ]
        if slow:
            return _slow_parts(paces, found, fields, spans, slow, limits)
    whole = _whole(paces, found, fields, spans, limits)
    if whole.word != SLOW and found.part == COMPUTE:
        slowest = _slow_steps(paces, found, fields, limits)
        return slowest or (_but_for_steps(paces, found, whole, limits) if whole.word == EVEN else whole)
    return whole


def unknown(device: Device, why: str, like: Verdict | None = None) -> Verdict:
    """Return that nothing can be told, with the measured figures of `like`."""
    found = like or Verdict(
        word=CANNOT_TELL, says="", tower=device.tower, gpu=None if is_cpu(device) else device.gpu
    )
    says = words.cannot_tell(device, found, why)
    return msgspec.structs.replace(found, word=CANNOT_TELL, why=why, says=says)


def _whole(
    paces: Paces, found: Difference, fields: Verdict, spans: Sequence[tuple[int, int]], limits: _Limits
) -> Verdict:
    """Return the answer for all steps of these parts: after what was a warm-up."""
    device, values = found.device, found.values[spans[0][0] :]
    bounds, half_width = _of_all(found, spans)
    if bounds is None:
        needed = steps_needed(paces)
        few = len(values) < needed
        steps = len(values) * paces.blocks.size
        lack = paces.blocks.size * lacking(len(values), correlation_time(values))
        why = words.too_few(needed, steps) if few else words.too_correlated(steps, lack)
        return unknown(device, why, fields)
    low = bounds.low - limits.offset
    high = max(bounds.high + limits.offset, limits.floor)
    margin = half_width * (1 + NormalDist().inv_cdf(POWER) / -NormalDist().inv_cdf(found.chance))
    fields = msgspec.structs.replace(
        fields,
        percent_under=bounds.middle,
        percent_under_low=low,
        percent_under_high=high,
        resolution_percent=max(SLOW_PERCENT + margin + limits.offset, limits.floor),
        effective_steps=bounds.effective * paces.blocks.size,
        steps=len(values) * paces.blocks.size,
    )
    half, percent = len(values) // 2, percent_of(found.part)
    halves = percent(median(values[:half])), percent(median(values[half:]))
    if limits.is_slow(bounds) and min(halves) > SLOW_PERCENT:
        return msgspec.structs.replace(
            fields, word=SLOW, says=words.slow(device, fields, by=paces.source(device.tower, found.peer))
        )
    if high <= EVEN_PERCENT:
        return msgspec.structs.replace(fields, word=EVEN, says=words.even(device, fields))
    more = _more_steps(fields.steps, margin, limits)
    fields = msgspec.structs.replace(fields, more_steps=more)
    short_ms = 1000 * limits.busy_s if limits.floor > EVEN_PERCENT else None
    return unknown(device, words.resolves(fields, short_ms), fields)


def _more_steps(steps: int, margin: float, limits: _Limits) -> int | None:
    """Return how many more steps would resolve `EVEN_PERCENT`; None if none would, or the run does."""
    room = EVEN_PERCENT - SLOW_PERCENT - limits.offset
    if room <= 0 or limits.floor > EVEN_PERCENT or margin <= room:
        return None
    return math.ceil(steps * ((margin / room) ** 2 - 1))


def _without_warmup(spans: list[tuple[int, int]], found: Difference) -> list[tuple[int, int]]:
    """Leave out a first part that is slower than the next and short beside what comes after."""
    first, rest = spans[0], spans[1:]
    steps = rest[-1][1] - first[1]
    slower = median(found.values[slice(*first)]) > median(found.values[slice(*rest[0])])
    return rest if slower and first[1] - first[0] <= WARMUP_SHARE * steps else spans


def _of_all(found: Difference, spans: Sequence[tuple[int, int]]) -> tuple[Interval | None, float]:
    """Return bounds that hold in all parts, and half of their width, the widest, at no difference."""
    percent = percent_of(found.part)
    if len(spans) == 1 and spans[0] == (0, len(found.values)):
        bounds = found.interval
        return (None, 0.0) if bounds is None else (in_percent(bounds, found.part), percent(bounds.half_width))
    time = residual_time(found.values, spans)
    of_parts = [_bounds(found, span, found.chance, time) for span in spans]
    known = [one for one in of_parts if one is not None]
    if len(known) < len(spans):
        return None, 0.0
    everywhere = Interval(
        low=min(one.low for one in known),
        middle=median(found.values[spans[0][0] :]),
        high=max(one.high for one in known),
        effective=sum(one.effective for one in known),
    )
    return in_percent(everywhere, found.part), percent(max(one.half_width for one in known))


def _bounds(found: Difference, span: tuple[int, int], chance: float, time: float) -> Interval | None:
    """Return the bounds of a part, not in percent yet."""
    return interval(found.values[slice(*span)], chance, time, of=len(found.values))


def _slow_parts(
    paces: Paces,
    found: Difference,
    fields: Verdict,
    spans: Sequence[tuple[int, int]],
    slow: Sequence[tuple[tuple[int, int], Interval]],
    limits: _Limits,
) -> Verdict:
    """Return that a device was slow in some parts, or with differing levels in all of them."""
    slow_spans, bounds = [span for span, _ in slow], [one for _, one in slow]
    values = [value for span in slow_spans for value in found.values[slice(*span)]]
    first, last = found.rows[slow_spans[0][0]], found.rows[slow_spans[-1][1] - 1]
    steps = paces.blocks.first_steps
    verdict = msgspec.structs.replace(
        fields,
        word=SLOW,
        percent_under=percent_of(found.part)(median(values)),
        percent_under_low=min(one.low for one in bounds) - limits.offset,
        percent_under_high=max(one.high for one in bounds) + limits.offset,
        effective_steps=sum(one.effective for one in bounds) * paces.blocks.size,
        steps=len(values) * paces.blocks.size,
        from_step=None if slow_spans[0] == spans[0] else steps[first],
        to_step=None if slow_spans[-1] == spans[-1] else steps[last] + paces.blocks.size - 1,
    )
    whole = slow_spans[-1][1] - slow_spans[0][0] == sum(end - begin for begin, end in slow_spans)
    return msgspec.structs.replace(
        verdict,
        says=words.slow(
            found.device, verdict, by=paces.source(found.device.tower, found.peer), throughout=whole
        ),
    )


def _slow_steps(paces: Paces, found: Difference, fields: Verdict, limits: _Limits) -> Verdict | None:
    """Return that a device is slow in single steps all over the run, or None."""
    means = _means(paces, found)
    percent = percent_of(found.part)
    dip = dips(means)
    if dip is None:
        return _slow_on_average(paces, found, fields, means, limits)
    low = percent(dip.mean_low + dip.level) - limits.offset
    if percent(dip.away + dip.level) <= limits.floor or low <= SLOW_PERCENT:
        return None
    verdict = msgspec.structs.replace(
        fields,
        word=SLOW,
        percent_under=percent(dip.share * dip.away + dip.level),
        percent_under_low=low,
        percent_under_high=percent(dip.away + dip.level),
        share_of_steps=dip.share,
    )
    return msgspec.structs.replace(verdict, says=words.slow_steps(found.device, verdict, percent(dip.away)))


def _but_for_steps(paces: Paces, found: Difference, even: Verdict, limits: _Limits) -> Verdict:
    """Return an even device with the few steps in which it is slow, where there are such."""
    means = _means(paces, found)
    slow = slow_values(means)
    if slow is None:
        return even
    away = percent_of(found.part)(median(slow.distances) + slow.level)
    if away <= max(EVEN_PERCENT, limits.floor):
        return even
    verdict = msgspec.structs.replace(even, share_of_steps=len(slow.distances) / len(means))
    return msgspec.structs.replace(verdict, says=words.but_for_steps(verdict, away))


def _means(paces: Paces, found: Difference) -> list[float]:
    """Return the difference in each row by the means of its steps: a median hides single ones."""
    own, peer = paces.compute_means(found.device.tower), paces.compute_means(found.peer)
    return [own[row] - peer[row] - found.allowed for row in found.rows]


def _slow_on_average(
    paces: Paces, found: Difference, fields: Verdict, means: Sequence[float], limits: _Limits
) -> Verdict | None:
    """Return that a device is slow in steps that no row shows alone: rows of a long run are means of many."""
    bounds = interval(means, found.chance) if paces.blocks.size >= MIN_OF_MEAN else None
    if bounds is None or not limits.is_slow(in_percent(bounds, found.part)):
        return None
    percent = in_percent(bounds, found.part)
    verdict = msgspec.structs.replace(
        fields,
        word=SLOW,
        percent_under=percent.middle,
        percent_under_low=percent.low - limits.offset,
        percent_under_high=percent.high + limits.offset,
    )
    return msgspec.structs.replace(verdict, says=words.slow_on_average(found.device, verdict))
