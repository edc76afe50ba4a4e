"""Why a device or a whole run is slow: causes in the samples of the same seconds, with shares."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean, median

import msgspec

from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.bounds import Interval, level_bounds
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.peers import PeerDifference
from gputopo.runs.verdict.rules import CAUSES, CPU, GPU, REASONS, ByRow, CauseRule, View
from gputopo.runs.verdict.sampled import Facts
from gputopo.runs.verdict.slopes import CHANCE, Slope, slopes
from gputopo.runs.verdict.words import WEIGHTS
from gputopo.values.grouping import grouped
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import Cause, Causes, Verdict
from gputopo.values.words import percent as number

# Share of the gap from which the causes are called the cause, as in TraceML.
COVERED_SHARE = 0.80
# A fact must be known in this share of the slow rows, or its cause is not checked. Not measured.
KNOWN_SHARE = 0.5
# A cause that explains a smaller share of the gap is not reported. Not measured.
MIN_SHARE = 0.05
# A fit with a wider range is not used; the range is then 0 to 1, as physics allows. Not measured.
MAX_WIDTH = 0.7
FITTED, BOUNDED, MEASURED = "fitted", "bounded", "measured"
FELL = 0.02  # share of a clock: a smaller fall follows the temperature. Not measured on hardware.


class _Part(msgspec.Struct):
    """What a cause explains, as shares of the gap."""

    rule: CauseRule
    how: str
    low: float
    middle: float
    high: float


def explained(facts: Facts, paces: Paces, difference: PeerDifference, verdict: Verdict) -> Causes:
    """Return the causes of a slow device. `difference`: what the verdict is about."""
    device, part, rows = difference.device, difference.part, difference.rows
    waits = paces.relative(device.tower, WEIGHTS)
    kind = CPU if device.is_cpu else GPU

    def by_row(fact_of: Callable[[int, str], Sequence[float]], tower: int) -> ByRow:
        return lambda fact: [*map(fact_of(tower, fact).__getitem__, rows)]

    view = View(
        device=by_row(facts.of_gpu, device.tower),
        peer=by_row(facts.of_gpu, difference.peer),
        host=by_row(facts.of_host, device.tower),
        part=part,
        gap=difference.values,
        waits=[waits[row] for row in rows],
    )
    first, last = verdict.from_step or 0, verdict.to_step or math.inf
    steps = paces.blocks.first_steps
    return explained_view(
        view,
        [place for place, row in enumerate(rows) if first <= steps[row] <= last],
        verdict.percent_under or 0.0,
        [rule for rule in CAUSES if part in rule.parts and kind in rule.devices],
        level=fmean if verdict.share_of_steps is not None else median,
    )


def explained_view(
    view: View,
    places: Sequence[int],
    percent: float,
    rules: Sequence[CauseRule],
    *,
    level: Callable[[Sequence[float]], float] = median,
) -> Causes:
    """Return the causes, by these rules, of a gap of `percent` of pace.

    `places`: the rows of the gap. `level`: median or mean of a row's values there.
    """
    costs = {rule.id: rule.cost(view) for rule in rules}
    in_gap = {
        name: [values[place] for place in places if not math.isnan(values[place])]
        for name, values in costs.items()
    }
    known = [rule for rule in rules if len(in_gap[rule.id]) >= KNOWN_SHARE * len(places) > 0]
    fitted = _fitted(view, known, costs)
    gap = level([view.gap[place] for place in places])
    parts = []
    for rule in known if gap > 0 else ():
        part = _part(rule, level(in_gap[rule.id]) / gap, fitted.get(rule.fitted_as))
        parts += [] if part is None else [part]
    _share_out(parts)
    large = sorted((part for part in parts if part.middle >= MIN_SHARE), key=lambda part: -part.middle)
    # For a device that is slow intermittently, describe what was seen in its slow steps.
    slow = [place for place in places if view.gap[place] > gap] if level is fmean else places
    causes = [
        Cause(
            id=same[0].rule.id,
            says=same[0].rule.describe(view, slow or places),
            how=same[0].how,
            percent=sum(percent * part.middle for part in same),
            percent_low=sum(percent * part.low for part in same),
            percent_high=min(percent, sum(percent * part.high for part in same)),
        )
        for same in grouped((part.rule.fitted_as, part) for part in large).values()
    ]
    missing = {rule.id: ", ".join(rule.needs) for rule in rules if rule not in known}
    covered = sum(part.middle for part in parts if part.middle >= MIN_SHARE)
    return _said(causes, percent, covered, [rule.id for rule in known], missing)


def _fitted(view: View, rules: Sequence[CauseRule], costs: Mapping[str, Sequence[float]]) -> dict[str, Slope]:
    """Return the slope of each family, from all rows in which every fact is known."""
    families = grouped((rule.fitted_as, costs[rule.id]) for rule in rules)
    together = {name: [sum(row) for row in zip(*same, strict=True)] for name, same in families.items()}
    rows = [
        place
        for place in range(len(view.gap))
        if not any(math.isnan(values[place]) for values in together.values())
    ]
    return slopes(
        [view.gap[row] for row in rows],
        {name: [values[row] for row in rows] for name, values in together.items()},
    )


def _part(rule: CauseRule, most: float, slope: Slope | None) -> _Part | None:
    """Return what a cause explains. `most`: the share of the gap that it costs one to one."""
    if most < MIN_SHARE:
        return None
    if slope is None or slope.high - slope.low > MAX_WIDTH:
        return _Part(rule, BOUNDED, 0.0, min(most, 1.0), min(most, 1.0))
    low, middle, high = (min(max(x, 0.0), 1.0) * most for x in (slope.low, slope.middle, slope.high))
    if high < MIN_SHARE or middle <= 0:
        return None
    return _Part(rule, FITTED, min(low, 1.0), min(middle, 1.0), min(high, 1.0))


def _share_out(parts: Sequence[_Part]) -> None:
    """Reduce the shares so that their sum is at most the gap."""
    fitted = [part for part in parts if part.how == FITTED]
    bounded = [part for part in parts if part.how == BOUNDED]
    for name in {part.rule.within for part in bounded} - {""}:
        within = [part for part in bounded if part.rule.within == name]
        _scale(within, max(part.middle for part in within))
    _scale(fitted, 1.0)
    _scale(bounded, 1 - sum(part.middle for part in fitted))


def _scale(parts: Sequence[_Part], room: float) -> None:
    """Reduce the middles of some causes, in proportion, so that their sum is at most `room`."""
    total = sum(part.middle for part in parts)
    if total > room:
        for part in parts:
            part.middle *= max(0.0, room) / total
            part.low *= max(0.0, room) / total


def _said(
    causes: Sequence[Cause],
    percent: float,
    covered: float,
    checked: Sequence[str],
    missing: Mapping[str, str],
) -> Causes:
    """Return the causes of a gap of `percent`, with their sentence.

    `covered`: the explained share, 0 to 1.
    """
    unexplained = percent * max(0.0, 1 - covered)
    unchecked = f" (not checked: {', '.join(missing)})" if missing else ""
    explains = " and ".join(f"{cause.says}, which explains {_range(cause)}" for cause in causes)
    explains += f" of {number(percent)}%"
    if not checked:
        says = "Cause: unknown (no samples)"
    elif not causes:
        says = f"Cause: not explained{unchecked}"
    elif covered >= COVERED_SHARE:
        sure = all(cause.how != BOUNDED for cause in causes)
        says = f"{'Cause' if sure else 'Possible cause'}: {explains}"
    else:
        says = f"Partly: {explains}; {number(unexplained)}% unexplained{unchecked}"
    return Causes(
        says=says,
        found=tuple(causes),
        unexplained_percent=unexplained,
        covered_share=min(covered, 1.0),
        checked=tuple(checked),
        not_checked=dict(missing),
    )


def _range(cause: Cause) -> str:
    if cause.how == BOUNDED:
        return f"at most {number(cause.percent_high)}%"
    return f"{number(cause.percent)}% ({number(cause.percent_low)} to {number(cause.percent_high)})"


class StepPart(msgspec.Struct, frozen=True):
    """A part of the step that may have become longer."""

    id: str
    title: str
    needs: str  # the field of the event `step`
    part: str


PARTS = (
    StepPart("input-starved", "waiting for the input", "waited_s", sampled.INPUT),
    StepPart("weights-slow", "waiting for weights", "marks.weights_s", sampled.WEIGHTS),
    StepPart("compute-slow", "computing", "marks.compute_s", sampled.COMPUTE),
    StepPart("reduction-slow", "reducing gradients and updating", "marks", sampled.REST),
)


def run_explained(facts: Facts, verdict: Verdict, devices: Sequence[Device] = ()) -> Causes | None:
    """Return why a run became slower than its own past; None if it has no two levels.

    The parts of a step are measured, so their shares need no fit. The ranges are the bounds of their medians.
    """
    first = verdict.from_step or 0
    after = [step >= first for step in facts.first_steps()]
    grown = _grown(facts.of_step(sampled.STEP), after)
    if grown is None or grown.middle <= 0:
        return None
    percent, step_s = verdict.percent_under or 0.0, grown.middle
    more, shares = {}, {}
    for part in PARTS:
        if (bounds := _grown(facts.of_step(part.part), after)) is not None:
            more[part] = bounds
            shares[part] = bounds.mapped(lambda seconds: min(max(seconds / step_s, 0.0), 1.0))
    longer = [part for part in shares if shares[part].middle >= MIN_SHARE]
    total = sum(shares[part].middle for part in longer)
    scale = percent / max(1.0, total)
    causes = [
        Cause(
            id=part.id,
            says=f"{part.title} takes {1000 * more[part].middle:,.1f} ms more",
            how=MEASURED,
            percent=scale * shares[part].middle,
            percent_low=scale * shares[part].low,
            percent_high=percent * shares[part].high,
        )
        for part in sorted(longer, key=lambda part: (shares[part].middle, part.id), reverse=True)
    ]
    missing = {part.id: part.needs for part in PARTS if part not in shares}
    said = _said(causes, percent, min(total, 1.0), [part.id for part in shares], missing)
    grew = " and ".join(f"{cause.says}, {_range(cause)}" for cause in causes)
    fell = _clocks_fell(facts, [device for device in devices if not device.is_cpu], after)
    if fell:
        return msgspec.structs.replace(said, says=f"Cause: {fell}; {grew}")
    return msgspec.structs.replace(said, says=f"{grew[0].upper()}{grew[1:]}") if grew else said


def _clocks_fell(facts: Facts, gpus: Sequence[Device], after: Sequence[bool]) -> str:
    """Return that the core clocks of all GPUs are lower after a change, and why; empty if they are not."""
    clocks = [_split(facts.of_gpu(device.tower, sampled.CORE), after) for device in gpus]
    if not clocks or not all(was and now and median(now) < (1 - FELL) * median(was) for was, now in clocks):
        return ""
    why = ""
    for reason, words in REASONS.items():
        flags = [_split(facts.of_gpu(device.tower, reason), after)[1] for device in gpus]
        if all(now and fmean(now) > 0.5 for now in flags):
            why = words
            break
    whose = f"all {len(gpus)} GPUs" if len(gpus) > 1 else gpus[0].short_name
    first, last = (median(chain.from_iterable(part)) for part in zip(*clocks, strict=True))
    return f"the core clock of {whose} fell from {first:,.0f} to {last:,.0f} MHz{why}"


def _split(values: Sequence[float], after: Sequence[bool]) -> tuple[list[float], list[float]]:
    """Return the known values before and after a change."""
    known = [(value, late) for value, late in zip(values, after, strict=True) if not math.isnan(value)]
    return [value for value, late in known if not late], [value for value, late in known if late]


def _grown(values: Sequence[float], after: Sequence[bool]) -> Interval | None:
    """Return by how much the median grew, with bounds; None if it is unknown before or after."""
    was, now = _split(values, after)
    before, since = level_bounds(was, CHANCE), level_bounds(now, CHANCE)
    if before is None or since is None:
        return None
    return msgspec.structs.replace(
        since,
        low=since.low - before.high,
        middle=since.middle - before.middle,
        high=since.high - before.low,
    )
