"""The ring over some GPUs with the fastest possible slowest link.

Each link of a ring carries 2 (n - 1) / n of the bytes of a model (nccl-tests, doc/PERFORMANCE.md), and every
GPU sends and receives at once. A depth-first search finds the order: the slowest link between two neighbours
is as fast as in any ring. Near neighbours come first, so that a ring leaves a switch only once.
"""

from collections.abc import Mapping, Sequence

from gputopo.prediction.links.flows import GB, Flows, Load, slowest_of
from gputopo.prediction.links.paths import Paths, Resource

# The rate of each link of a ring of GPUs without P2P through host memory, whatever copies reach, because
# kernels write and read it there. From rings of NCCL in the published figures of 2020, most with 16 lanes of
# generation 3 or 4. Errors on machines that were not used for the fit are the same from 6 to 9.
THROUGH_HOST_GB_PER_S = 8.0
MAX_STEPS = 20_000  # partial orders; all orders of eight GPUs are 13,700


def ring_order(paths: Paths, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return the GPUs in the order of the best ring."""
    if len(gpus) < 4:
        return tuple(gpus)
    costs = {a: {b: _edge_seconds(paths, a, b) for b in gpus if b != a} for a in gpus}
    for limit in sorted({seconds for row in costs.values() for seconds in row.values()}):
        if order := _within(costs, limit):
            return order
    return tuple(gpus)


def ring_loads(paths: Paths, gpus: Sequence[int]) -> dict[Resource, Load]:
    """Return what each resource carries for the best ring over two or more GPUs."""
    order, flows = ring_order(paths, gpus), Flows(paths)
    for a, b in zip(order, (*order[1:], order[0]), strict=True):
        flows.between(a, b, 2 * (len(order) - 1) / len(order))
    least = 1 / (THROUGH_HOST_GB_PER_S * GB)
    return {
        resource: load._replace(seconds=max(load.seconds, load.share * least))
        if resource[0] == "pair" and paths.pair(int(resource[1]), int(resource[2])).kind == "staged"
        else load
        for resource, load in flows.loads.items()
    }


def _edge_seconds(paths: Paths, a: int, b: int) -> float:
    """Return the seconds per byte between two neighbours that both send to each other."""
    flows = Flows(paths)
    flows.between(a, b)
    flows.between(b, a)
    return slowest_of(flows.loads).seconds


def _within(costs: Mapping[int, Mapping[int, float]], limit: float) -> tuple[int, ...] | None:
    """Return a ring whose links all need at most `limit`; None if none is found in MAX_STEPS."""
    near = {a: [b for b in sorted(row, key=row.__getitem__) if row[b] <= limit] for a, row in costs.items()}
    start, steps = min(near, key=lambda gpu: len(near[gpu])), 0

    def extended(order: tuple[int, ...]) -> tuple[int, ...] | None:
        nonlocal steps
        steps += 1
        if len(order) == len(near):
            return order if start in near[order[-1]] else None
        for gpu in near[order[-1]]:
            if gpu not in order and steps < MAX_STEPS and (ring := extended((*order, gpu))):
                return ring
        return None

    return extended((start,)) if len(near[start]) > 1 else None
