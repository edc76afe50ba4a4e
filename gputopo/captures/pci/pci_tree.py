"""A Machine from a PCI tree that some tool printed: GPUs and NICs in PCI order, their links, their slots.

The readers of NCCL's XML and of lspci use this. XML is read with defusedxml: entity bombs and external
entities are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from msgspec.structs import replace

from gputopo.reference import address_order, generation_of
from gputopo.topology import hop_between, slower_bridge
from gputopo.values.facts import at_gpu, at_link
from gputopo.values.machine import Gpu, Hop, Host, Link, Machine, Nic, Pcie, PciNode, Unread

NVIDIA = "10de"
PATH_UNKNOWN = "the capture does not show enough of the path between the two"

Tree = Sequence[PciNode]
Kind = Literal["gpu", "nic", "bridge", "other"]


def kind_of(class_code: str | None, *, is_nvidia: bool) -> Kind:
    """Return what a function is by its PCI class, such as 030200."""
    code = class_code or ""
    if code.startswith(("0300", "0302")) and is_nvidia:
        return "gpu"
    if code.startswith("02"):
        return "nic"
    return "bridge" if code.startswith("0604") else "other"


@dataclass(slots=True)
class TreeFacts:
    """Facts of a capture that are not in the tree, by PCI address, for GPUs and NICs only."""

    gpus: dict[str, Gpu] = field(default_factory=dict)  # with their own facts; `machine` sets the index
    nic_names: dict[str, list[str]] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)  # if the capture numbers the GPUs
    missing: dict[str, str] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)


def machine(
    source: str,
    nodes: Mapping[str, PciNode],
    facts: TreeFacts,
    *,
    host: Host = Host(),  # noqa: B008 (a frozen value)
    nvlinks: Callable[[str, str], int | None] = lambda a, b: None,
    whole: Callable[[Tree], Tree] = lambda tree: tree,
) -> Machine:
    """Return the machine of a tree.

    `nvlinks` counts the NVLinks between two GPUs by address, None if not known. `whole` returns the tree used
    for hops, for captures without some bridges. GPUs have the capture's numbers if it numbers every GPU, else
    they are numbered in PCI order.
    """
    tree = tuple(nodes[key] for key in sorted(nodes, key=address_order))
    missing = dict(facts.missing)
    addresses = [node.address for node in tree if node.kind == "gpu"]
    numbers = {where: facts.indices[where] for where in addresses if where in facts.indices}
    if not len(numbers) == len(addresses) == len({*numbers.values()}):
        numbers = {where: index for index, where in enumerate(addresses)}
    gpus = tuple(
        _gpu(facts.gpus.get(where, Gpu(index=0)), index, nodes[where], nodes, missing)
        for where, index in sorted(numbers.items(), key=lambda pair: pair[1])
    )
    hop_tree = whole(tree)
    links = tuple(_links(gpus, hop_tree, nvlinks, missing))
    nics = _nics(hop_tree, facts.nic_names, numbers)
    if not gpus:
        missing.setdefault("gpus", "the capture shows no NVIDIA GPU")
    return Machine(
        source=source,
        host=host,
        gpus=gpus,
        links=links,
        nics=nics,
        pci=tree,
        missing=missing,
        unread=tuple(facts.unread),
    )


def _gpu(gpu: Gpu, index: int, node: PciNode, nodes: Mapping[str, PciNode], missing: dict[str, str]) -> Gpu:
    """Return a GPU with its index and the facts from its place in the tree."""
    slot = nodes.get(node.parent) if node.parent else None
    pcie = Pcie(
        gen_now=generation_of(node.speed_gt_per_s),
        gen_max_device=generation_of(node.max_speed_gt_per_s),
        gen_max_host=generation_of(slot.max_speed_gt_per_s) if slot else None,
        width_now=node.width,
        width_max=_min(node.max_width, slot.max_width if slot else None),
        limiting_hop=slower_bridge(nodes, node.address),
    )
    if gpu.pcie != Pcie():
        pcie = gpu.pcie  # the capture reports it itself
    elif pcie.gen_max_device is not None:
        pcie = replace(pcie, gen_max=_min(pcie.gen_max_device, pcie.gen_max_host))
    if pcie == Pcie():
        missing.setdefault(at_gpu(index, "pcie"), "not reported by the capture")
    return replace(
        gpu,
        index=index,
        pci_address=node.address,
        pci_device_id=node.device_id,
        numa_node=node.numa_node if gpu.numa_node is None else gpu.numa_node,
        pcie=pcie,
    )


def _min(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _hop(tree: Tree, a: str, b: str) -> Hop | None:
    """Return the hop between two functions, or None if the capture does not show it.

    The hop is unknown if a function has no root, or if the roots differ in a tree without NUMA numbers.
    """
    if any(node.address in (a, b) and not node.root for node in tree):
        return None
    hop = hop_between(tree, a, b)
    numbered = any(node.numa_node is not None for node in tree)
    return None if hop is Hop.NODE and not numbered else hop


def _links(
    gpus: Sequence[Gpu],
    tree: Tree,
    nvlinks: Callable[[str, str], int | None],
    missing: dict[str, str],
) -> list[Link]:
    links: list[Link] = []
    for first, second in combinations(gpus, 2):
        a, b = str(first.pci_address), str(second.pci_address)
        link = Link(a=first.index, b=second.index, hop=_hop(tree, a, b), nvlinks=nvlinks(a, b))
        if link.hop is None:
            missing[at_link(link.a, link.b, "hop")] = PATH_UNKNOWN
        links.append(link)
    return links


def with_hops(machine: Machine) -> Machine:
    """Return the machine with hops between GPUs that its PCI tree shows and no capture reports."""
    at = {gpu.index: gpu.pci_address for gpu in machine.gpus}
    links = {(link.a, link.b): link for link in machine.links}
    missing = dict(machine.missing)
    for a, b in combinations(sorted(at), 2):
        link = links.get((a, b), Link(a=a, b=b))
        if link.hop is None and (hop := _hop(machine.pci, at[a] or "", at[b] or "")) is not None:
            links[a, b] = replace(link, hop=hop)
            missing.pop(at_link(a, b, "hop"), None)
    return replace(machine, links=tuple(links[pair] for pair in sorted(links)), missing=missing)


def _nics(tree: Tree, names: Mapping[str, list[str]], numbers: Mapping[str, int]) -> tuple[Nic, ...]:
    """Return the network cards in PCI order; a card with several ports is listed once per name."""
    nameless: tuple[str | None, ...] = (None,)
    cards = [
        (node, name)
        for node in tree
        if node.kind == "nic"
        for name in (tuple(names.get(node.address, ())) or nameless)
    ]
    places = {f"gpu:{index}": where for where, index in numbers.items()}
    places |= {f"nic:{index}": node.address for index, (node, _) in enumerate(cards)}
    return tuple(
        Nic(
            index=index,
            name=name,
            pci_address=node.address,
            numa_node=node.numa_node,
            hops={
                other: hop
                for other, where in places.items()
                if where != node.address and (hop := _hop(tree, node.address, where)) is not None
            },
        )
        for index, (node, name) in enumerate(cards)
    )
