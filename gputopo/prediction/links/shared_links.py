"""Uplinks of switches and boards that several GPUs share."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from gputopo.reference import expected_link, expected_of, generation_of
from gputopo.topology import bridges_above, joined_by_hops
from gputopo.values.machine import Gpu, Hop, Link, Machine

# For a card of an unknown model in an unknown slot: what most machines in published tables had.
ASSUMED_GENERATION, ASSUMED_WIDTH = 3, 16

Gpus = frozenset[int]
Pair = tuple[int, int]


class Uplink(NamedTuple):
    """GPUs that share a link to the host, and its rate in each direction."""

    gpus: Gpus
    gb_per_s: float


def uplinks(machine: Machine, links: Mapping[Pair, Link], alone: Mapping[int, float]) -> tuple[Uplink, ...]:
    """Return the shared uplinks: from the bridges of the PCI tree, else from the hops.

    `alone`: GB/s between each GPU and the host.
    """
    known = list(_of_tree(machine)) or list(_of_hops(machine, links, alone))
    return tuple(Uplink(gpus, rate) for gpus, rate in known)


def _of_tree(machine: Machine) -> Iterator[tuple[Gpus, float]]:
    """Yield the GPUs below each bridge of the PCI tree, with the rate of the narrowest bridge above them."""
    tree = {node.address: node for node in machine.pci}
    below: dict[str, set[int]] = {}
    for gpu in machine.gpus:
        if gpu.pci_address in tree and gpu.pci_address is not None:
            for bridge in bridges_above(tree, gpu.pci_address)[0]:
                below.setdefault(bridge, set()).add(gpu.index)
    rates: dict[Gpus, float] = {}
    for bridge, gpus in below.items():
        node = tree.get(bridge)
        row = expected_link(generation_of(node.max_speed_gt_per_s), node.max_width) if node else None
        if len(gpus) > 1 and row is not None:
            members = frozenset(gpus)
            rates[members] = min(row.copy_to_device_gb_per_s, rates.get(members, inf))
    yield from rates.items()


def _of_hops(
    machine: Machine, links: Mapping[Pair, Link], alone: Mapping[int, float]
) -> Iterator[tuple[Gpus, float]]:
    """Yield the GPUs of each board, of each switch and of nested switches, with the rate above them.

    Above a board it is the rate of one of its GPUs; above a switch, the rate of 16 lanes of its cards'
    generation.
    """
    gpus = [gpu.index for gpu in machine.gpus]
    seen: set[Gpus] = set()
    for farthest in (Hop.INTERNAL, Hop.PIX, Hop.PXB):
        for group in joined_by_hops(gpus, links, farthest):
            if len(group) < 2 or group in seen:
                continue
            seen.add(group)
            fastest = max(alone[gpu] for gpu in group)
            yield group, fastest if farthest is Hop.INTERNAL else max(fastest, _sixteen_lanes(machine, group))


def _sixteen_lanes(machine: Machine, group: Gpus) -> float:
    members = (gpu for gpu in machine.gpus if gpu.index in group)
    row = expected_link(max(pcie_generation(gpu) or ASSUMED_GENERATION for gpu in members), ASSUMED_WIDTH)
    assert row is not None
    return row.copy_to_device_gb_per_s


def pcie_generation(gpu: Gpu) -> int | None:
    """Return the highest PCIe generation of a GPU: in its slot, else of the card, else of its model."""
    row = expected_of(gpu)
    return gpu.pcie.gen_max or gpu.pcie.gen_max_device or (row.pcie_generation if row else None)
