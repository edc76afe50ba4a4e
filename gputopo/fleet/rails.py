"""The order of a host's RDMA devices, by which NCCL joins the cards of hosts: first to first, and so on.

On a network with a switch for each rail, a host whose devices count its cards in another order than its
peers' sends across the rails (NVIDIA/nccl issues 1277, 1363 and 1591).
"""

from collections.abc import Mapping

from gputopo.values.machine import Nic
from gputopo.values.natural import natural


def rails_of(nics: Mapping[str, Nic]) -> dict[str, str]:
    """Return the cards with an RDMA device in the natural order of these: the device of each by its place."""
    devices = {place: device for place, nic in nics.items() if (device := _rdma_device(nic)) is not None}
    return {place: devices[place] for place in sorted(devices, key=lambda place: natural(devices[place]))}


def _rdma_device(nic: Nic) -> str | None:
    if nic.pci_address is None:  # its place is its name
        return None
    return next((port.rdma_device for port in nic.ports or () if port.rdma_device is not None), None)
