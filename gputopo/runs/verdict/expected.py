"""The speed of a whole run against what it should be, and against its own past. Pure."""

import math

from gputopo.runs.verdict import words
from gputopo.runs.verdict.bounds import interval
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.past import parts
from gputopo.runs.verdict.thresholds import EVEN_PERCENT, FALSE_ALARM, SLOW_PERCENT
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW, Expected, Verdict


def against_expected(paces: Paces, expected: Expected) -> Verdict:
    """Return whether a run is as fast as expected; the range of the expectation widens what is even."""
    found = interval(paces.run(), FALSE_ALARM)
    if found is None:
        return Verdict(
            word=CANNOT_TELL,
            says=f"All devices: cannot tell against {expected.source}: too few steps",
            why="too few steps",
            against="expected",
            steps=paces.steps,
        )
    speed, slowest, fastest = (math.exp(-x) for x in (found.middle, found.high, found.low))
    verdict = Verdict(
        word=CANNOT_TELL,
        says="",
        against="expected",
        percent_under=100 * (1 - speed / expected.images_per_sec),
        percent_under_low=100 * (1 - fastest / expected.low),
        percent_under_high=100 * (1 - slowest / expected.high),
        resolution_percent=SLOW_PERCENT + 100 * (1 - expected.low / expected.high * slowest / fastest) / 2,
        steps=paces.steps,
        effective_steps=found.effective * paces.blocks.size,
    )
    return words.against_expected(verdict, _word(verdict), speed, expected)


def against_past(paces: Paces) -> Verdict | None:
    """Return that a run became slower, None where it did not: all devices alike."""
    run = paces.run()
    found = parts(run, paces.blocks.size)
    if len(found) < 2:
        return None
    bounds = [interval(run[begin:end], FALSE_ALARM / 2) for begin, end in found]
    known = [(part, bound) for part, bound in zip(found, bounds, strict=True) if bound is not None]
    if len(known) < 2:
        return None
    (begin, _), last = known[-1]
    # What came first may be a warm-up, and slower: the run is compared with the fastest part before.
    best = min((bound for _, bound in known[:-1]), key=lambda bound: bound.middle, default=last)
    low = 100 * (1 - math.exp(-(last.low - best.high)))
    if low <= SLOW_PERCENT:
        return None
    verdict = Verdict(
        word=SLOW,
        says="",
        against="past",
        percent_under=100 * (1 - math.exp(-(last.middle - best.middle))),
        percent_under_low=low,
        percent_under_high=100 * (1 - math.exp(-(last.high - best.low))),
        steps=paces.steps,
        from_step=paces.blocks.first_steps[begin],
    )
    return words.slower_than_before(verdict)


def _word(verdict: Verdict) -> str:
    if (verdict.percent_under_low or 0.0) > SLOW_PERCENT:
        return SLOW
    return EVEN if (verdict.percent_under_high or 0.0) <= EVEN_PERCENT else CANNOT_TELL
