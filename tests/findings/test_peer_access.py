from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.values.machine import Hop, PciNode
from tests import there
from tests.findings.boxes import PORT, ROOT, UP, all_of, down, every_gpu, find, gpu, host, node, pair, sound

CORE = {"now": 2520, "max": 3105, "application": None}
GEFORCE: dict[str, Any] = {
    "name": "NVIDIA GeForce RTX 4090",
    "clocks_mhz": {"graphics": CORE, "sm": CORE, "memory": {"now": 10251, "max": 10501, "application": None}},
    "nvlinks": (),
}
OFF: dict[str, Any] = {"p2p_read": "CHIPSET_NOT_SUPPORTED", "p2p_write": "CHIPSET_NOT_SUPPORTED"}


def test_pairs_that_one_cause_keeps_apart_are_reported_once() -> None:
    across = [pair(a, b, hop=Hop.PHB, **OFF) for a in (0, 1) for b in (2, 3)]
    (found,) = find(all_of(*across)(sound()))
    assert (found.id, found.subject.text, found.severity) == ("p2p.off", "machine", "info")
    assert found.evidence["cause"] == "chipset"
    assert set(found.evidence["pairs"]) == {"0-2", "0-3", "1-2", "1-3"}
    assert "under one PCIe switch" in there(found.remedy)


def test_pairs_that_can_never_be_peers_are_no_finding() -> None:
    across = [pair(a, b, hop=Hop.SYS, **OFF) for a in (0, 1) for b in (2, 3)]
    far = [gpu(index, numa_node=1) for index in (2, 3)]
    assert find(all_of(*across, *far)(sound())) == ()


@pytest.mark.parametrize(
    "quiet",
    [
        host(acs="on"),  # the tree was read, and has it nowhere between GPUs
        node(PORT, acs=True),
        all_of(node(down(0), acs=True), host(virtual_machine="kvm")),
        host(iommu="translated"),
    ],
)
def test_acs_and_iommu_that_stand_in_no_path_are_no_findings(quiet: Any) -> None:
    assert find(quiet(sound())) == ()


def test_acs_without_a_tree_is_believed() -> None:
    machine = replace(host(acs="on")(sound()), pci=())
    assert [finding.id for finding in find(machine)] == ["p2p.acs_on"]


def test_acs_between_cards_that_are_never_peers_is_no_finding() -> None:
    far = all_of(*(pair(a, b, hop=Hop.PHB) for a, b in combinations(range(4), 2)), host(acs="on"))
    assert find(replace(far(sound()), pci=())) == ()
    policy = all_of(*(pair(a, b, **OFF) for a, b in combinations(range(4), 2)), every_gpu(**GEFORCE))
    bridges = all_of(policy, *(node(down(index), acs=True) for index in range(4)))
    assert [finding.id for finding in find(bridges(sound()))] == ["p2p.off"]
    one = all_of(bridges, pair(0, 1, p2p_read="OK", p2p_write="OK"))  # a driver that was changed
    assert "p2p.acs_on" in [finding.id for finding in find(one(sound()))]


def test_acs_between_a_gpu_and_a_card_of_its_switch_is_named() -> None:
    port = PciNode(address=down(9), root=ROOT, parent=UP, kind="bridge", acs=True)
    card = PciNode(address="0000:0f:00.0", root=ROOT, parent=down(9), kind="nic")
    machine = sound()
    (found,) = find(replace(machine, pci=(*machine.pci, port, card)))
    assert (found.id, found.severity, found.evidence["bridges"]) == ("p2p.acs_on", "info", [down(9)])
    alone = replace(port, parent=None)  # a root port of its own
    assert find(replace(machine, pci=(*machine.pci, alone, replace(card, parent=down(9))))) == ()
