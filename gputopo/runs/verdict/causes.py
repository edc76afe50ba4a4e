"""Why a device, or a whole run, is slow: causes in the samples of the same seconds, with their shares."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

import msgspec

from gputopo.runs.devices import is_cpu, short_name_of
from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.bounds import CHANCE, Interval, Slope, interval, slopes
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.peers import Difference
from gputopo.runs.verdict.rules import CAUSES, CPU, GPU, View
from gputopo.runs.verdict.rules import Cause as Rule
from gputopo.runs.verdict.sampled import Facts
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import Cause, Causes, Verdict

# Between the first and the last third of the samples: less is steady. Ours, by thermal logs of trainings on
# eight machines: in their steady parts GPUs that had reached their temperature moved by up to 4.5 degrees.
MIN_CHANGE_C = 5.0
MIN_SAMPLES = 6  # two in each third
WARMING, COOLING, STEADY = "warming", "cooling", "steady"


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """The mean temperatures of the first and the last third, in degrees C, and their `word`."""

    first_c: float
    last_c: float

    @property
    def word(self) -> str:
        """Warming, cooling or steady."""
        change = self.last_c - self.first_c
        if abs(change) < MIN_CHANGE_C:
            return STEADY
        return WARMING if change > 0 else COOLING

    def says(self, name: str) -> str:
        """Return it in words: "GPU 1 became 8 °C warmer (76 to 84 °C)"."""
        if self.word == STEADY:
            return f"{name} stayed at {self.last_c:.0f} °C"
        more = "warmer" if self.word == WARMING else "cooler"
        change = abs(self.last_c - self.first_c)
        return f"{name} became {change:.0f} °C {more} ({self.first_c:.0f} to {self.last_c:.0f} °C)"


def heat(values: Sequence[float]) -> Heat | None:
    """Return how temperatures went, in their order; NaN: not known. None of too few."""
    known = [value for value in values if not math.isnan(value)]
    third = len(known) // 3
    if len(known) < MIN_SAMPLES:
        return None
    return Heat(first_c=fmean(known[:third]), last_c=fmean(known[-third:]))


def said(found: Causes, percent: float, covered: bool) -> Causes:
    """Return the causes with their sentence. `percent`: the gap. `covered`: they are the cause."""
    return msgspec.structs.replace(found, says=_sentence(found, percent, covered))


def _sentence(found: Causes, percent: float, covered: bool) -> str:
    if not found.checked:
        return "Cause: not checked, for lack of samples"
    if not found.found:
        return "Cause: not explained" + _not_checked(found)
    causes = " and ".join(f"{one.says}, which explains {_range(one)}" for one in found.found)
    of = f"{causes} of {_number(percent)} %"
    if covered:
        sure = all(one.how != "bounded" for one in found.found)
        return f"{'Cause' if sure else 'Possible cause'}: {of}"
    return f"Partly: {of}; {_number(found.unexplained_percent)} % unexplained{_not_checked(found)}"


def _range(cause: Cause) -> str:
    if cause.how == "bounded":
        return f"at most {_number(cause.percent_high)} %"
    return f"{_number(cause.percent)} % ({_number(cause.percent_low)} to {_number(cause.percent_high)})"


def _not_checked(found: Causes) -> str:
    return f" (not checked: {', '.join(found.not_checked)})" if found.not_checked else ""


def _number(percent: float) -> str:
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}"


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
    return said(
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


MEASURED = "measured"


class StepPart(msgspec.Struct, frozen=True):
    """A part of the step that can have grown. `needs`: the field of the event `step`."""

    id: str
    title: str
    needs: str
    part: int


PARTS = (
    StepPart("input-starved", "waiting for the input", "waited_s", sampled.INPUT),
    StepPart("weights-slow", "waiting for weights", "marks.weights_s", sampled.WEIGHTS),
    StepPart("compute-slow", "computing", "marks.compute_s", sampled.COMPUTE),
    StepPart("reduction-slow", "reduction and update", "marks", sampled.REST),
)


def run_explained(facts: Facts, verdict: Verdict, devices: Sequence[Device] = ()) -> Causes | None:
    """Return by what a run became slower that is slow against its own past; None without two levels.

    The parts of a step are measured, so their shares need no fit; the ranges are those of their medians.
    """
    first = verdict.from_step or 0
    after = [step >= first for step in facts.first_steps()]
    grown = _grown(facts.of_step(sampled.STEP), after)
    if grown is None or grown.middle <= 0:
        return None
    percent = verdict.percent_under or 0.0
    found, checked, missing = [], [], {}
    for part in PARTS:
        more = _grown(facts.of_step(part.part), after)
        if more is None:
            missing[part.id] = part.needs
            continue
        checked.append(part.id)
        low, middle, high = (min(max(x / grown.middle, 0.0), 1.0) for x in (more.low, more.middle, more.high))
        if middle >= MIN_SHARE:
            says = f"{part.title} takes {1000 * more.middle:,.1f} ms more"
            found.append((middle, part.id, says, low, high))
    total = sum(middle for middle, *_ in found)
    scale = percent / max(1.0, total)
    causes = tuple(
        Cause(
            id=name,
            says=says,
            how=MEASURED,
            percent=scale * middle,
            percent_low=scale * low,
            percent_high=percent * high,
        )
        for middle, name, says, low, high in sorted(found, reverse=True)
    )
    covered = min(total, 1.0)
    explained = said(
        Causes(
            says="",
            found=causes,
            unexplained_percent=percent * (1 - covered),
            covered_share=covered,
            checked=tuple(checked),
            not_checked=missing,
        ),
        percent,
        covered >= COVERED_SHARE,
    )
    warmer = "; ".join(_warmer(facts, devices))
    return msgspec.structs.replace(explained, says=f"{explained.says}; {warmer}") if warmer else explained


def _warmer(facts: Facts, devices: Sequence[Device]) -> Iterator[str]:
    """Yield which GPUs became warmer in the run."""
    for device in devices:
        found = None if is_cpu(device) else heat(facts.of_gpu(device.tower, sampled.HEAT))
        if found is not None and found.word == WARMING:
            yield found.says(short_name_of(device))


def _grown(values: Sequence[float], after: Sequence[bool]) -> Interval | None:
    """Return by how much the median grew, with bounds; None where it is not known on both sides."""
    known = [(value, late) for value, late in zip(values, after, strict=True) if value == value]
    before = interval([value for value, late in known if not late], CHANCE)
    since = interval([value for value, late in known if late], CHANCE)
    if before is None or since is None:
        return None
    return Interval(
        low=since.low - before.high,
        middle=since.middle - before.middle,
        high=since.high - before.low,
        effective=min(before.effective, since.effective),
    )
