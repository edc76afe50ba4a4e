"""The PCI tree: NUMA nodes, root complexes, switches, GPUs and network cards.

A port with one device behind it has no line: if it is slower, the device's line reports it. Captures may be
damaged, so a parent may be missing; bridges in a cycle are skipped.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from gputopo.reference import generation_of
from gputopo.report.layout import LOST, QUIET, SEVERITY_STYLES, Line, Span, plain
from gputopo.report.machine.gpus import link_is_slow_while_idle
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import gpu_ranges
from gputopo.values.machine import Gpu, Machine, Nic, NicPort, PciNode

_LIMIT_STYLE = SEVERITY_STYLES["warning"]
_MIN_NAME = 30  # minimum characters of a name, at any depth of the tree

_Device = TypeVar("_Device", Gpu, Nic)


class Branch(NamedTuple):
    """A line of the tree: its name, details that may fold to further lines, and the branches below it."""

    name: str
    details: Sequence[Span] = ()
    children: Sequence["Branch"] = ()
    gpu: int | None = None  # the index if it is a GPU, else None


def tree_view(machine: Machine, width: int) -> list[Line]:
    """Return the tree in lines of about `width` columns; empty if the source has no PCI devices."""
    return [line for top in pci_branches(machine) for line in _lines(top, "", "", width)]


def pci_branches(machine: Machine) -> list[Branch]:
    """Return the tree as values: NUMA nodes with root complexes with switches and devices."""
    tree = _Tree(machine)
    if not tree.shown:
        return []
    numa_nodes = machine.host.numa_nodes
    only = numa_nodes[0].index if numa_nodes is not None and len(numa_nodes) == 1 else None
    by_node: dict[int | None, dict[str, list[str]]] = {}
    for address in tree.tops():
        number = tree.numa_node(address)
        of_node = by_node.setdefault(only if number is None else number, {})
        of_node.setdefault(tree.nodes[address].root, []).append(address)
    cpus = {node.index: node.cpus for node in numa_nodes or ()}
    tops = []
    for number in sorted(by_node, key=lambda node: (node is None, node or 0)):
        roots = [
            Branch(
                f"root complex {plain(root.removeprefix('pci')) or 'unknown'}",
                [],
                [tree.branch(address) for address in addresses],
            )
            for root, addresses in by_node[number].items()
        ]
        if number is None:
            name = "NUMA node unknown" if numa_nodes else "Host"
        else:
            name = f"NUMA {number}{f', CPUs {plain(known)}' if (known := cpus.get(number)) else ''}"
        tops.append(Branch(name, [], roots))
    inside = {gpu.index for gpu in tree.gpus.values()}
    if left_out := [gpu.index for gpu in machine.gpus if gpu.index not in inside]:
        tops.append(Branch(f"Not in the tree: {gpu_ranges(left_out)}"))
    return tops


class _Tree:
    """The nodes that are, or have below them, a GPU or a network card, and their parents."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.nodes = {node.address: node for node in machine.pci}
        self.gpus = self._devices(machine.gpus)
        self.nics = self._devices(machine.nics)
        paths: set[str] = set()
        for address, node in self.nodes.items():
            step = address if node.kind in ("gpu", "nic") else None
            while step in self.nodes and step not in paths:
                paths.add(step)
                step = self.nodes[step].parent
        # Domains with more than four digits come after the others.
        self.shown = sorted(paths, key=lambda address: (len(address), address))
        self.children = grouped(
            (parent, address)
            for address in self.shown
            if (parent := self.nodes[address].parent) in paths and parent != address
        )
        self.limits = grouped(
            (limit, gpu.index)
            for gpu in machine.gpus
            if (limit := self._address(gpu.pcie.limiting_hop)) is not None
        )

    def tops(self) -> list[str]:
        """Return the nodes without a shown node above them, in the order of their addresses."""
        below = {child for children in self.children.values() for child in children}
        return [address for address in self.shown if address not in below]

    def numa_node(self, address: str) -> int | None:
        """Return the NUMA node of a branch: its GPU's node, or the node of its first device that has one."""
        gpu = self.gpus.get(address)
        for number in (self.nodes[address].numa_node, None if gpu is None else gpu.numa_node):
            if number is not None and number >= 0:
                return number
        below = map(self.numa_node, self.children.get(address, []))
        return next((number for number in below if number is not None), None)

    def branch(self, address: str, ports: Sequence[str] = ()) -> Branch:
        """Return a node with everything below it. `ports`: bridges above it with nothing else behind them."""
        children = self.children.get(address, [])
        if self.nodes[address].kind == "bridge" and len(children) == 1:
            return self.branch(children[0], (*ports, address))
        name, details = self._words(address, ports)
        gpu = self.gpus.get(address)
        index = None if gpu is None else gpu.index
        return Branch(name, details, [*map(self.branch, children)], index)

    def _words(self, address: str, ports: Sequence[str]) -> tuple[str, list[Span]]:
        """Return the name of a node and its details: link, slower bridges above it, NVLinks."""
        node = self.nodes[address]
        gpu, nic = self.gpus.get(address), self.nics.get(address)
        details: list[Span] = [(address, QUIET)]
        if gpu is not None and gpu.lost:
            details.insert(0, (LOST, SEVERITY_STYLES["error"]))
        if link := _link(node, idle=gpu is not None and link_is_slow_while_idle(gpu)):
            details.append((link, ""))
        details += [self._limit(port, address) for port in (*ports, address) if port in self.limits]
        if gpu is not None:
            if nvlinks := _nvlinks(self.machine, gpu):
                details.append((nvlinks, ""))
            name = (gpu.name or node.name or "").removeprefix("NVIDIA ").removeprefix("Corporation ")
            return f"GPU {gpu.index} {plain(name)}".rstrip(), details
        if nic is not None:
            details += [_port(port) for port in nic.ports or () if port.up is not None]
            return f"NIC {nic.index} {plain(nic.name or node.name or '')}".rstrip(), details
        kind = {"gpu": "GPU (not counted)", "nic": "network card"}.get(node.kind, "device")
        if node.kind == "bridge":
            # A root port has one device behind it, with one or more functions; a bridge with more is a
            # switch.
            behind = {child.rpartition(".")[0] for child in self.children.get(address, [])}
            kind = "switch" if ports or node.parent in self.nodes or len(behind) > 1 else "root port"
        return f"{kind} {plain(node.name or '')}".rstrip(), details

    def _limit(self, address: str, below: str) -> Span:
        """Return the words for a bridge that is slower than the GPUs below it.

        `below`: the node of the line.
        """
        gpus = self.limits[address]
        link = _link(self.nodes[address], at_max=True)
        gpu = self.gpus.get(below)
        if gpu is not None and gpus == [gpu.index]:
            return (f"<- limited by {address}{f', {link}' if link else ''}", _LIMIT_STYLE)
        place = "" if address == below else f"{address}{f', {link}, ' if link else ' '}"
        return (f"<- {place}limits {gpu_ranges(gpus)}", _LIMIT_STYLE)

    def _devices(self, devices: Iterable[_Device]) -> dict[str, _Device]:
        by_address: dict[str, _Device] = {}
        for device in devices:
            if (address := self._address(device.pci_address)) is not None:
                by_address.setdefault(address, device)
        return by_address

    def _address(self, written: str | None) -> str | None:
        """Return the address as the tree writes it. Domains may have four or eight digits."""
        if written is None or written in self.nodes:
            return written
        bare = written.lower().lstrip("0")
        return next((address for address in self.nodes if address.lower().lstrip("0") == bare), None)


def _lines(branch: Branch, before: str, under: str, width: int) -> Iterator[Line]:
    """Yield a branch and everything below it. Details follow the name; long ones are on further lines."""
    name, space = branch.name, max(width - len(before), _MIN_NAME)
    if len(name) > space:  # names from lspci may be long
        name = f"{name[: space - 3]}..."
    current: list[Span] = [(before, QUIET), (name, "")]
    for text, style in branch.details:
        if len(text) + 2 > width - sum(len(span) for span, _ in current):
            yield tuple(current)
            current = [(under + ("│    " if branch.children else "     "), QUIET), (text, style)]
        else:
            current += [("  ", ""), (text, style)]
    yield tuple(current)
    last = len(branch.children) - 1
    for number, child in enumerate(branch.children):
        head, tail = ("└─ ", "   ") if number == last else ("├─ ", "│  ")
        yield from _lines(child, under + head, under + tail, width)


def _link(node: PciNode, *, idle: bool = False, at_max: bool = False) -> str:
    """Return a link as `gen 3 x8`, with its maximum if that is more; empty if nothing is known."""
    top, lanes = generation_of(node.max_speed_gt_per_s), node.max_width
    now = top if at_max else generation_of(node.speed_gt_per_s) or top
    wide = lanes if at_max else node.width or lanes
    known = ["" if now is None else f"gen {now}", "" if wide is None else f"x{wide}"]
    words = " ".join(filter(None, known))
    could = [f"gen {top}"] if top is not None and now != top else []
    could += [f"x{lanes}"] if lanes is not None and wide != lanes else []
    if idle and could[:1] == [f"gen {top}"]:
        could[0] += " under load"
    return f"{words} of {', '.join(could)}" if could else words


def _port(port: NicPort) -> Span:
    """Return the link of a port: `eth0 up, 25 of 100 Gbit/s`."""
    name = plain(port.interface or port.name)
    if not port.up:
        return (f"{name} link down", _LIMIT_STYLE)
    rate, top = port.rate_gbit_per_s, port.max_rate_gbit_per_s
    if rate is None:
        return (f"{name} up", "")
    below = f" of {top:g}" if top is not None and rate < top else ""
    return (f"{name} up, {rate:g}{below} Gbit/s", "")


def _nvlinks(machine: Machine, gpu: Gpu) -> str:
    """Return the peers that a GPU's NVLinks reach: `NVLink: 2 to GPU 1-2, 1 to GPU 3`."""
    reached = grouped(
        (link.nvlinks, b if a == gpu.index else a)
        for (a, b), link in machine.links_by_pair.items()
        if link.nvlinks and gpu.index in (a, b)
    )
    reach = [f"{count} to {gpu_ranges(reached[count])}" for count in sorted(reached, reverse=True)]
    return f"NVLink: {', '.join(reach)}" if reach else ""
