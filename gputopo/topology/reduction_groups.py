"""The groups of close GPUs within which a hierarchical reduction adds first."""

from collections.abc import Sequence

import msgspec

from gputopo.topology.hops import islands, nearness
from gputopo.values.machine import Hop, Machine

Groups = tuple[tuple[int, ...], ...]


def reduction_groups(machine: Machine, gpus: Sequence[int]) -> Groups:
    """Return groups of towers; tower i is on the machine's GPU `gpus[i]`, and every tower is in one group.

    The nearest class of links (NVLink counts as PIX) within which any two of these GPUs are makes the groups:
    repeatedly its largest island, of equally large ones that with the lowest towers. GPUs that are all
    equally far from one another are one group. The members of later groups are in the order of the first
    group's members that they are nearest to, because leaders of the same rank exchange data.
    """
    for farthest in Hop:
        groups = _partition(machine, tuple(gpus), farthest)
        if len(groups) < len(gpus):
            return _paired(machine, gpus, groups)
    return (tuple(range(len(gpus))),) if gpus else ()


def halves(towers: int) -> Groups:
    """Return the groups where the topology is unknown: the first and the second half of the towers.

    The first half has one more where their number is odd; one tower is a group by itself.
    """
    first = (towers + 1) // 2
    return tuple(group for group in (tuple(range(first)), tuple(range(first, towers))) if group)


def leaders_of(groups: Groups, number: int) -> tuple[list[int], int]:
    """Return the tower that leads each group for a variable, and the group where the total is made."""
    rank, main = divmod(number, len(groups))
    return [group[rank % len(group)] for group in groups], main


def _partition(machine: Machine, gpus: tuple[int, ...], farthest: Hop) -> Groups:
    tower = {gpu: number for number, gpu in enumerate(gpus)}
    rest = set(gpus)
    groups = []
    while rest:
        # An unknown GPU is near no other.
        found = islands(_only(machine, rest), farthest) or tuple((gpu,) for gpu in rest)
        towers = [tuple(sorted(tower[gpu] for gpu in island)) for island in found]
        group = min(towers, key=lambda members: (-len(members), members))
        groups.append(group)
        rest -= {gpus[number] for number in group}
    return tuple(sorted(groups))


def _only(machine: Machine, gpus: set[int]) -> Machine:
    those = tuple(gpu for gpu in machine.gpus if gpu.index in gpus)
    return msgspec.structs.replace(machine, gpus=those)


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
