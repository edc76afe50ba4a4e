"""Adds addresses, slots, links and hops from the PCI tree to NVML's GPUs and pairs; finds contradictions."""

from collections.abc import Sequence

from msgspec.structs import replace

from gputopo.probes.nvml.gpu import MissingFacts
from gputopo.reference import generation_of
from gputopo.topology import hop_between, slower_bridge
from gputopo.values.facts import at_gpu, at_link, within
from gputopo.values.machine import Contradiction, Gpu, Hop, Host, Link, PciNode

NOT_IN_TREE = "NOT_IN_PCI_TREE"


def with_addresses(gpus: Sequence[Gpu], on_bus: Sequence[PciNode], missing: MissingFacts) -> tuple[Gpu, ...]:
    """Find the addresses of GPUs that no longer report them, such as lost GPUs.

    NVML numbers GPUs in PCI order. If the bus has the same number of GPUs, and the known addresses are in
    their positions, the other GPUs are in their positions too.
    """
    fits = len(on_bus) == len(gpus) and all(
        gpu.pci_address in (None, node.address) for gpu, node in zip(gpus, on_bus, strict=True)
    )
    if not fits:
        return tuple(gpus)
    missing.clear(*(at_gpu(gpu.index, "pci_address") for gpu in gpus))
    return tuple(replace(gpu, pci_address=node.address) for gpu, node in zip(gpus, on_bus, strict=True))


def with_slot(gpu: Gpu, nodes: Sequence[PciNode], missing: MissingFacts) -> Gpu:
    """Add a GPU's slot, and facts of its link and NUMA node that NVML did not report. Updates `missing`."""
    path = at_gpu(gpu.index)
    pcie_path = within(path, "pcie")
    tree = {node.address: node for node in nodes}
    node = tree.get(gpu.pci_address or "")
    if node is None:
        names = "gen_max_host", "limiting_hop", "aer"
        missing.note(NOT_IN_TREE, *(within(pcie_path, name) for name in names))
        return gpu
    slot = tree.get(node.parent or "")
    slot_generation = generation_of(slot.max_speed_gt_per_s) if slot else None
    limit = slower_bridge(tree, node.address)
    added = {
        name: value
        for name, value in _link_by_tree(node, slot).items()
        if value is not None and getattr(gpu.pcie, name) is None
    }
    missing.clear(*(within(pcie_path, name) for name in (*added, "limiting_hop", "gen_max_host")))
    if slot_generation is None:
        reason = "NOT_REPORTED_BY_THE_BRIDGE" if slot else "NO_BRIDGE_ABOVE"
        missing.note(reason, within(pcie_path, "gen_max_host"))
        if limit is None:
            missing.note(reason, within(pcie_path, "limiting_hop"))
    numa_node = node.numa_node if gpu.numa_node is None else gpu.numa_node
    if numa_node is not None:
        missing.clear(within(path, "numa_node"))
    device_id = gpu.pci_device_id or node.device_id
    if device_id is not None:
        missing.clear(within(path, "pci_device_id"))
    if node.aer is None:
        missing.note("NO_AER_IN_SYS", within(pcie_path, "aer"))
    else:
        missing.clear(within(pcie_path, "aer"))
    pcie = replace(
        gpu.pcie,
        gen_max_host=slot_generation,
        limiting_hop=limit,
        aer=node.aer,
        **added,
    )
    return replace(gpu, pcie=pcie, numa_node=numa_node, pci_device_id=device_id)


def _link_by_tree(node: PciNode, slot: PciNode | None) -> dict[str, int | None]:
    """Return the link as sysfs shows it. Its maximum is what both card and slot support."""
    own_generation = generation_of(node.max_speed_gt_per_s)
    return {
        "gen_now": generation_of(node.speed_gt_per_s),
        "gen_max": _min(own_generation, generation_of(slot.max_speed_gt_per_s) if slot else None),
        "gen_max_device": own_generation,
        "width_now": node.width,
        "width_max": _min(node.max_width, slot.max_width if slot else None),
    }


def _min(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def tree_hop(nodes: Sequence[PciNode], host: Host, a: str | None, b: str | None) -> Hop | None:
    """Return the hop between two addresses in the PCI tree, or None if it is unknown.

    On a host with several NUMA nodes, a tree without NUMA numbers does not distinguish NODE from SYS.
    """
    if a is None or b is None:
        return None
    if any(node.address in (a, b) and not node.root for node in nodes):
        return None
    hop = hop_between(nodes, a, b)
    numbered = any(node.numa_node is not None for node in nodes)
    if hop is Hop.NODE and not numbered and len(host.numa_nodes or ()) > 1:
        return None
    return hop


def join_tree(
    links: Sequence[Link], gpus: Sequence[Gpu], nodes: Sequence[PciNode], host: Host
) -> tuple[tuple[Link, ...], tuple[Contradiction, ...]]:
    """Add the PCI tree's hop if NVML reported none, and list the differences. NVML's hop is kept.

    INTERNAL and PIX do not contradict: in the tree, a board with two GPUs is a switch like any other.
    """
    joined, contradictions = [], []
    for link in links:
        by_tree = tree_hop(nodes, host, gpus[link.a].pci_address, gpus[link.b].pci_address)
        if link.hop is None:
            joined.append(replace(link, hop=by_tree))
            continue
        joined.append(link)
        same = by_tree in (None, link.hop) or (link.hop, by_tree) == (Hop.INTERNAL, Hop.PIX)
        if by_tree is not None and not same:
            hops = {"nvml": link.hop.value, "sysfs": by_tree.value}
            contradictions.append(Contradiction(fact=at_link(link.a, link.b, "hop"), said=hops))
    return tuple(joined), tuple(contradictions)


def nvlinks_between(a: Gpu, b: Gpu) -> int | None:
    """Count the NVLinks between two GPUs, direct or through NVSwitches; None if unknown.

    Both ends report a link, so it is enough to know all links of one GPU. Through switches, a pair can use
    the number of links of the GPU that has fewer.
    """
    sides = [_direct_links(a, b), _direct_links(b, a)]
    known = [count for count in sides if count is not None]
    if not known:
        return None
    return max(known) + min(_switch_links(a), _switch_links(b))


def _direct_links(gpu: Gpu, other: Gpu) -> int | None:
    """Count one GPU's active links to another; None if a link with an unknown remote end may lead there."""
    if gpu.nvlinks is None:
        return None
    up = [link for link in gpu.nvlinks if link.active is not False]
    if any(link.remote_pci_address is None and link.remote_kind not in ("switch", "ibmnpu") for link in up):
        return None
    if up and other.pci_address is None:
        return None
    return sum(link.remote_pci_address == other.pci_address for link in up)


def _switch_links(gpu: Gpu) -> int:
    return sum(link.active is True and link.remote_kind == "switch" for link in gpu.nvlinks or ())
