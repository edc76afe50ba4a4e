"""Devices of two hosts matched by their places on PCIe: by address, or by path where bus numbers differ.

Bus numbers depend on what was found when the host started; devices and functions are wired.
"""

from collections.abc import Iterable, Mapping

from gputopo.values.machine import Machine, PciNode

Place = tuple[int, tuple[str, ...]]  # the root complex by rank, device and function at each step down


def same_addresses(machine: Machine, reference: Machine) -> Mapping[str, str]:
    """Return the reference's address of each PCI device of a machine that is elsewhere there.

    Empty where the addresses are the same for as many GPUs as the places, and where nothing shows places.
    """
    own, theirs = _addresses(machine), _addresses(reference)
    if own <= theirs or own >= theirs:
        return {}
    places = {place: address for address, place in _places(reference.pci).items()}
    found = {address: places[place] for address, place in _places(machine.pci).items() if place in places}
    matched = len({found.get(address) for address in own} & theirs)
    if matched > len(own & theirs):
        return found
    half_is_there = 2 * len(own & theirs) >= min(len(own), len(theirs))
    if half_is_there or not len(own) == len(theirs) == len(machine.gpus) == len(reference.gpus):
        return {}
    # Another tree, or none: the GPUs in their order.
    return {
        gpu.pci_address: other.pci_address
        for gpu, other in zip(machine.gpus, reference.gpus, strict=True)
        if gpu.pci_address and other.pci_address
    }


def gpu_places(machine: Machine, reference: Machine) -> list[str]:
    """Return the place of each GPU: its address in the reference, else its own; its number without any."""
    moved = same_addresses(machine, reference)
    return [
        moved.get(gpu.pci_address, gpu.pci_address) if gpu.pci_address else str(gpu.index)
        for gpu in machine.gpus
    ]


def _addresses(machine: Machine) -> set[str]:
    return {gpu.pci_address for gpu in machine.gpus if gpu.pci_address}


def _places(nodes: Iterable[PciNode]) -> dict[str, Place]:
    """Return the place of each PCI device. Roots are ranked among those with a device on them."""
    tree = {node.address: node for node in nodes}
    ranks = {root: rank for rank, root in enumerate(sorted({node.root for node in tree.values()}))}
    return {address: (ranks[node.root], tuple(_path(tree, node))) for address, node in tree.items()}


def _path(tree: Mapping[str, PciNode], node: PciNode) -> list[str]:
    path: list[str] = []
    seen: set[str] = set()
    step: PciNode | None = node
    while step is not None and step.address not in seen:
        seen.add(step.address)
        path.append(step.address.rpartition(":")[2])
        step = tree.get(step.parent or "")
    return path[::-1]
