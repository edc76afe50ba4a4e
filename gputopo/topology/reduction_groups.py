"""The groups of close GPUs within which a hierarchical reduction adds first."""

from collections.abc import Mapping, Sequence

from gputopo.topology.hops import is_within, links_by_pair, maximal_groups, nearness
from gputopo.values.machine import Hop, Machine

Groups = tuple[tuple[int, ...], ...]


def reduction_groups(machine: Machine, gpus: Sequence[int]) -> Groups:
    """Return groups of towers; tower i is on the machine's GPU `gpus[i]`, and every tower is in one group.

    The nearest class of links (NVLink counts as PIX) within which any two of these GPUs are makes the groups:
    repeatedly its largest island, of equally large ones that with the lowest towers. GPUs that are all
    equally far from one another are one group. The members of later groups are in the order of the first
    group's members that they are nearest to, because leaders of the same rank exchange data.
    """
    return GroupsOf(machine)(gpus)


class GroupsOf:
    """The groups of any GPUs of one machine, as `reduction_groups`."""

    def __init__(self, machine: Machine) -> None:
        links = links_by_pair(machine)
        known = {gpu.index for gpu in machine.gpus}
        self._nearness: dict[int, dict[int, tuple[int, int]]] = {}
        # By class of links and GPU: the GPUs within it, as bits. An unknown GPU is near no other.
        self._within: dict[Hop, dict[int, int]] = {farthest: {} for farthest in Hop}
        for (one, other), link in links.items():
            for a, b in ((one, other), (other, one)):
                self._nearness.setdefault(a, {})[b] = nearness(link)
                for farthest, near in self._within.items():
                    if {a, b} <= known and is_within(link, farthest):
                        near[a] = near.get(a, 0) | 1 << b

    def __call__(self, gpus: Sequence[int]) -> Groups:
        """Return the groups of towers on these GPUs."""
        for near in self._within.values():
            groups = _partition(gpus, near)
            if len(groups) < len(gpus):
                first, *others = groups
                return (first, *(self._in_order_of(gpus, first, other) for other in others))
        return (tuple(range(len(gpus))),) if gpus else ()

    def _in_order_of(
        self, gpus: Sequence[int], first: tuple[int, ...], other: tuple[int, ...]
    ) -> tuple[int, ...]:
        left = list(other)
        ordered = []
        for leader in first[: len(other)]:
            row = self._nearness.get(gpus[leader], {})
            closest = min(left, key=lambda tower: (row.get(gpus[tower], nearness(None)), tower))
            ordered.append(closest)
            left.remove(closest)
        return (*ordered, *left)


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


def _partition(gpus: Sequence[int], within: Mapping[int, int]) -> Groups:
    near = [
        sum(1 << tower for tower, other in enumerate(gpus) if within.get(gpu, 0) >> other & 1) for gpu in gpus
    ]
    rest = (1 << len(gpus)) - 1
    groups = []
    while rest:
        found = maximal_groups([row & rest for row in near], rest)
        group = min(found, key=lambda members: (-len(members), members))
        groups.append(group)
        rest &= ~sum(1 << tower for tower in group)
    return tuple(sorted(groups))
