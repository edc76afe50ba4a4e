"""What the short runs of a screen show: the verdict on each device, and its causes.

A device by itself is compared with the same peer as in a run (`reference_of`), round by round (see
`gputopo.values.run.noise.lead`), so a drift of clocks or of the host's load that affects all of them cancels:

    slow         the lower bound of the difference is above SLOW_PERCENT
    even         its upper bound is not above EVEN_PERCENT
    cannot tell  neither: the upper bound is the answer

If fewer than two rounds cannot decide, the verdict of the run of all at once is used. Rounds are too
few to fit a slope, so a cause explains at most what it can cost by physics.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, median_high, stdev
from typing import NamedTuple

import msgspec

from gputopo.runs.devices import SAMPLED, reference_of
from gputopo.runs.screen_changes import changes
from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.causes import explained_view
from gputopo.runs.verdict.rules import CAUSES, GPU, ByRow, View, excess
from gputopo.runs.verdict.sampled import Facts
from gputopo.runs.verdict.words import COMPUTE, at_least
from gputopo.values.run.bounded import known_middle
from gputopo.values.run.events import Device, Event, Sample, Step
from gputopo.values.run.noise import lead, students_t
from gputopo.values.run.plan import TimedRun
from gputopo.values.run.result import DeviceResult
from gputopo.values.run.several_runs import GpuReading, InRun, Screen, ScreenDevice, ScreenRun, Under
from gputopo.values.run.verdict import (
    CANNOT_TELL,
    CONFIDENCE,
    EVEN,
    EVEN_PERCENT,
    SLOW,
    SLOW_PERCENT,
    Causes,
)
from gputopo.values.words import at_most, percent

# A device by itself takes the whole step: the causes that slow its computing or the link of its weights.
RULES = tuple(
    rule
    for rule in CAUSES
    if GPU in rule.devices and rule.id != "memory-full" and (COMPUTE in rule.parts or rule.id == "pcie-link")
)

# Probability that chance alone passes one bound of a change since the last screen, as in `lead`.
CHANCE = 0.025
_FIELDS = GpuReading.__struct_fields__


Speeds = Mapping[int, Mapping[int, TimedRun]]
"""Speeds of each device by itself: by number of the device, and by round."""
Readings = Mapping[int, Mapping[int, GpuReading]]
"""What each run of a device by itself read: by number of the device, and by round."""


class RunReadings:
    """What a short run reads of its devices. `add` takes all its events in order."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._facts = Facts(devices)

    def add(self, event: Event) -> None:
        """Add the next event of the run."""
        if isinstance(event, Sample):
            self._facts.add(event)
        elif isinstance(event, Step):
            self._facts.end_step(event, counted=not event.warmup)

    def of_device(self, row: DeviceResult) -> GpuReading:
        """Return the means and medians for a device of the run's result."""
        tower, facts = row.device.tower, self._facts
        means = {fact: _mean(facts.of_gpu(tower, fact)) for fact in sampled.OF_GPU if fact in _FIELDS}
        means |= {fact: _mean(facts.of_host(tower, fact)) for fact in sampled.OF_HOST if fact in _FIELDS}
        busy_ms = (row.weights_ms or 0.0) + (row.compute_ms or 0.0)
        return GpuReading(
            graphics_percent=row.graphics_percent,
            memory_percent=row.memory_percent,
            weights_share=row.weights_ms / busy_ms if row.weights_ms is not None and busy_ms > 0 else None,
            **{**means, **{field: getattr(row, field) for field in SAMPLED}},
        )


def _mean(values: Sequence[float]) -> float | None:
    mean = known_middle(values, fmean)
    return None if math.isnan(mean) else mean


def causes_of(device: int, peer: int, readings: Readings, speeds: Speeds, percent: float) -> Causes:
    """Return the causes of a device that is `percent` slower than its peer; they have a round in common."""
    rounds = sorted(speeds[device].keys() & speeds[peer].keys())

    def by_round(number: int) -> ByRow:
        read = [readings[number].get(place, GpuReading()) for place in rounds]

        def values(fact: str) -> list[float]:
            known = (getattr(reading, fact) for reading in read)
            return [math.nan if value is None else value for value in known]

        return values

    of_device, of_peer = by_round(device), by_round(peer)

    gap = [
        math.log(speeds[peer][number].images_per_sec / speeds[device][number].images_per_sec)
        for number in rounds
    ]
    view = View(
        device=of_device,
        peer=of_peer,
        host=lambda fact: excess(of_device(fact), of_peer(fact)),  # of the host in the run of each
        part=COMPUTE,
        gap=gap,
        waits=of_device("weights_share"),
    )
    return explained_view(view, range(len(rounds)), percent, RULES)


def device_rows(
    names: Mapping[int, str | None],
    runs: Sequence[ScreenRun],
    last: Screen | None = None,
    *,
    noun: str = "GPU",
) -> tuple[ScreenDevice, ...]:
    """Return a row for each device. `names`: the models, by number. `last`: the previous screen."""
    speeds = {number: _alone(runs, number) for number in names}
    best = max((_speed(rounds) for rounds in speeds.values() if rounds), default=None)
    readings = {
        number: {
            run.round: device.reading
            for run in runs
            if run.kind == "alone"
            for device in run.devices
            if device.number == number
        }
        for number in names
    }
    return tuple(_row(number, names, runs, speeds, readings, best, last, noun) for number in names)


def _row(
    number: int,
    names: Mapping[int, str | None],
    runs: Sequence[ScreenRun],
    speeds: Speeds,
    readings: Readings,
    best: float | None,
    last: Screen | None,
    noun: str,
) -> ScreenDevice:
    alone = _speed(speeds[number]) if speeds[number] else None
    at_once, together = _in(runs, "independent", number), _in(runs, "together", number)
    alike = [other for other in names if names[other] == names[number] and speeds[other]]
    fastest_first = sorted(alike, key=lambda other: -_speed(speeds[other]))
    peer = reference_of(number, fastest_first) if set(alike) - {number} else None
    judged = _judged(number, peer, speeds, readings, at_once)
    causes = judged.causes
    since = _since(last, number, speeds[number]) if alone is not None else None
    failures = (run.failure for run in runs if run.kind == "alone" and _has(run, number) and run.failure)
    read = {
        field: [
            value for reading in readings[number].values() if (value := getattr(reading, field)) is not None
        ]
        for field in _FIELDS
    }
    row = ScreenDevice(
        number=number,
        name=names[number],
        alone=alone,
        rounds=len(speeds[number]),
        percent_of_best=100 * alone / best if alone is not None and best else None,
        at_once=None if at_once is None else at_once.images_per_sec,
        together=None if together is None else together.images_per_sec,
        reading=GpuReading(**{field: median_high(values) for field, values in read.items() if values}),
        word=judged.word,
        says="",
        peer=judged.peer,
        under=judged.under,
        causes=causes,
        explained_percent=None if causes is None else sum(cause.percent for cause in causes.found),
        unexplained_percent=None if causes is None else causes.unexplained_percent,
        since=since,
        slower=since is not None and since.low is not None and since.low > SLOW_PERCENT,
        failure=next(failures, None),
    )
    before = next((device for device in last.devices if device.number == number), None) if last else None
    if before is not None and alone is not None:
        row = msgspec.structs.replace(row, changes=changes(before, row, since))
    return msgspec.structs.replace(row, says=f"{noun} {row.number} {_sentence(row, noun)}")


class _Judged(NamedTuple):
    """The verdict on a device. `peer`: None for the verdict of the run of all devices at once."""

    word: str
    peer: int | None
    under: Under | None
    causes: Causes | None = None


def _judged(
    number: int, peer: int | None, speeds: Speeds, readings: Readings, at_once: InRun | None
) -> _Judged:
    under = None if peer is None else _under(speeds[peer], speeds[number])
    is_bounded = under is not None and under.high is not None
    if peer is not None and under is not None and under.low is not None and under.high is not None:
        if under.low > SLOW_PERCENT:
            return _Judged(SLOW, peer, under, causes_of(number, peer, readings, speeds, under.percent))
        if under.high <= EVEN_PERCENT:
            return _Judged(EVEN, peer, under)
    verdict = None if at_once is None else at_once.verdict
    if verdict is None:
        return _Judged(CANNOT_TELL, peer, under)
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
    return median(run.images_per_sec for run in rounds.values())


def _under(faster: Mapping[int, TimedRun], slower: Mapping[int, TimedRun]) -> Under | None:
    rounds = sorted(faster.keys() & slower.keys())
    if not rounds:
        return None
    return _in_percent(*lead([faster[number] for number in rounds], [slower[number] for number in rounds]))


def _in_percent(lead: float, noise: float) -> Under:
    if not math.isfinite(noise):
        return Under(percent=_lost(lead))
    return Under(percent=_lost(lead), low=_lost(lead - noise), high=_lost(lead + noise))


def _lost(logarithm: float) -> float:
    return 100 * (1 - math.exp(-logarithm))


def _has(run: ScreenRun, number: int) -> bool:
    return any(device.number == number for device in run.devices)


def _in(runs: Sequence[ScreenRun], kind: str, number: int) -> InRun | None:
    """Return a device in the last run of a kind; after a failure, that run excludes the device."""
    in_run = None
    for run in runs:
        for device in run.devices if run.kind == kind else ():
            in_run = device if device.number == number else in_run
    return in_run


def _since(last: Screen | None, number: int, now: Mapping[int, TimedRun]) -> Under | None:
    """Return how far a device is below the last screen; None if that has no such runs.

    Uses Student's t of the runs of both screens: they are not paired by rounds, as devices of one screen are.
    """
    then = {} if last is None else _alone(last.runs, number)
    if not then:
        return None
    both = [[math.log(series.images_per_sec) for series in runs.values()] for runs in (then, now)]
    lost = median(both[0]) - median(both[1])
    freedom = len(then) + len(now) - 2
    if min(map(len, both)) < 2:
        return Under(percent=_lost(lost))
    within = median(series.noise for series in (*then.values(), *now.values()))
    pooled = math.sqrt(sum((len(series) - 1) * stdev(series) ** 2 for series in both) / freedom)
    error = max(pooled, within) * math.sqrt(sum(1 / len(series) for series in both))
    return _in_percent(lost, students_t(freedom, CHANCE) * error)
