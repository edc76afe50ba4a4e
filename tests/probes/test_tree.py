from pathlib import Path

import pytest

from gputopo.probes.tree import join_tree, nvlinks_between, tree_hop
from gputopo.values.machine import Contradiction, Gpu, Hop, Host, Link, NumaNode, NvLink, PciNode
from tests.kit.machines import read, read_here
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS, NvLinkSpec, changed

A, B = "0000:01:00.0", "0000:02:00.0"
ONE_ROOT = (PciNode(address=A, root="pci0000:00"), PciNode(address=B, root="pci0000:00"))
TWO_ROOTS = (PciNode(address=A, root="pci0000:00"), PciNode(address=B, root="pci0000:80"))


def linked(index: int, address: str | None, *links: NvLink) -> Gpu:
    return Gpu(index=index, pci_address=address, nvlinks=links)


def up(link: int, remote: str | None, kind: str | None = "gpu") -> NvLink:
    return NvLink(link=link, active=True, remote_pci_address=remote, remote_kind=kind)


def test_nvlinks_to_the_other_gpu_are_counted_and_those_elsewhere_are_not() -> None:
    a = linked(0, A, up(0, B), up(1, B), up(2, "0000:03:00.0"), NvLink(link=3, active=False))
    assert nvlinks_between(a, linked(1, B)) == 2
    assert nvlinks_between(linked(1, B), a) == 2


def test_a_gpu_that_reports_nothing_of_its_nvlinks_is_counted_from_the_other_end() -> None:
    silent = Gpu(index=1, pci_address=B)
    assert nvlinks_between(linked(0, A, up(0, B)), silent) == 1
    assert nvlinks_between(Gpu(index=0), silent) is None


def test_an_nvlink_whose_other_end_is_hidden_leaves_the_number_open() -> None:
    hidden = linked(0, A, up(0, None))
    assert nvlinks_between(hidden, Gpu(index=1, pci_address=B)) is None
    assert nvlinks_between(hidden, linked(1, B, up(0, A))) == 1


def test_through_switches_a_pair_has_as_many_as_the_gpu_with_fewer() -> None:
    many = linked(0, A, *(up(n, "0000:c4:00.0", "switch") for n in range(12)))
    fewer = linked(1, B, *(up(n, None, "switch") for n in range(10)))
    assert nvlinks_between(many, fewer) == 10


def test_a_switched_machine_is_read_with_its_nvlinks(tmp_path: Path) -> None:
    ports = tuple(NvLinkSpec("0000:c4:00.0", 6) for _ in range(18))
    switched = changed(SCENARIOS["four"], gpus={n: {"nvlinks": ports} for n in range(4)})
    assert {link.nvlinks for link in read(switched, tmp_path).links} == {18}


def test_nvml_and_the_tree_are_both_heard_and_nvmls_word_stands() -> None:
    gpus = (Gpu(index=0, pci_address=A), Gpu(index=1, pci_address=B))
    links, contradictions = join_tree([Link(a=0, b=1, hop=Hop.PIX)], gpus, ONE_ROOT, Host())
    assert links[0].hop is Hop.PIX
    assert contradictions == (Contradiction(fact="links[0-1].hop", said={"nvml": "PIX", "sysfs": "PHB"}),)


@pytest.mark.parametrize("hop", [Hop.PHB, None])
def test_the_tree_agrees_or_fills_in(hop: Hop | None) -> None:
    gpus = (Gpu(index=0, pci_address=A), Gpu(index=1, pci_address=B))
    links, contradictions = join_tree([Link(a=0, b=1, hop=hop)], gpus, ONE_ROOT, Host())
    assert (links[0].hop, contradictions) == (Hop.PHB, ())


def test_two_gpus_of_one_board_are_no_contradiction() -> None:
    up_bridge = PciNode(address="0000:00:01.0", root="pci0000:00", kind="bridge")
    nodes = (up_bridge, *(PciNode(address=a, root="pci0000:00", parent="0000:00:01.0") for a in (A, B)))
    gpus = (Gpu(index=0, pci_address=A), Gpu(index=1, pci_address=B))
    links, contradictions = join_tree([Link(a=0, b=1, hop=Hop.INTERNAL)], gpus, nodes, Host())
    assert (links[0].hop, contradictions) == (Hop.INTERNAL, ())


def test_without_memory_nodes_in_the_tree_of_a_two_node_host_nothing_is_guessed() -> None:
    assert tree_hop(TWO_ROOTS, Host(), A, B) is Hop.NODE
    two = Host(numa_nodes=(NumaNode(index=0), NumaNode(index=1)))
    assert tree_hop(TWO_ROOTS, two, A, B) is None


def test_a_flat_tree_shows_no_hops() -> None:
    flat = (PciNode(address=A, root=""), PciNode(address=B, root=""))
    assert tree_hop(flat, Host(), A, B) is None
    assert tree_hop(ONE_ROOT, Host(), A, None) is None


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        ("nvmlDeviceGetTopologyCommonAncestor", "hop"),
        ("nvmlDeviceGetP2PStatus[0]", "p2p_read"),
        ("nvmlDeviceGetP2PStatus[1]", "p2p_write"),
    ],
)
def test_a_refused_call_about_a_pair_costs_only_its_own_fact(call: str, fact: str) -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.refuse(call, 999, gpu=0)
    with installed(fake):
        machine = read_here()
    values = {"hop": Hop.PIX, "p2p_read": "OK", "p2p_write": "OK"}
    for link in machine.links:
        wanted = values if link.a else values | {fact: None}
        assert {name: getattr(link, name) for name in values} == wanted
    paths = [path for path in machine.missing if path.startswith("links")]
    assert paths == [f"links[0-{b}].{fact}" for b in (1, 2, 3)]


def test_refused_peer_to_peer_is_reported_with_a_reason() -> None:
    with installed(FakeNvml(SCENARIOS["dual_socket_4_4"])):
        machine = read_here()
    across, within = machine.link(0, 4), machine.link(0, 1)
    assert across is not None
    assert within is not None
    assert (across.p2p_read, across.p2p_write) == ("CHIPSET_NOT_SUPPORTED", "CHIPSET_NOT_SUPPORTED")
    assert across.p2p_reason == "the chipset does not carry peer-to-peer traffic"
    assert (within.p2p_read, within.p2p_reason) == ("OK", None)
