from collections.abc import Sequence
from itertools import combinations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.topology import class_name, hop_between, is_within, islands
from gputopo.values.machine import Gpu, Hop, Link, Machine, PciNode
from tests.matrices import machine_of


def way(*addresses: str, root: str = "pci0000:00", numa: int | None = None) -> list[PciNode]:
    """A function and the bridges above it, from the root port down to the function."""
    return [
        PciNode(
            address=address,
            root=root,
            parent=addresses[number - 1] if number else None,
            kind="gpu" if address == addresses[-1] else "bridge",
            numa_node=numa if address == addresses[-1] else None,
        )
        for number, address in enumerate(addresses)
    ]


def tree(*ways: list[PciNode]) -> list[PciNode]:
    return list({node.address: node for nodes in ways for node in nodes}.values())


def hop(*ways: list[PciNode]) -> Hop | None:
    a, b = ways[0][-1].address, ways[1][-1].address
    return hop_between(tree(*ways), a, b)


SWITCH = ("0000:00:02.0", "0000:03:00.0")  # root port, upstream bridge
LEFT = ("0000:04:08.0", "0000:05:00.0")  # downstream bridge, GPU


def test_the_class_follows_from_the_bridges_between() -> None:
    cases: list[tuple[tuple[str, ...], tuple[str, ...], Hop]] = [
        ((*SWITCH, *LEFT), (*SWITCH, "0000:04:10.0", "0000:06:00.0"), Hop.PIX),
        (SWITCH, ("0000:00:02.0", "0000:03:00.1"), Hop.PIX),  # directly under one bridge; never INTERNAL
        ((*SWITCH, *LEFT), (*SWITCH, "0000:04:10.0", "0000:06:00.0", "0000:07:00.0"), Hop.PXB),
        (("0000:00:02.0", "0000:05:00.0"), ("0000:00:03.0", "0000:06:00.0"), Hop.PHB),
        (("0000:00:05.0",), ("0000:00:06.0",), Hop.PHB),
    ]
    for a, b, expected in cases:
        assert hop(way(*a), way(*b)) is hop(way(*b), way(*a)) is expected


def test_between_roots_the_numa_nodes_decide() -> None:
    cases: list[tuple[int | None, int | None, Hop | None]] = [
        (0, 0, Hop.NODE),
        (0, 1, Hop.SYS),
        (0, None, None),
        (0, -1, None),
        (None, None, Hop.NODE),
        (-1, -1, Hop.NODE),
    ]
    for numa_a, numa_b, expected in cases:
        a = way("0000:00:02.0", "0000:05:00.0", root="pci0000:00", numa=numa_a)
        b = way("0000:80:02.0", "0000:85:00.0", root="pci0000:80", numa=numa_b)
        assert hop(a, b) is expected


def test_one_numa_number_anywhere_makes_two_missing_ones_unknown() -> None:
    a = way("0000:00:02.0", "0000:05:00.0", root="pci0000:00")
    b = way("0000:80:02.0", "0000:85:00.0", root="pci0000:80")
    other = way("0000:c0:02.0", "0000:c5:00.0", root="pci0000:c0", numa=1)
    assert hop(a, b, other) is None


def test_a_gpu_without_a_numa_number_takes_that_of_the_bridge_above() -> None:
    a = way("0000:00:02.0", "0000:05:00.0", root="pci0000:00", numa=1)
    b = way("0000:80:02.0", "0000:85:00.0", root="pci0000:80")
    b[0] = msgspec.structs.replace(b[0], numa_node=1)
    assert hop(a, b) is Hop.NODE


def test_a_bridge_that_is_missing_from_the_tree_is_not_taken_for_the_root() -> None:
    a = way("0000:00:02.0", "0000:03:00.0", "0000:04:08.0", "0000:05:00.0")[2:]  # its parent is not there
    b = way("0000:00:03.0", "0000:06:00.0")
    assert hop(a, b) is None


def test_a_tree_that_goes_in_a_circle_ends() -> None:
    ring = [
        PciNode(address="0000:01:00.0", root="r", parent="0000:02:00.0"),
        PciNode(address="0000:02:00.0", root="r", parent="0000:01:00.0"),
        PciNode(address="0000:09:00.0", root="r"),
    ]
    assert hop_between(ring, "0000:01:00.0", "0000:09:00.0") is None


# A GPU's place: NUMA node, root complex, root port, then the switches from the root down.
Place = tuple[int, int, int, tuple[int, ...]]
places = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, 1),
        st.lists(st.integers(0, 1), max_size=3).map(tuple),
    ),
    min_size=2,
    max_size=5,
)


def nodes_of(number: int, place: Place) -> list[PciNode]:
    """The GPU at that place. Every switch is a pair of bridges; a port carries either a switch or one GPU."""
    numa, root, port, switches = place
    root_name = f"pci{numa}{root}"
    steps = [f"{root_name}/{port}" if switches else f"{root_name}/{port}/own{number}"]
    for depth in range(len(switches)):
        up = "/".join(map(str, (root_name, port, *switches[: depth + 1], "up")))
        last = depth == len(switches) - 1
        down = f"{up}/gpu{number}" if last else f"{up}/switch{switches[depth + 1]}"
        steps += [up, f"{down}/down"]
    return way(*steps, f"gpu{number}", root=root_name, numa=numa)


def expected_hop(a: Place, b: Place) -> Hop:
    if a[:2] != b[:2]:
        return Hop.SYS if a[0] != b[0] else Hop.NODE
    # The first switch is alone on its root port, so only its number within the port distinguishes two.
    shared = sum(1 for i in range(1, 4) if len(a[3]) >= i <= len(b[3]) and a[3][:i] == b[3][:i])
    if a[2] != b[2] or shared == 0:
        return Hop.PHB
    switches = {a[3][:i] for i in range(shared, len(a[3]) + 1)} | {
        b[3][:i] for i in range(shared, len(b[3]) + 1)
    }
    return Hop.PIX if len(switches) == 1 else Hop.PXB


@given(places)
def test_any_tree_of_switches_gives_the_class_that_the_switches_between_determine(
    given_places: Sequence[Place],
) -> None:
    # One switch below each root port: a second one cannot be on the same port.
    fixed = [
        (numa, root, port, (0, *switches[1:]) if switches else ())
        for numa, root, port, switches in given_places
    ]
    nodes = tree(*(nodes_of(number, place) for number, place in enumerate(fixed)))
    for a, b in combinations(range(len(fixed)), 2):
        assert hop_between(nodes, f"gpu{a}", f"gpu{b}") is expected_hop(fixed[a], fixed[b])
        assert hop_between(nodes, f"gpu{b}", f"gpu{a}") is expected_hop(fixed[a], fixed[b])


def test_nvlinks_count_as_pix_and_not_as_one_board() -> None:
    joined = Link(a=0, b=1, hop=Hop.SYS, nvlinks=1)
    assert is_within(joined, Hop.PIX)
    assert not is_within(joined, Hop.INTERNAL)
    assert not is_within(Link(a=0, b=1, nvlinks=0), Hop.SYS)
    assert not is_within(None, Hop.SYS)


def test_a_class_is_named_as_in_the_matrix() -> None:
    assert class_name(Link(a=0, b=1, hop=Hop.SYS, nvlinks=12)) == "NV12"
    assert class_name(Link(a=0, b=1, hop=Hop.NODE, nvlinks=0)) == "NODE"
    assert class_name(Link(a=0, b=1)) == class_name(None) == "unknown"


def test_every_gpu_is_in_an_island_even_where_nothing_is_known() -> None:
    assert islands(machine_of("X ?\n? X"), Hop.SYS) == ((0,), (1,))
    assert islands(Machine(source="a test"), Hop.PIX) == ()
    stray = Machine(source="a test", gpus=(Gpu(index=0),), links=(Link(a=0, b=9, hop=Hop.PIX),))
    assert islands(stray, Hop.PIX) == ((0,),)


@st.composite
def near_pairs(draw: st.DrawFn) -> tuple[int, set[tuple[int, int]]]:
    count = draw(st.integers(1, 7))
    return count, {pair for pair in combinations(range(count), 2) if draw(st.booleans())}


@given(near_pairs())
def test_islands_are_exactly_the_groups_that_cannot_grow(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    count, near = drawn
    machine = Machine(
        source="a test",
        gpus=tuple(Gpu(index=index) for index in range(count)),
        links=tuple(Link(a=a, b=b, hop=Hop.PIX) for a, b in near),
    )
    cliques = [
        set(group)
        for size in range(1, count + 1)
        for group in combinations(range(count), size)
        if all(pair in near for pair in combinations(group, 2))
    ]
    largest = [group for group in cliques if not any(group < other for other in cliques)]
    assert sorted(map(sorted, largest)) == list(map(list, islands(machine, Hop.PIX)))
