"""What slow devices cost: the recorded steps are replayed with these devices at the pace of their peers.

A synchronous step lasts until its last tower ends, plus a rest (reduction, update) that stays the same:
seconds = max over the towers (start + weights + compute) + rest. In the replay, a slow tower takes as long as
its peer in the same step. A tower that started after another one ended starts earlier by as much as that one
ends earlier. Towers that train independently or asynchronously wait for no other tower: there a slow tower
costs only its own images.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gputopo.runs.verdict.words import COMPUTE, WEIGHTS
from gputopo.values.run.events import TowerMarks
from gputopo.values.run.verdict import Cost


class KeptStep(msgspec.Struct, frozen=True):
    """A step's seconds, images, and usable marks by tower."""

    step: int
    seconds: float
    images: int
    marks: Mapping[int, TowerMarks]


# Values of `variable_update` with which no tower waits for the others.
ALONE = frozenset({"independent", "async"})

Peers = Mapping[tuple[int, str], int]  # the peer, by tower and slow part of the step


def cost(
    steps: Sequence[KeptStep], peers: Peers, allowance: Callable[[int, int], float], *, alone: bool = False
) -> Cost | None:
    """Return what the slow parts in `peers` cost together; None if no step can be replayed.

    `allowance`: the maximum ratio of a tower's compute time to its peer's. `alone`: no tower waits for the
    others.
    """
    images = seconds = replayed = 0.0
    needed = {tower for tower, _ in peers} | set(peers.values())
    for step in steps:
        if step.marks.keys() >= needed:
            images += step.images
            seconds += step.seconds
            as_peers = {tower: _as_peer(step, tower, peers, allowance) for tower in step.marks}
            replayed += (_alone if alone else _together)(step, as_peers)
    if not images or seconds <= 0 or replayed <= 0:
        return None
    now, without = images / seconds, images / replayed
    return Cost(images_per_sec=now, without=without, percent=100 * (1 - now / without))


def without_share(steps: Sequence[KeptStep], share: float) -> Cost | None:
    """Return the cost of a part that takes `share` (0 to 1) of every step."""
    images, seconds = sum(step.images for step in steps), sum(step.seconds for step in steps)
    if not images or seconds <= 0 or not 0 < share < 1:
        return None
    now = images / seconds
    return Cost(images_per_sec=now, without=now / (1 - share), percent=100 * share)


def _together(step: KeptStep, as_peers: Mapping[int, float]) -> float:
    ends: list[tuple[float, float]] = [(0.0, 0.0)]  # of each tower: as recorded, and replayed
    for tower, mark in sorted(step.marks.items(), key=lambda item: item[1].start_s):
        # Towers that share cores run one after another: a tower that starts after another one's end waited
        # for it.
        recorded_end, replayed_end = max(end for end in ends if end[0] <= max(mark.start_s, 0.0))
        start = mark.start_s - (recorded_end - replayed_end)
        ends.append((mark.start_s + mark.busy_s, start + as_peers[tower]))
    recorded = max(as_recorded for as_recorded, _ in ends)
    replayed = max(as_replayed for _, as_replayed in ends)
    return min(step.seconds, replayed + max(0.0, step.seconds - recorded))


def _alone(step: KeptStep, as_peers: Mapping[int, float]) -> float:
    """Return the seconds in which all towers would have processed the same number of images."""
    pace = sum(1 / mark.busy_s for mark in step.marks.values())
    return step.seconds * pace / sum(1 / busy_s for busy_s in as_peers.values())


def _as_peer(step: KeptStep, tower: int, peers: Peers, allowance: Callable[[int, int], float]) -> float:
    """Return how long a tower would have been busy with its slow parts at its peers' pace, in seconds."""
    mark = step.marks[tower]
    compute_s, weights_s = mark.compute_s, mark.weights_s
    if (peer := peers.get((tower, COMPUTE))) is not None:
        compute_s = min(compute_s, step.marks[peer].compute_s * allowance(tower, peer))
    if (peer := peers.get((tower, WEIGHTS))) is not None:
        weights_s = min(weights_s, step.marks[peer].weights_s)
    return weights_s + compute_s
