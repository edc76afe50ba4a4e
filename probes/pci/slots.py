"""What the PCI tree adds to GPUs: addresses that NVML no longer tells, slots and links."""

from collections.abc import Sequence

import msgspec

from gputopo.probes.pci.nodes import limit_above
from gputopo.reference.pcie import generation_of
from gputopo.values.machine import Gpu, PciNode

NOT_IN_TREE = "NOT_IN_PCI_TREE"


def with_addresses(
    gpus: Sequence[Gpu], on_bus: Sequence[PciNode], missing: dict[str, str]
) -> tuple[Gpu, ...]:
    """Find the addresses of GPUs that no longer tell them, such as lost ones.

    NVML counts GPUs in PCI order. Where the bus has as many and the known ones stand in their places, so do
    the others.
    """
    fits = len(on_bus) == len(gpus) and all(
        gpu.pci_address in (None, node.address) for gpu, node in zip(gpus, on_bus, strict=True)
    )
    if not fits:
        return tuple(gpus)
    for gpu in gpus:
        missing.pop(f"gpus[{gpu.index}].pci_address", None)
    return tuple(
        msgspec.structs.replace(gpu, pci_address=node.address) for gpu, node in zip(gpus, on_bus, strict=True)
    )


def with_slot(gpu: Gpu, nodes: Sequence[PciNode], missing: dict[str, str]) -> Gpu:
    """Add a GPU's slot and what NVML did not give of its link and memory node; `missing` follows."""
    path = f"gpus[{gpu.index}]."
    node = next((node for node in nodes if node.address == gpu.pci_address), None)
    if node is None:
        missing |= {f"{path}pcie.{name}": NOT_IN_TREE for name in ("gen_max_host", "limiting_hop", "aer")}
        return gpu
    limit = limit_above(nodes, node.address)
    slot = next((above for above in nodes if above.address == node.parent), None)
    added = {
        name: value
        for name, value in _link_by_tree(node, slot).items()
        if value is not None and getattr(gpu.pcie, name) is None
    }
    for name in (*added, "limiting_hop", "gen_max_host"):
        missing.pop(f"{path}pcie.{name}", None)
    if limit.slot_generation is None:
        missing[f"{path}pcie.gen_max_host"] = "NOT_TOLD_BY_THE_BRIDGE" if slot else "NO_BRIDGE_ABOVE"
        if limit.slower_bridge is None:
            missing[f"{path}pcie.limiting_hop"] = missing[f"{path}pcie.gen_max_host"]
    numa_node = node.numa_node if gpu.numa_node is None else gpu.numa_node
    if numa_node is not None:
        missing.pop(f"{path}numa_node", None)
    device_id = gpu.pci_device_id or node.device_id
    if device_id is not None:
        missing.pop(f"{path}pci_device_id", None)
    if node.aer is None:
        missing[f"{path}pcie.aer"] = "NO_AER_IN_SYS"
    else:
        missing.pop(f"{path}pcie.aer", None)
    pcie = msgspec.structs.replace(
        gpu.pcie,
        gen_max_host=limit.slot_generation,
        limiting_hop=limit.slower_bridge,
        aer=node.aer,
        **added,
    )
    return msgspec.structs.replace(gpu, pcie=pcie, numa_node=numa_node, pci_device_id=device_id)


def _link_by_tree(node: PciNode, slot: PciNode | None) -> dict[str, int | None]:
    """Give the link as sysfs tells it. The most of it is what card and slot can do together."""
    own = generation_of(node.max_speed_gt_per_s)
    return {
        "gen_now": generation_of(node.speed_gt_per_s),
        "gen_max": _least(own, generation_of(slot.max_speed_gt_per_s) if slot else None),
        "gen_max_device": own,
        "width_now": node.width,
        "width_max": _least(node.max_width, slot.max_width if slot else None),
    }


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)
