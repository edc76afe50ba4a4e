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
    for (a, b), link in machine.links_by_pair.items():
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


def slower_bridge(tree: Mapping[str, PciNode], address: str) -> str | None:
    """Return the first bridge above a function with a lower maximum rate than the function's, or None.

    Bridges without a reported speed are skipped. In virtual machines the bridges are not real.
    """
    max_rate = tree[address].max_rate
    if max_rate is None:
        return None
    for bridge in bridges_above(tree, address)[0]:
        rate = tree[bridge].max_rate if bridge in tree else None
        if rate is not None and rate < max_rate:
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
    links, towers = machine.links_by_pair, range(len(gpus))

    def link(tower: int, other: int) -> Link | None:
        a, b = gpus[tower], gpus[other]
        return links.get((min(a, b), max(a, b)))

    for farthest in Hop:
        near = [
            sum(1 << other for other in towers if is_within(link(tower, other), farthest)) for tower in towers
        ]
        first, *others = _partition(near) or [()]
        if len(others) + 1 < len(gpus):
            break
    else:
        return (tuple(towers),) if gpus else ()
    groups = [first]
    for members in others:
        left, ordered = list(members), list[int]()
        for leader in first[: len(members)]:
            closest = min(left, key=lambda tower: (nearness(link(leader, tower)), tower))
            ordered.append(closest)
            left.remove(closest)
        groups.append((*ordered, *left))
    return tuple(groups)


def _partition(near: Sequence[int]) -> Groups:
    """Return groups of numbers, the largest first taken. `near`: the numbers near each, as bits."""
    rest = (1 << len(near)) - 1
    groups = []
    while rest:
        candidates = maximal_groups([row & rest for row in near], rest)
        group = min(candidates, key=lambda members: (-len(members), members))
        groups.append(group)
        rest &= ~sum(1 << tower for tower in group)
    return tuple(sorted(groups))
