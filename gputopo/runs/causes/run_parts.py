"""Why all devices alike became slower: by which parts the steps grew. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from gputopo.runs.causes import facts as fact
from gputopo.runs.causes import words
from gputopo.runs.causes.explain import COVERED_SHARE, MIN_SHARE
from gputopo.runs.causes.facts import Facts
from gputopo.runs.causes.heat import WARMING, heat
from gputopo.runs.verdict.bounds import CHANCE, Interval, interval
from gputopo.runs.verdict.devices import is_cpu, short_name_of
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import Cause, Causes, Verdict

MEASURED = "measured"


class StepPart(msgspec.Struct, frozen=True):
    """A part of the step that can have grown. `needs`: the field of the event `step`."""

    id: str
    title: str
    needs: str
    part: int


PARTS = (
    StepPart("input-starved", "waiting for the input", "waited_s", fact.INPUT),
    StepPart("weights-slow", "waiting for weights", "marks.weights_s", fact.WEIGHTS),
    StepPart("compute-slow", "computing", "marks.compute_s", fact.COMPUTE),
    StepPart("reduction-slow", "reduction and update", "marks", fact.REST),
)


def run_explained(facts: Facts, verdict: Verdict, devices: Sequence[Device] = ()) -> Causes | None:
    """Return by what a run became slower that is slow against its own past; None without two levels.

    The parts of a step are measured, so their shares need no fit; the ranges are those of their medians.
    """
    first = verdict.from_step or 0
    after = [step >= first for step in facts.first_steps()]
    grown = _grown(facts.of_step(fact.STEP), after)
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
    explained = words.said(
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
        found = None if is_cpu(device) else heat(facts.of_gpu(device.tower, fact.HEAT))
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
