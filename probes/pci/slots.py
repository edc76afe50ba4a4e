"""What the PCI tree adds to GPUs: addresses that NVML no longer reports, slots and links."""

from collections.abc import Sequence

import msgspec

from gputopo.probes.facts import MissingFacts
from gputopo.probes.pci.nodes import limit_above
from gputopo.reference.expectations import generation_of
from gputopo.values.machine import Gpu, PciNode
from gputopo.values.subject import at_gpu, within

NOT_IN_TREE = "NOT_IN_PCI_TREE"


def with_addresses(gpus: Sequence[Gpu], on_bus: Sequence[PciNode], missing: MissingFacts) -> tuple[Gpu, ...]:
    """Find the addresses of GPUs that no longer report them, such as lost ones.

    NVML counts GPUs in PCI order. Where the bus has as many and the known ones stand in their places, so do
    the others.
    """
    fits = len(on_bus) == len(gpus) and all(
        gpu.pci_address in (None, node.address) for gpu, node in zip(gpus, on_bus, strict=True)
    )
    if not fits:
        return tuple(gpus)
    missing.found(*(at_gpu(gpu.index, "pci_address") for gpu in gpus))
    return tuple(
        msgspec.structs.replace(gpu, pci_address=node.address) for gpu, node in zip(gpus, on_bus, strict=True)
    )


def with_slot(gpu: Gpu, nodes: Sequence[PciNode], missing: MissingFacts) -> Gpu:
    """Add a GPU's slot and what NVML did not report of its link and NUMA node; `missing` follows."""
    path = at_gpu(gpu.index)
    pcie_path = within(path, "pcie")
    node = next((node for node in nodes if node.address == gpu.pci_address), None)
    if node is None:
        names = "gen_max_host", "limiting_hop", "aer"
        missing.note(NOT_IN_TREE, *(within(pcie_path, name) for name in names))
        return gpu
    limit = limit_above(nodes, node.address)
    slot = next((above for above in nodes if above.address == node.parent), None)
    added = {
        name: value
        for name, value in _link_by_tree(node, slot).items()
        if value is not None and getattr(gpu.pcie, name) is None
    }
    missing.found(*(within(pcie_path, name) for name in (*added, "limiting_hop", "gen_max_host")))
    if limit.slot_generation is None:
        reason = "NOT_REPORTED_BY_THE_BRIDGE" if slot else "NO_BRIDGE_ABOVE"
        missing.note(reason, within(pcie_path, "gen_max_host"))
        if limit.slower_bridge is None:
            missing.note(reason, within(pcie_path, "limiting_hop"))
    numa_node = node.numa_node if gpu.numa_node is None else gpu.numa_node
    if numa_node is not None:
        missing.found(within(path, "numa_node"))
    device_id = gpu.pci_device_id or node.device_id
    if device_id is not None:
        missing.found(within(path, "pci_device_id"))
    if node.aer is None:
        missing.note("NO_AER_IN_SYS", within(pcie_path, "aer"))
    else:
        missing.found(within(pcie_path, "aer"))
    pcie = msgspec.structs.replace(
        gpu.pcie,
        gen_max_host=limit.slot_generation,
        limiting_hop=limit.slower_bridge,
        aer=node.aer,
        **added,
    )
    return msgspec.structs.replace(gpu, pcie=pcie, numa_node=numa_node, pci_device_id=device_id)


def _link_by_tree(node: PciNode, slot: PciNode | None) -> dict[str, int | None]:
    """Return the link as sysfs shows it. Its maximum is what card and slot can do together."""
    own = generation_of(node.max_speed_gt_per_s)
    return {
        "gen_now": generation_of(node.speed_gt_per_s),
        "gen_max": _min(own, generation_of(slot.max_speed_gt_per_s) if slot else None),
        "gen_max_device": own,
        "width_now": node.width,
        "width_max": _min(node.max_width, slot.max_width if slot else None),
    }


def _min(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)
