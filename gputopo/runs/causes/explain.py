"""Share the gap of a slow device out among the causes. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

import msgspec

from gputopo.runs.causes import words
from gputopo.runs.causes.facts import Facts
from gputopo.runs.causes.rules import CAUSES, CPU, GPU, View
from gputopo.runs.causes.rules import Cause as Rule
from gputopo.runs.verdict.bounds import Slope, slopes
from gputopo.runs.verdict.devices import is_cpu
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.peers import Difference
from gputopo.values.run.verdict import Cause, Causes, Verdict

# From so much of the gap on what was found is the cause. As TraceML.
COVERED_SHARE = 0.80
# A fact must be known in so much of the slow rows, or its cause is not checked. Ours.
KNOWN_SHARE = 0.5
# What explains less of the gap is not named. Ours.
MIN_SHARE = 0.05
# Without a fit narrower than this the range is that of physics, 0 to 1. Ours.
MAX_WIDTH = 0.7
FITTED, BOUNDED = "fitted", "bounded"


class _Part(msgspec.Struct):
    """What a cause explains, as shares of the gap."""

    rule: Rule
    how: str
    low: float
    middle: float
    high: float


def explained(facts: Facts, paces: Paces, found: Difference, verdict: Verdict) -> Causes:
    """Return the causes of a slow device: those of `found`, the difference that the verdict is about."""
    waits = paces.weights(found.device.tower)
    kind = CPU if is_cpu(found.device) else GPU
    view = View(
        facts=facts,
        tower=found.device.tower,
        peer=found.peer,
        part=found.part,
        rows=found.rows,
        gap=found.values,
        waits=[waits[row] for row in found.rows],
    )
    return explained_view(
        view,
        _slow_places(paces, found, verdict),
        verdict.percent_under or 0.0,
        [rule for rule in CAUSES if found.part in rule.parts and kind in rule.devices],
        level=fmean if verdict.share_of_steps is not None else median,
    )


def explained_view(
    view: View,
    places: Sequence[int],
    percent: float,
    rules: Sequence[Rule],
    *,
    level: Callable[[Sequence[float]], float] = median,
) -> Causes:
    """Return the causes by these rules of a gap of so many percent of pace.

    `places`: of the rows that the gap is of; `level`: of a row's values there, their median or mean.
    """
    costs = {rule.id: rule.cost(view) for rule in rules}
    known = {rule.id for rule in rules if _is_known([costs[rule.id][place] for place in places])}
    fitted = _fitted(view, [rule for rule in rules if rule.id in known], costs)
    gap = level([view.gap[place] for place in places])
    parts = [
        part
        for rule in rules
        if rule.id in known and gap > 0
        if (part := _part(rule, _level(level, costs[rule.id], places) / gap, fitted.get(rule.family)))
    ]
    return _shared(view, places, parts, percent, rules, known)


def _slow_places(paces: Paces, found: Difference, verdict: Verdict) -> list[int]:
    """Return the places of the rows that the verdict is about."""
    first, last = verdict.from_step or 0, verdict.to_step or math.inf
    steps = paces.blocks.first_steps
    return [place for place, row in enumerate(found.rows) if first <= steps[row] <= last]


def _is_known(values: Sequence[float]) -> bool:
    return sum(not math.isnan(value) for value in values) >= KNOWN_SHARE * len(values) > 0


def _level(
    level: Callable[[Sequence[float]], float], values: Sequence[float], places: Sequence[int]
) -> float:
    return level([values[place] for place in places if not math.isnan(values[place])])


def _fitted(view: View, rules: Sequence[Rule], costs: Mapping[str, Sequence[float]]) -> dict[str, Slope]:
    """Return the slopes by family, of all rows in which every fact is known."""
    families: dict[str, list[Sequence[float]]] = {}
    for rule in rules:
        families.setdefault(rule.family, []).append(costs[rule.id])
    together = {name: [sum(row) for row in zip(*of, strict=True)] for name, of in families.items()}
    rows = [
        place
        for place in range(len(view.gap))
        if not any(math.isnan(values[place]) for values in together.values())
    ]
    return slopes(
        [view.gap[row] for row in rows],
        {name: [values[row] for row in rows] for name, values in together.items()},
    )


def _part(rule: Rule, most: float, slope: Slope | None) -> _Part | None:
    """Return what a cause explains. `most`: share of the gap that it costs one to one."""
    if most < MIN_SHARE:
        return None
    if slope is None or slope.high - slope.low > MAX_WIDTH:
        return _Part(rule, BOUNDED, 0.0, min(most, 1.0), min(most, 1.0))
    low, middle, high = (min(max(one, 0.0), 1.0) * most for one in (slope.low, slope.middle, slope.high))
    if high < MIN_SHARE or middle <= 0:
        return None
    return _Part(rule, FITTED, min(low, 1.0), min(middle, 1.0), min(high, 1.0))


def _shared(
    view: View,
    places: Sequence[int],
    parts: Sequence[_Part],
    percent: float,
    rules: Iterable[Rule],
    known: set[str],
) -> Causes:
    """Return the causes with shares that add up to the gap at most."""
    within: dict[str, list[_Part]] = {}
    for part in parts:
        if part.how == BOUNDED and part.rule.within:
            within.setdefault(part.rule.within, []).append(part)
    for of in within.values():
        _scale(of, max(part.middle for part in of))
    fitted = [part for part in parts if part.how == FITTED]
    _scale(fitted, 1.0)
    _scale([part for part in parts if part.how == BOUNDED], 1 - sum(part.middle for part in fitted))
    parts = [part for part in parts if part.middle >= MIN_SHARE]
    covered = sum(part.middle for part in parts)
    causes = tuple(
        Cause(
            id=part.rule.id,
            says=part.rule.describe(view, places),
            how=part.how,
            percent=percent * part.middle,
            percent_low=percent * part.low,
            percent_high=percent * part.high,
        )
        for part in sorted(parts, key=lambda part: -part.middle)
    )
    return words.said(
        Causes(
            says="",
            found=causes,
            unexplained_percent=percent * max(0.0, 1 - covered),
            covered_share=min(covered, 1.0),
            checked=tuple(rule.id for rule in rules if rule.id in known),
            not_checked={rule.id: ", ".join(rule.needs) for rule in rules if rule.id not in known},
        ),
        percent,
        covered >= COVERED_SHARE,
    )


def _scale(parts: Sequence[_Part], room: float) -> None:
    """Bring the middles of some causes down to what there is room for, in proportion."""
    total = sum(part.middle for part in parts)
    if total > room:
        for part in parts:
            part.middle *= max(0.0, room) / total
            part.low *= max(0.0, room) / total
