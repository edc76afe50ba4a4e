"""Which GPUs a hierarchical reduction joins first: groups of close ones, from the machine's links. Pure."""

from collections.abc import Sequence

import msgspec

from gputopo.topology.hops import islands, nearness
from gputopo.values.machine import Hop, Machine

Groups = tuple[tuple[int, ...], ...]


def reduction_groups(machine: Machine, gpus: Sequence[int]) -> Groups:
    """Give groups of towers; tower i is on the machine's GPU `gpus[i]`, and every tower is in one group.

    The nearest class of links (NVLink counts as PIX) within which any two of these GPUs are makes the groups:
    again and again the largest island of it, of equal ones that with the lowest towers. GPUs that are all
    equally far from one another are one group. The members of later groups stand in the order of the first
    group's members that they are nearest to, because leaders of the same rank talk to one another.
    """
    for farthest in Hop:
        groups = _partition(machine, tuple(gpus), farthest)
        if len(groups) < len(gpus):
            return _paired(machine, gpus, groups)
    return (tuple(range(len(gpus))),) if gpus else ()


def halves(towers: int) -> Groups:
    """Give the groups where no machine says better: the first and the second half of the towers.

    The first half has one more where their number is odd; one tower is a group by itself.
    """
    first = (towers + 1) // 2
    return tuple(group for group in (tuple(range(first)), tuple(range(first, towers))) if group)


def _partition(machine: Machine, gpus: tuple[int, ...], farthest: Hop) -> Groups:
    tower = {gpu: number for number, gpu in enumerate(gpus)}
    rest = set(gpus)
    groups = []
    while rest:
        # A GPU that the machine does not know is near no other.
        found = islands(_only(machine, rest), farthest) or tuple((gpu,) for gpu in rest)
        towers = [tuple(sorted(tower[gpu] for gpu in island)) for island in found]
        group = min(towers, key=lambda members: (-len(members), members))
        groups.append(group)
        rest -= {gpus[number] for number in group}
    return tuple(sorted(groups))


def _only(machine: Machine, gpus: set[int]) -> Machine:
    kept = tuple(gpu for gpu in machine.gpus if gpu.index in gpus)
    return msgspec.structs.replace(machine, gpus=kept)


def _paired(machine: Machine, gpus: Sequence[int], groups: Groups) -> Groups:
    first, *others = groups
    return (first, *(_in_order_of(machine, gpus, first, other) for other in others))


def _in_order_of(
    machine: Machine, gpus: Sequence[int], first: tuple[int, ...], other: tuple[int, ...]
) -> tuple[int, ...]:
    left = list(other)
    ordered = []
    for leader in first[: len(other)]:
        nearest = min(left, key=lambda tower: (nearness(machine.link(gpus[leader], gpus[tower])), tower))
        ordered.append(nearest)
        left.remove(nearest)
    return (*ordered, *left)
