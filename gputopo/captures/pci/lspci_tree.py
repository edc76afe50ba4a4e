"""The tree of `lspci -tv`: text in, Machine out.

It has no class codes, so NVIDIA GPUs and network cards are known by the devices' names. A device without a
name in this lspci's list (`Device 2684`) is read as a GPU only if the reference data has its number, or if an
audio function is on the same card.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputopo.captures.ledger import Format, read_lines
from gputopo.captures.pci import pci_tree
from gputopo.captures.pci.device_names import (
    NAME_IN_TREE,
    device_by_name,
    kind_by_name,
    may_be_gpu,
    vendor_by_name,
)
from gputopo.captures.pci.pci_tree import TreeFacts
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu, at_pci
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Machine, PciNode

SOURCE = "lspci -tv"

_HINT = "copy the whole output of `lspci -tv` again, with its blanks"
_ROOT = re.compile(r"-\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_DEVICE = re.compile(r"-([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_BUSES = re.compile(r"-\[(?:[0-9a-f]{4,8}:)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_JOINT = re.compile(r"-{1,4}\+(?=-)|-{2,4}(?=-[0-9a-f]{2}\.)", re.IGNORECASE)
_START = re.compile(r"[ |]*(?:[-+\\][-+]|-\[)")
_FIRST = re.compile(r"^[ \t]*-(?:\+-)?\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-", re.MULTILINE)
_LAST_IDS = re.compile(r".*\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Bus:
    """A bus: its root complex, its number and the bridge that leads to it."""

    domain: str
    root: str
    bus: str
    bridge: str | None


def detect(text: str) -> bool:
    """Return whether such a tree starts in a line of the text."""
    return _FIRST.search(text) is not None


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the first of such a tree."""
    return _FIRST.match(lines[0]) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the tree. Raises InputError if it has no device, or one device twice."""
    reading = _Reading(origin)
    lines = read_lines(text.expandtabs(), reading.take, bare=str.rstrip, longest=2000)
    if not reading.nodes:
        raise InputError(f"{origin} has no device of `lspci -tv` in it", _HINT)
    reading.facts.unread += lines.unread(SOURCE)
    return reading.machine()


@dataclass(slots=True)
class _Reading:
    origin: str
    joints: dict[int, _Bus | None] = field(default_factory=dict)  # column of a joint: the bus below it
    nodes: dict[str, PciNode] = field(default_factory=dict)
    facts: TreeFacts = field(default_factory=TreeFacts)

    def take(self, number: int, line: str) -> bool:
        """Read one line: it starts at a joint of a line above, and may cross several bridges."""
        joint = re.search(r"[-+\\]", line)
        if joint is None or _START.match(line) is None:
            return False
        column = joint.start()
        if _FIRST.match(line):
            many = line[column + 1] == "+"
            self.joints = {column + 1: None} if many else {}
            return self.follow(line, column + 2 if many else column, None)
        if column not in self.joints:
            return False
        bus = self.joints[column]
        self.joints = {where: what for where, what in self.joints.items() if where <= column}
        return self.follow(line, column + 1, bus)

    def follow(self, line: str, at: int, bus: _Bus | None) -> bool:
        """Follow a line from a joint of the tree: a root or devices, each below the device before it."""
        while at < len(line):
            if bus is None:
                root = _ROOT.match(line, at)
                if root is None:
                    return False
                domain = f"{int(root[1] or '0', 16):04x}"
                bus = _Bus(domain, f"pci{domain}:{root[2].lower()}", root[2].lower(), None)
                at = root.end()
            joint = _JOINT.match(line, at)
            if joint is not None:
                at = joint.end()
                if joint[0].endswith("+"):
                    self.joints[at - 1] = bus
            device = _DEVICE.match(line, at)
            if device is None:  # "--": a bus without devices
                return not line[at:].strip("- ")
            address = self.device(device, bus, line)
            at = device.end()
            buses = _BUSES.match(line, at)
            if buses is None:
                break
            self.nodes[address] = replace(self.nodes[address], kind="bridge")
            bus = _Bus(bus.domain, bus.root, buses[1].lower(), address)
            at = buses.end()
        return True

    def device(self, match: re.Match[str], place: _Bus, line: str) -> str:
        """Add one function; if the line has its name, the name is the rest of the line."""
        address = f"{place.domain}:{place.bus}:{match[1].lower()}.{match[2]}"
        if kernel_address(address) is None or address in self.nodes:
            raise InputError(f"{self.origin} has {address} twice, or it is none", _HINT)
        rest = line[match.end() :]
        name = rest.strip() if rest.startswith("  ") else None
        ids = _LAST_IDS.match(name or "")
        self.nodes[address] = PciNode(
            address=address,
            root=place.root,
            parent=place.bridge,
            name=name,
            vendor_id=ids[1].lower() if ids else vendor_by_name(name or ""),
            device_id=ids[2].lower() if ids else device_by_name(name or ""),
        )
        return address

    def machine(self) -> Machine:
        """Return the machine of the tree, with the device kinds known from names."""
        cards: dict[str, list[str]] = {}
        for node in self.nodes.values():
            cards.setdefault(node.address.rpartition(".")[0], []).append(node.name or "")
        for address, node in list(self.nodes.items()):
            kind: pci_tree.Kind = node.kind
            if kind != "bridge" and node.name:
                kind = kind_by_name(node.name, cards[address.rpartition(".")[0]])
            self.nodes[address] = replace(node, kind=kind)
            if kind == "other" and node.name and may_be_gpu(node.name):
                reason = "this lspci does not know the NVIDIA device's name"
                self.facts.missing[at_pci(address, "kind")] = reason
        if not any(node.name for node in self.nodes.values()):
            self.facts.missing["gpus"] = "the tree has no names (lspci -t); lspci -tv has them"
        machine = pci_tree.machine(SOURCE, self.nodes, self.facts)
        missing = {at_gpu(EVERY, "name"): NAME_IN_TREE} if machine.gpus else {}
        return replace(machine, missing=machine.missing | missing)


FORMAT = Format("`lspci -tv` text", "PCI tree", detect, parse, begins=begins)
