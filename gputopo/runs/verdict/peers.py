"""Differences between a device and its peers, with bounds. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.runs.verdict.bounds import Interval, interval, min_values
from gputopo.runs.verdict.devices import kind_of, reference_of
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.thresholds import FALSE_ALARM, WHOLE_SHARE
from gputopo.values.run.events import Device

# A device so many times as fast as its peer is one whose peer stood still.
MAX_TIMES = 100.0
COMPUTE, WEIGHTS = "compute", "weights"


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
