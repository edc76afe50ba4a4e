"""Ports of cards that the PCI tree does not show have a table of their own."""

from gputopo.report.machine.about import port_rows
from gputopo.values.machine import Machine, Nic, NicPort, PciNode

UP = NicPort(
    index=0,
    rdma_device="mlx5_0",
    rdma_port=1,
    interface="ib0",
    link_layer="InfiniBand",
    state="ACTIVE",
    phys_state="LinkUp",
    rate_gbit_per_s=400.0,
    lanes=4,
)


def test_a_port_shows_state_rate_and_what_the_card_is() -> None:
    nic = Nic(index=0, hca_type="MT4129", psid="MT_1", firmware_version="28.39", ports=(UP,))
    words = (
        "InfiniBand ACTIVE LinkUp, 400 Gbit/s on 4 lanes, interface ib0, MT4129, PSID MT_1, firmware 28.39"
    )
    machine = Machine(source="ibstat", nics=(nic,))
    assert port_rows(machine) == [("mlx5_0", words)]
    bare = NicPort(index=0, rdma_device="mlx5_0", interface="ib0", operstate="down")
    assert port_rows(Machine(source="x", nics=(Nic(index=0, ports=(bare,)),))) == [
        ("mlx5_0", "down, interface ib0")
    ]


def test_ports_in_the_pci_tree_and_cards_without_ports_are_left_out() -> None:
    address = "0000:17:00.0"
    nics = (Nic(index=0, pci_address=address, ports=(UP,)), Nic(index=1, name="mlx5_1"))
    machine = Machine(source="x", nics=nics, pci=(PciNode(address=address, root="pci0000:16", kind="nic"),))
    assert port_rows(machine) == []
