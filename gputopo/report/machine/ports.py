"""The ports of network cards that the PCI tree does not show, since their addresses are not known."""

from collections.abc import Iterator

from gputopo.report.layout import Line, labelled, plain
from gputopo.values.machine import Machine, Nic, NicPort


def ports_view(machine: Machine, width: int) -> list[Line]:
    """Return a line for each port; empty if the PCI tree shows all of them."""
    return labelled(port_rows(machine), width)


def port_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return (`mlx5_0`, words) of each port of a card without a node in the PCI tree."""
    nodes = {node.address for node in machine.pci}
    return [
        (plain(port.name), plain(", ".join(_words(nic, port))))
        for nic in machine.nics
        if nic.pci_address not in nodes
        for port in nic.ports or ()
    ]


def _words(nic: Nic, port: NicPort) -> Iterator[str]:
    states = (port.state, port.phys_state) if port.state else (port.operstate,)
    if words := " ".join(word for word in (port.link_layer, *states) if word):
        yield words
    if port.rate_gbit_per_s is not None:
        lanes = f" on {port.lanes} lane{'s' if port.lanes > 1 else ''}" if port.lanes else ""
        yield f"{port.rate_gbit_per_s:g} Gbit/s{lanes}"
    if port.interface is not None:
        yield f"interface {port.interface}"
    for what, value in (("", nic.hca_type), ("PSID ", nic.psid), ("firmware ", nic.firmware_version)):
        if value is not None:
            yield f"{what}{value}"
