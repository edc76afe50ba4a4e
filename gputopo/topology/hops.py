"""How far apart GPUs are: the classes of `nvidia-smi topo -m` from the PCI tree, order of pairs, islands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gputopo.values.machine import Hop, Link, Machine, PciNode

UNKNOWN_LEVEL = 60  # a pair without known facts sorts after SYS, whose NVML level is 50


def hop_between(nodes: Sequence[PciNode], a: str, b: str) -> Hop | None:
    """Return the class of the PCIe path between two functions by address, or None if it is unknown.

    The bridges above each function are followed up to the root complex.

    - The paths meet at a bridge, and neither has more than one bridge below it: PIX. A PCIe switch is one
      upstream bridge with a downstream bridge for each port, so two GPUs of one switch meet at its upstream
      bridge with one bridge each below it; GPUs directly under one bridge have none.
    - The paths meet at a bridge, with more bridges below it on either side: PXB (several switches).
    - The paths meet only at the root complex (the same `root`; two root ports of one): PHB.
    - Different roots: NODE on the same NUMA node, SYS on different ones. A function without a NUMA number
      has the number of the nearest bridge above it. If no node of the whole tree has a number, the machine
      has one NUMA node: NODE.

    INTERNAL (two GPUs on one board) is never returned: such a board is a switch in the tree like any other.
    None: a function is not among the nodes; both functions are the same; a bridge between a function and the
    root is missing, so that PHB and nearer classes are ambiguous; or only one of the two NUMA numbers is
    known.
    """
    tree = {node.address: node for node in nodes}
    if a == b or a not in tree or b not in tree:
        return None
    above_a, whole_a = bridges_above(tree, a)
    above_b, whole_b = bridges_above(tree, b)
    meeting = next((bridge for bridge in above_a if bridge in above_b), None)
    if meeting is not None:
        max_below = max(above_a.index(meeting), above_b.index(meeting))
        return Hop.PIX if max_below <= 1 else Hop.PXB
    if tree[a].root == tree[b].root:
        return Hop.PHB if whole_a and whole_b else None
    return _hop_between_roots(_numa_node(tree, a, above_a), _numa_node(tree, b, above_b), nodes)


def nearness(link: Link | None) -> tuple[int, int]:
    """Return the sort key of a pair, nearest first: by number of NVLinks, the most first, then by PCIe hop.

    An unknown hop sorts after SYS.
    """
    if link is None:
        return (0, UNKNOWN_LEVEL)
    return (-(link.nvlinks or 0), UNKNOWN_LEVEL if link.hop is None else link.hop.level)


def is_within(link: Link | None, farthest: Hop) -> bool:
    """Return whether a pair is no farther apart than `farthest`.

    A pair with NVLinks is within PIX: its traffic does not need PCIe. A pair without NVLinks and without a
    known hop is not within any class, not even SYS.
    """
    if link is None:
        return False
    if link.nvlinks and farthest >= Hop.PIX:
        return True
    return link.hop is not None and link.hop <= farthest


def class_name(link: Link | None) -> str:
    """Return the class of a pair as in the matrix: `NV2`, `PIX`, ..., or `unknown`."""
    if link is not None and link.nvlinks:
        return f"NV{link.nvlinks}"
    return "unknown" if link is None or link.hop is None else link.hop.value


def pci_tree(machine: Machine) -> dict[str, PciNode]:
    """Return the PCI devices of a machine by address."""
    return {node.address: node for node in machine.pci}


def links_by_pair(machine: Machine) -> dict[tuple[int, int], Link]:
    """Return the links by their two GPU indices, low index first; the first one if a pair has two."""
    links: dict[tuple[int, int], Link] = {}
    for link in machine.links:
        links.setdefault((link.a, link.b), link)
    return links


def joined_by_hops(
    gpus: Iterable[int], links: Mapping[tuple[int, int], Link], farthest: Hop
) -> list[frozenset[int]]:
    """Return the sets of GPUs that PCIe hops up to `farthest` connect, in order of their smallest index."""
    parts = {gpu: frozenset((gpu,)) for gpu in gpus}
    for (a, b), link in links.items():
        if link.hop is not None and link.hop <= farthest and a in parts and b in parts:
            both = parts[a] | parts[b]
            parts |= dict.fromkeys(both, both)
    return sorted(set(parts.values()), key=min)


def islands(machine: Machine, farthest: Hop) -> tuple[tuple[int, ...], ...]:
    """Return the largest groups of GPUs in which every pair is within `farthest` (see `is_within`).

    A GPU that is near no other GPU is an island by itself, so every GPU is in an island. With PCIe only, no
    GPU is in two islands. NVLinks are not a tree (in a DGX-1, GPU 0 reaches 1 and 4, but 1 does not reach 4),
    so islands may overlap; no island is part of another. Indices increase within an island and from island to
    island.
    """
    gpus = sorted(gpu.index for gpu in machine.gpus)
    position = {gpu: number for number, gpu in enumerate(gpus)}
    near = [0] * len(gpus)
    for (a, b), link in links_by_pair(machine).items():
        if a in position and b in position and is_within(link, farthest):
            near[position[a]] |= 1 << position[b]
            near[position[b]] |= 1 << position[a]
    groups = maximal_groups(near, (1 << len(gpus)) - 1)
    return tuple(sorted(tuple(gpus[number] for number in group) for group in groups))


def maximal_groups(near: Sequence[int], mask: int) -> list[tuple[int, ...]]:
    """Return the largest groups of numbers in `mask` that are all near each other.

    `near`: for each number, the numbers near it, as bits. No group is part of another.
    """
    return [tuple(_bits(group)) for group in _maximal_groups(near, 0, mask, 0)] if mask else []


def bridges_above(tree: Mapping[str, PciNode], address: str) -> tuple[list[str], bool]:
    """Return the bridges above a function, nearest first, and whether the path to the root is complete."""
    bridges: list[str] = []
    parent = tree[address].parent
    while parent is not None:
        if parent in bridges or parent == address:
            return bridges, False  # a damaged recording: the path is a cycle
        bridges.append(parent)
        if parent not in tree:
            return bridges, False
        parent = tree[parent].parent
    return bridges, True


def max_rate(node: PciNode | None) -> float | None:
    """Return the highest rate of a link over all lanes in GT/s, for ratios between links of one kind."""
    if node is None or node.max_speed_gt_per_s is None or node.max_width is None:
        return None
    return node.max_speed_gt_per_s * node.max_width


def slower_bridge(tree: Mapping[str, PciNode], address: str) -> str | None:
    """Return the first bridge above a function with a lower maximum rate than the function's, or None.

    Bridges without a reported speed are skipped. In virtual machines the bridges are not real.
    """
    own = max_rate(tree[address])
    for bridge in bridges_above(tree, address)[0] if own is not None else ():
        rate = max_rate(tree.get(bridge))
        if own is not None and rate is not None and rate < own:
            return bridge
    return None


def _numa_node(tree: Mapping[str, PciNode], address: str, above: Sequence[str]) -> int | None:
    return next(
        (
            number
            for number in (_known_numa(tree[step]) for step in (address, *above) if step in tree)
            if number is not None
        ),
        None,
    )


def _known_numa(node: PciNode) -> int | None:
    # The kernel writes -1 if the firmware reports no node.
    return None if node.numa_node is None or node.numa_node < 0 else node.numa_node


def _hop_between_roots(a: int | None, b: int | None, nodes: Sequence[PciNode]) -> Hop | None:
    if a is None or b is None:
        return None if any(_known_numa(node) is not None for node in nodes) else Hop.NODE
    return Hop.NODE if a == b else Hop.SYS


def _maximal_groups(near: Sequence[int], group: int, open_: int, closed: int) -> Iterator[int]:
    """Yield the maximal cliques as bit masks, by Bron and Kerbosch's recursion with a pivot.

    `open_`: numbers that may still join the group; `closed`: numbers that could join, but are done. A group
    that a number in `closed` could join is not maximal.
    """
    if not open_ and not closed:
        yield group
        return
    pivot = max(_bits(open_ | closed), key=lambda vertex: (near[vertex] & open_).bit_count())
    for vertex in _bits(open_ & ~near[pivot]):
        bit = 1 << vertex
        yield from _maximal_groups(near, group | bit, open_ & near[vertex], closed & near[vertex])
        open_ &= ~bit
        closed |= bit


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


Groups = tuple[tuple[int, ...], ...]


def reduction_groups(machine: Machine, gpus: Sequence[int]) -> Groups:
    """Return groups of towers; tower i is on the machine's GPU `gpus[i]`, and every tower is in one group.

    Groups are made within the nearest class of links (NVLink counts as PIX) that any two of these GPUs share:
    the largest island first, and of equally large islands the one with the lowest towers. GPUs with equal
    distances from each other are one group. Members of later groups are in the order of the nearest members
    of the first group, because leaders of the same rank exchange data.
    """
    return GroupsOf(machine)(gpus)


class GroupsOf:
    """The groups for any GPUs of one machine, as in `reduction_groups`."""

    def __init__(self, machine: Machine) -> None:
        links = links_by_pair(machine)
        known = {gpu.index for gpu in machine.gpus}
        self._nearness: dict[int, dict[int, tuple[int, int]]] = {}
        # By class of links and GPU: the GPUs within the class, as bits. An unknown GPU is near no other GPU.
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
    """Return the groups if the topology is unknown: the first and the second half of the towers.

    The first half is larger by one if the number of towers is odd; a single tower is one group.
    """
    first = (towers + 1) // 2
    return tuple(group for group in (tuple(range(first)), tuple(range(first, towers))) if group)


def leaders_of(groups: Groups, number: int) -> tuple[list[int], int]:
    """Return the tower that leads each group for a variable, and the group that computes the total."""
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
