"""What the short runs of a screen show: the verdict on each device, and its causes.

A device by itself is compared with the middle one of the others of its kind, round by round (see
`gputopo.values.run.noise.lead`), so a drift of clocks or of the host's load that affects all of them cancels:

    slow         the lower bound of the difference is above SLOW_PERCENT
    even         its upper bound is not above EVEN_PERCENT
    cannot tell  neither: the upper bound is the answer

If fewer than two rounds cannot decide, the verdict of the run of all at once is used. Rounds are too
few to fit a slope, so a cause explains at most what it can cost by physics.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median, median_high, stdev
from typing import NamedTuple

import msgspec

from gputopo.runs.screen_changes import changes
from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.causes import explained_view
from gputopo.runs.verdict.rules import CAUSES, GPU, View
from gputopo.runs.verdict.words import at_least
from gputopo.values.run.noise import lead, students_t
from gputopo.values.run.plan import TimedRun
from gputopo.values.run.several_runs import GpuReading, InRun, Screen, ScreenDevice, ScreenRun, Under
from gputopo.values.run.verdict import (
    CANNOT_TELL,
    COMPUTE,
    CONFIDENCE,
    EVEN,
    EVEN_PERCENT,
    SLOW,
    SLOW_PERCENT,
    Causes,
)
from gputopo.values.words import at_most, percent

OF_GPU = {
    sampled.CORE: "graphics_mhz",
    sampled.MEMORY: "memory_mhz",
    sampled.THROTTLED_POWER: "throttled_power",
    sampled.THROTTLED_THERMAL: "throttled_thermal",
    sampled.THROTTLED_HARDWARE: "throttled_hardware",
    sampled.LINK: "link_gb_per_s",
    sampled.OTHERS: "other_processes",
}
OF_HOST = {sampled.HOST_CPU: "host_cpu", sampled.HOST_SWAP: "host_swap"}
# A device by itself takes the whole step: the causes that slow its computing or the link of its weights.
RULES = tuple(
    rule
    for rule in CAUSES
    if GPU in rule.devices and rule.id != "memory-full" and (COMPUTE in rule.parts or rule.id == "pcie-link")
)

# Probability that chance alone passes one bound of a change since the last screen, as in `lead`.
CHANCE = 0.025


class Rounds:
    """What two devices read in the same rounds, as `gputopo.runs.verdict.rules.FactsByRow`."""

    def __init__(self, readings: Mapping[int, Sequence[GpuReading]], own: int, peer: int) -> None:
        self._readings = readings
        self._own, self._peer = own, peer

    def of_gpu(self, tower: int, which: int, /) -> list[float]:
        """Return a fact of a device's GPU, by round."""
        return [_value(one, OF_GPU[which]) for one in self._readings[tower]]

    def of_host(self, tower: int, which: int, /) -> list[float]:
        """Return how much higher a fact of the host was in the device's run than in the peer's, by round."""
        name = OF_HOST[which]
        both = zip(self._readings[self._own], self._readings[self._peer], strict=True)
        found = [_value(own, name) - _value(peer, name) for own, peer in both]
        return [more if math.isnan(more) else max(0.0, more) for more in found]


def causes_of(
    own: int,
    peer: int,
    readings: Mapping[int, Mapping[int, GpuReading]],
    speeds: Mapping[int, Mapping[int, TimedRun]],
    percent: float,
) -> Causes:
    """Return the causes of a device that is `percent` slower than its peer.

    `readings`, `speeds`: by device and round; at least one round has both.
    """
    rounds = sorted(speeds[own].keys() & speeds[peer].keys())
    listed = {one: [readings[one].get(number, GpuReading()) for number in rounds] for one in (own, peer)}
    view = View(
        facts=Rounds(listed, own, peer),
        tower=own,
        peer=peer,
        part=COMPUTE,
        rows=range(len(rounds)),
        gap=[
            math.log(speeds[peer][number].images_per_sec / speeds[own][number].images_per_sec)
            for number in rounds
        ],
        waits=[_value(one, "weights_share") for one in listed[own]],
    )
    return explained_view(view, range(len(rounds)), percent, RULES)


def _value(reading: GpuReading, name: str) -> float:
    found = getattr(reading, name)
    return math.nan if found is None else found


def device_rows(
    names: Mapping[int, str | None],
    runs: Sequence[ScreenRun],
    last: Screen | None = None,
    *,
    noun: str = "GPU",
) -> tuple[ScreenDevice, ...]:
    """Return a row for each device. `names`: the models, by number. `last`: the previous screen."""
    speeds = {number: _alone(runs, number) for number in names}
    best = max((_speed(one) for one in speeds.values() if one), default=None)
    return tuple(_row(number, names, runs, speeds, best, last, noun) for number in names)


def _row(
    number: int,
    names: Mapping[int, str | None],
    runs: Sequence[ScreenRun],
    speeds: Mapping[int, Mapping[int, TimedRun]],
    best: float | None,
    last: Screen | None,
    noun: str,
) -> ScreenDevice:
    own = speeds[number]
    at_once = _in(runs, "independent", number)
    readings = {other: _readings(runs, other) for other in names}
    peers = [one for one in names if one != number and names[one] == names[number] and speeds[one]]
    judged = _judged(number, _middle(peers, speeds), speeds, readings, at_once)
    causes = judged.causes
    since = _since(last, number, own) if own else None
    slower = since is not None and since.low is not None and since.low > SLOW_PERCENT
    failure = next(
        (run.failure for run in runs if run.kind == "alone" and _has(run, number) and run.failure), None
    )
    together = _in(runs, "together", number)
    row = ScreenDevice(
        number=number,
        name=names[number],
        alone=_speed(own) if own else None,
        rounds=len(own),
        percent_of_best=100 * _speed(own) / best if own and best else None,
        at_once=None if at_once is None else at_once.images_per_sec,
        together=None if together is None else together.images_per_sec,
        reading=_middle_reading(tuple(readings[number].values())),
        word=judged.word,
        says="",
        peer=judged.peer,
        under=judged.under,
        causes=causes,
        explained_percent=None if causes is None else sum(one.percent for one in causes.found),
        unexplained_percent=None if causes is None else causes.unexplained_percent,
        since=since,
        slower=slower,
        failure=failure,
    )
    before = next((one for one in last.devices if one.number == number), None) if last else None
    if before is not None and row.alone is not None:
        row = msgspec.structs.replace(row, changes=changes(before, row, since))
    return msgspec.structs.replace(row, says=f"{noun} {row.number} {_sentence(row, noun)}")


class _Judged(NamedTuple):
    """The verdict on a device. `peer`: None for the verdict of the run of all devices at once."""

    word: str
    peer: int | None
    under: Under | None
    causes: Causes | None = None


def _judged(
    number: int,
    peer: int | None,
    speeds: Mapping[int, Mapping[int, TimedRun]],
    readings: Mapping[int, Mapping[int, GpuReading]],
    at_once: InRun | None,
) -> _Judged:
    under = None if peer is None else _under(speeds[peer], speeds[number])
    word = _word(under)
    if word == SLOW and peer is not None and under is not None:
        return _Judged(word, peer, under, causes_of(number, peer, readings, speeds, under.percent))
    verdict = None if at_once is None else at_once.verdict
    if word == EVEN or verdict is None:
        return _Judged(word, peer, under)
    is_bounded = under is not None and under.high is not None
    if verdict.percent_under is None or verdict.word == EVEN or (verdict.word != SLOW and is_bounded):
        return _Judged(verdict.word, peer, under)
    by_steps = Under(
        percent=verdict.percent_under, low=verdict.percent_under_low, high=verdict.percent_under_high
    )
    return _Judged(verdict.word, None, by_steps, verdict.causes)


def _sentence(row: ScreenDevice, noun: str) -> str:
    more = ""
    if row.slower and row.since is not None and row.since.low is not None:
        more = (
            f"; {percent(row.since.percent)}% slower than in the last screen"
            f" (at least {at_least(row.since.low)}%)"
        )
    if row.alone is None and row.failure is not None:
        return f"could not be run alone: {row.failure}"
    gap = "" if row.under is None else f"{percent(abs(row.under.percent))}%"
    peer = "its peers in the run of all GPUs at once" if row.peer is None else f"{noun} {row.peer}"
    if row.word == SLOW and row.under is not None:
        least = "" if row.under.low is None else f" (at least {at_least(max(0.0, row.under.low))}%)"
        why = "" if row.causes is None else f". {row.causes.says}"
        return f"is {gap} slower than {peer}{least}{more}{why}"
    if row.word == EVEN and row.under and row.under.high is not None and row.under.high <= EVEN_PERCENT:
        if row.under.high <= 0:
            return f"is not slower than {noun} {row.peer}{more}"
        return f"is equal to {noun} {row.peer} within {at_most(row.under.high)}%{more}"
    if row.word == EVEN:
        return f"is equal to its peers in the run of all GPUs at once{more}"
    if row.alone is None:
        return "was not run alone"
    if row.under is None:
        return f"cannot be compared: no other {noun} of its kind was run{more}"
    if row.under.high is None:
        side = "below" if row.under.percent >= 0 else "above"
        return f"not judged (only one round): it was {gap} {side} {peer}{more}"
    confidence = 100 * (CONFIDENCE if row.peer is None else 1 - CHANCE)
    return f"is at most {at_most(row.under.high)}% slower than {peer} ({confidence:g}% confidence){more}"


def _alone(runs: Sequence[ScreenRun], number: int) -> dict[int, TimedRun]:
    """Return the speeds of a device by itself, by round."""
    return {
        run.round: TimedRun(run.images_per_sec, run.noise or 0.0)
        for run in runs
        if run.kind == "alone" and _has(run, number) and run.images_per_sec is not None
    }


def _speed(rounds: Mapping[int, TimedRun]) -> float:
    return median(one.images_per_sec for one in rounds.values())


def _middle(peers: Sequence[int], speeds: Mapping[int, Mapping[int, TimedRun]]) -> int | None:
    """Return the device of middle speed, of two middle ones the faster; None if there are no devices."""
    if not peers:
        return None
    middle = median_high(_speed(speeds[one]) for one in peers)
    return next(one for one in peers if _speed(speeds[one]) == middle)


def _under(faster: Mapping[int, TimedRun], slower: Mapping[int, TimedRun]) -> Under | None:
    rounds = sorted(faster.keys() & slower.keys())
    if not rounds:
        return None
    found, noise = lead([faster[one] for one in rounds], [slower[one] for one in rounds])
    return _in_percent(found, noise)


def _in_percent(found: float, noise: float) -> Under:
    if not math.isfinite(noise):
        return Under(percent=_lost(found))
    return Under(percent=_lost(found), low=_lost(found - noise), high=_lost(found + noise))


def _lost(logarithm: float) -> float:
    return 100 * (1 - math.exp(-logarithm))


def _word(under: Under | None) -> str:
    if under is None or under.low is None or under.high is None:
        return CANNOT_TELL
    if under.low > SLOW_PERCENT:
        return SLOW
    return EVEN if under.high <= EVEN_PERCENT else CANNOT_TELL


def _has(run: ScreenRun, number: int) -> bool:
    return any(one.number == number for one in run.devices)


def _in(runs: Sequence[ScreenRun], kind: str, number: int) -> InRun | None:
    """Return a device in the last run of a kind; after a failure, that run excludes the device."""
    found = [one for run in runs if run.kind == kind for one in run.devices if one.number == number]
    return found[-1] if found else None


def _readings(runs: Sequence[ScreenRun], number: int) -> dict[int, GpuReading]:
    """Return what each run of a device by itself read, by round."""
    return {
        run.round: one.reading
        for run in runs
        if run.kind == "alone"
        for one in run.devices
        if one.number == number
    }


def _middle_reading(found: Sequence[GpuReading]) -> GpuReading:
    """Return the medians of some readings."""
    values = {
        field: [value for one in found if (value := getattr(one, field)) is not None]
        for field in GpuReading.__struct_fields__
    }
    return GpuReading(**{field: median_high(known) for field, known in values.items() if known})


def _since(last: Screen | None, number: int, now: Mapping[int, TimedRun]) -> Under | None:
    """Return how far a device is below the last screen; None if that has no such runs.

    Uses Student's t of the runs of both screens, which are not paired by rounds.
    """
    then = {} if last is None else _alone(last.runs, number)
    if not then:
        return None
    both = [[math.log(one.images_per_sec) for one in runs.values()] for runs in (then, now)]
    found = median(both[0]) - median(both[1])
    freedom = len(then) + len(now) - 2
    if min(map(len, both)) < 2:
        return Under(percent=_lost(found))
    within = median(one.noise for one in (*then.values(), *now.values()))
    pooled = math.sqrt(sum((len(one) - 1) * stdev(one) ** 2 for one in both) / freedom)
    error = max(pooled, within) * math.sqrt(sum(1 / len(one) for one in both))
    return _in_percent(found, students_t(freedom, CHANCE) * error)
