from typing import Any

from msgspec.structs import replace

from gputopo.topology import acs_bridges, why_p2p_off
from gputopo.values.machine import Hop, Machine
from tests import there
from tests.findings.boxes import PORT, UP, Change, all_of, down, every_gpu, gpu, host, node, pair, sound

OFF: dict[str, Any] = {"p2p_read": "NOT_SUPPORTED", "p2p_write": "NOT_SUPPORTED"}
CHIPSET: dict[str, Any] = {"p2p_read": "CHIPSET_NOT_SUPPORTED", "p2p_write": "CHIPSET_NOT_SUPPORTED"}
UNLIKE = all_of(gpu(0, name="GeForce GTX 1070"), gpu(1, name="GeForce GTX 1080 Ti"))
GEFORCE = every_gpu(name="NVIDIA GeForce RTX 4090")


def cause(machine: Machine) -> str | None:
    off = why_p2p_off(machine, machine.links[0])
    return off.cause if off else None


def test_a_pair_that_is_on_or_not_known_has_no_cause() -> None:
    assert cause(sound(2)) is None
    assert cause(pair(0, 1, p2p_read=None, p2p_write=None)(sound(2))) is None
    assert cause(pair(0, 1, p2p_read="UNKNOWN", p2p_write="UNKNOWN")(sound(2))) is None


CAUSES: list[tuple[str, Change]] = [
    ("registry_key", pair(0, 1, p2p_read="DISABLED_BY_REGKEY")),
    ("different_chips", all_of(UNLIKE, pair(0, 1, **OFF))),
    ("geforce_policy", all_of(GEFORCE, pair(0, 1, **CHIPSET))),
    ("geforce_policy", all_of(every_gpu(name="NVIDIA GeForce RTX 9999"), pair(0, 1, **OFF))),
    ("across_sockets", pair(0, 1, hop=Hop.SYS, **CHIPSET)),
    ("across_sockets", pair(0, 1, hop=Hop.SYS, p2p_read="TOPOLOGY_NOT_SUPPORTED")),
    ("chipset", pair(0, 1, hop=Hop.PHB, **CHIPSET)),
    ("chipset", pair(0, 1, hop=None, **CHIPSET)),
    ("chipset", all_of(host(virtual_machine="kvm"), pair(0, 1, hop=Hop.PHB, **CHIPSET))),
    ("acs", all_of(node(down(0), acs=True), pair(0, 1, **OFF))),
    ("acs", all_of(node(down(0), acs=True), pair(0, 1, **CHIPSET))),
    ("iommu", all_of(host(iommu="translated"), pair(0, 1, **OFF))),
    ("bar1", all_of(gpu(0, bar1_mib={"total": 256}), pair(0, 1, **OFF))),
    ("virtual_machine", all_of(host(virtual_machine="kvm"), pair(0, 1, **OFF))),
    ("container", all_of(host(container="docker"), pair(0, 1, **OFF))),
    ("unknown", pair(0, 1, **OFF)),
]


def test_the_facts_of_a_machine_give_the_cause() -> None:
    for expected, change in CAUSES:
        machine = change(sound(2))
        off = there(why_p2p_off(machine, machine.links[0]))
        assert off.cause == expected
        assert off.says
        assert off.status in machine.links[0].p2p_refusals


def test_the_first_cause_counts_where_there_are_several() -> None:
    everything = [
        UNLIKE,
        pair(0, 1, hop=Hop.SYS, **CHIPSET),
        host(iommu="translated", virtual_machine="none", container="docker"),
        gpu(0, bar1_mib={"total": 256}),
        node(down(0), acs=True),
    ]
    assert cause(all_of(*everything)(sound(2))) == "different_chips"
    same_chip = [*everything, every_gpu(name="Tesla V100-SXM2-16GB")]
    assert cause(all_of(*same_chip)(sound(2))) == "across_sockets"
    elsewhere = [*same_chip, pair(0, 1, hop=Hop.PIX, **OFF)]
    assert cause(all_of(*elsewhere)(sound(2))) == "acs"
    assert cause(all_of(*elsewhere, node(down(0), acs=False))(sound(2))) == "iommu"
    assert cause(all_of(*elsewhere, node(down(0), acs=False), host(iommu="off"))(sound(2))) == "bar1"


def test_cards_of_one_chip_are_no_different_chips() -> None:
    cards: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({"name": "GeForce GTX 1070"}, {"name": "GeForce GTX 1080"}, False),
        ({"name": "GeForce GTX 1070"}, {"name": "GeForce GTX 1080 Ti"}, True),
        ({"name": "GeForce GTX 1070"}, {"name": "NVIDIA Future 9000"}, False),
        ({"name": "x", "architecture": "Pascal"}, {"name": "y", "architecture": "Ada"}, True),
        ({"name": None}, {"name": None}, False),
        # The chip of one of two Pascal cards is not in the reference data.
        ({"name": "GeForce GTX 1080 Ti"}, {"name": "GeForce GTX 1060 6GB"}, False),
    ]
    for first, second, differ in cards:
        machine = all_of(gpu(0, **first), gpu(1, **second), pair(0, 1, **OFF))(sound(2))
        assert (cause(machine) == "different_chips") == differ


def test_a_policy_is_no_cause_where_equal_cards_are_peers() -> None:
    # Two sockets with cards whose driver was made to allow P2P: it is on inside a socket and off across.
    across = all_of(GEFORCE, pair(0, 1, hop=Hop.SYS, **CHIPSET))
    assert cause(across(sound(2))) == "geforce_policy"
    assert cause(across(sound(4))) == "across_sockets"


def test_acs_of_a_host_counts_where_no_bridge_reports_its_own() -> None:
    off = all_of(host(acs="on"), pair(0, 1, **OFF))(sound(2))
    assert cause(off) != "acs"  # the bridges report that it is off
    silent = tuple(replace(one, acs=None) for one in off.pci)
    assert cause(replace(off, pci=silent)) == "acs"


def test_bridges_with_acs_count_between_gpus_and_not_at_the_root() -> None:
    assert acs_bridges(sound(2)) == ()
    assert acs_bridges(node(PORT, acs=True)(sound(2))) == ()
    assert acs_bridges(node(UP, acs=True)(sound(1))) == ()
    both = all_of(node(down(0), acs=True), node(down(1), acs=True))(sound(2))
    assert acs_bridges(both) == (down(0), down(1))
