"""The gradients of a step as flows that share links max-min fairly, event by event: slow, without formulas.

Every flow sends its gradients one after another, each once it is ready. All rates rise together until a link
is full (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2).
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from gputopo.prediction import GradientBlock, Paths, Placement
from gputopo.prediction.links import GB, Flows, Resource

_DONE = 1e-9  # of a byte


class Flow(NamedTuple):
    """What one sender sends: seconds a byte of each link that it crosses, and its gradients in order."""

    links: Mapping[Resource, float]
    ready: Sequence[float]
    sizes: Sequence[float]


def flows_of(
    paths: Paths, gpus: Sequence[int], placing: Placement, blocks: Sequence[GradientBlock], overlap: float
) -> list[Flow]:
    """Return the flows of gradients of a backward that takes one second."""
    made, ready = 0.0, []
    for block in reversed(blocks):
        made += block.share
        ready.append(overlap * made + 1 - overlap)
    owners = [None] if placing.traffic == "host" else list(gpus) if placing.owner is None else [placing.owner]
    found = []
    for gpu in gpus:
        for owner in owners:
            flows = Flows(paths)
            flows.between(gpu, owner)
            if flows.seconds:
                links = {link: seconds / GB for link, seconds in flows.seconds.items()}
                found.append(Flow(links, ready, [block.bytes / len(owners) for block in reversed(blocks)]))
    return found


def ends_of(flows: Sequence[Flow]) -> list[list[float]]:
    """Return when each gradient of each flow is through."""
    now, at = 0.0, [0] * len(flows)
    ends: list[list[float]] = [[] for _ in flows]
    left = [flow.sizes[0] for flow in flows]
    while True:
        for number, flow in enumerate(flows):
            while at[number] < len(flow.sizes) and left[number] <= _DONE and flow.ready[at[number]] <= now:
                at[number] += 1
                ends[number].append(now)
                left[number] = flow.sizes[at[number]] if at[number] < len(flow.sizes) else 0.0
        waiting = [number for number, flow in enumerate(flows) if at[number] < len(flow.sizes)]
        if not waiting:
            return ends
        sending = [number for number in waiting if flows[number].ready[at[number]] <= now]
        rates = fair_rates({number: flows[number].links for number in sending})
        steps = [left[number] / rates[number] for number in sending]
        steps += [flows[number].ready[at[number]] - now for number in waiting if number not in rates]
        step = min(steps)
        now += step
        for number in sending:
            left[number] -= step * rates[number]


def fair_rates(flows: Mapping[int, Mapping[Resource, float]]) -> dict[int, float]:
    """Return bytes a second of each flow; a link is full when its flows' bytes take all of its time."""
    rates = dict.fromkeys(flows, 0.0)
    rising = set(flows)
    used: dict[Resource, float] = {}
    while rising:
        grows: dict[Resource, float] = {}
        for number in rising:
            for link, seconds in flows[number].items():
                grows[link] = grows.get(link, 0.0) + seconds
        step = min((1 - used.get(link, 0.0)) / each if each else inf for link, each in grows.items())
        for number in rising:
            rates[number] += step
        for link, each in grows.items():
            used[link] = used.get(link, 0.0) + step * each
        rising = {number for number in rising if all(used[link] < 1 - 1e-12 for link in flows[number])}
    return rates
