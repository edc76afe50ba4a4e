from itertools import combinations

from gputopo.topology import believed_links, implausible_pairs
from gputopo.values.machine import Gpu, Hop, Link, Machine


def matrix(hop: Hop, nodes: list[int | None], **fields: object) -> Machine:
    """A matrix with one class for all pairs, the GPUs on these NUMA nodes."""
    return Machine(
        source="a test",
        gpus=tuple(Gpu(index=index, numa_node=node, **fields) for index, node in enumerate(nodes)),  # type: ignore[arg-type]
        links=tuple(Link(a=a, b=b, hop=hop, nvlinks=0) for a, b in combinations(range(len(nodes)), 2)),
    )


def test_sys_belongs_between_numa_nodes_and_all_else_within_one() -> None:
    assert implausible_pairs(matrix(Hop.SYS, [0, 0, 1])) == (((0, 1),), ())
    assert implausible_pairs(matrix(Hop.PHB, [0, 0, 1])) == ((), ((0, 2), (1, 2)))


def test_an_unknown_node_is_no_sign_of_anything() -> None:
    for hop in Hop:
        machine = matrix(hop, [None, 0, None])
        assert implausible_pairs(machine) == ((), ())


def test_sys_within_a_node_is_believed_as_node_and_all_other_classes_as_they_are() -> None:
    machine = matrix(Hop.SYS, [0, 0, 1])
    assert {pair: link.hop for pair, link in believed_links(machine).items()} == {
        (0, 1): Hop.NODE,
        (0, 2): Hop.SYS,
        (1, 2): Hop.SYS,
    }
