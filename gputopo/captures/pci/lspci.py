"""lspci's tree (`lspci -tv`, with or without `-nn`): text in, Machine out.

The tree has no class codes: what is an NVIDIA GPU and what is a network card is known by the devices' names.
A device that this lspci's list of names did not know yet (`Device 2684`) is taken as a GPU only if a sound
function of the same card stands beside it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gputopo.captures.ledger import is_noise
from gputopo.captures.pci import pci_names, pci_tree
from gputopo.captures.pci.pci_tree import Found
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, PciNode, Unread
from gputopo.values.subject import EVERY, at_gpu, at_pci

SOURCE = "lspci -tv"
READS = "`lspci -tv` text"
FACTS = "PCI tree"

_HINT = "copy the whole output of `lspci -tv` again, with its blanks"
_ROOT = re.compile(r"-\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_DEVICE = re.compile(r"-([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_BUSES = re.compile(r"-\[(?:[0-9a-f]{4,8}:)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_JOINT = re.compile(r"-{1,4}\+(?=-)|-{2,4}(?=-[0-9a-f]{2}\.)", re.IGNORECASE)
_START = re.compile(r"[ |]*(?:[-+\\][-+]|-\[)")
_FIRST = re.compile(r"^[ \t]*-(?:\+-)?\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-", re.MULTILINE)
_BUS_OF = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Place:
    """A bus: the root complex it belongs to, its number and the bridge that leads to it."""

    domain: str
    root: str
    bus: str
    bridge: str | None


def recognise(text: str) -> bool:
    """Return whether a line of the text begins such a tree."""
    return _FIRST.search(text) is not None


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the first of such a tree."""
    return _FIRST.match(lines[0]) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the tree. Raises InputError if there is no device in it, or one is in it twice."""
    reading = _Reading(origin)
    for number, line in enumerate(text.expandtabs().splitlines(), 1):
        if _START.match(line):
            reading.line(number, line.rstrip())
        elif not is_noise(line):
            reading.note(number, line)
    if not reading.nodes:
        raise InputError(f"{origin} has no device of `lspci -tv` in it", _HINT)
    return reading.machine()


@dataclass(slots=True)
class _Reading:
    origin: str
    joints: dict[int, _Place | None] = field(default_factory=dict)  # column of a joint: what hangs there
    nodes: dict[str, PciNode] = field(default_factory=dict)
    found: Found = field(default_factory=Found)

    def line(self, number: int, line: str) -> None:
        """Read one line: it begins at a joint of a line above, and may go down several bridges."""
        joint = re.search(r"[-+\\]", line)
        column = joint.start() if joint else 0
        place: _Place | None = None
        if _FIRST.match(line):
            many = line[column + 1] == "+"
            self.joints = {column + 1: None} if many else {}
            at = column + 2 if many else column
        elif column in self.joints:
            place, at = self.joints[column], column + 1
            self.joints = {where: what for where, what in self.joints.items() if where <= column}
        else:
            self.note(number, line)
            return
        self.follow(number, line, at, place)

    def follow(self, number: int, line: str, at: int, place: _Place | None) -> None:
        """Go along a line from a place of the tree: a root or devices, each below the one before it."""
        while at < len(line):
            if place is None:
                root = _ROOT.match(line, at)
                if root is None:
                    self.note(number, line)
                    return
                domain = f"{int(root[1] or '0', 16):04x}"
                place = _Place(domain, f"pci{domain}:{root[2].lower()}", root[2].lower(), None)
                at = root.end()
            joint = _JOINT.match(line, at)
            if joint is not None:
                at = joint.end()
                if joint[0].endswith("+"):
                    self.joints[at - 1] = place
            device = _DEVICE.match(line, at)
            if device is None:  # "--": a bus without devices
                if line[at:].strip("- "):
                    self.note(number, line)
                return
            address = self.device(device, place, line)
            at = device.end()
            buses = _BUSES.match(line, at)
            if buses is None:
                return
            self.nodes[address] = msgspec.structs.replace(self.nodes[address], kind="bridge")
            place = _Place(place.domain, place.root, buses[1].lower(), address)
            at = buses.end()

    def device(self, match: re.Match[str], place: _Place, line: str) -> str:
        """Add one function; its name, where the line has it, goes to the end of the line."""
        address = f"{place.domain}:{place.bus}:{match[1].lower()}.{match[2]}"
        if pci_tree.address(address) is None or address in self.nodes:
            raise InputError(f"{self.origin} has {address} twice, or it is none", _HINT)
        rest = line[match.end() :]
        name = rest.strip() if rest.startswith("  ") else None
        ids = next(reversed(list(_BUS_OF.finditer(name or ""))), None)
        self.nodes[address] = PciNode(
            address=address,
            root=place.root,
            parent=place.bridge,
            name=name,
            vendor_id=ids[1].lower() if ids else pci_names.vendor(name or ""),
            device_id=ids[2].lower() if ids else None,
        )
        return address

    def note(self, number: int, line: str) -> None:
        """Remember a line that was not understood."""
        self.found.unread.append(Unread(source=SOURCE, line=number, text=line.strip()))

    def machine(self) -> Machine:
        """Return the machine that the tree shows, with the kinds that names show."""
        cards: dict[str, list[str]] = {}
        for node in self.nodes.values():
            cards.setdefault(node.address.rpartition(".")[0], []).append(node.name or "")
        for address, node in list(self.nodes.items()):
            kind: Literal["gpu", "nic", "bridge", "other"] = node.kind
            if kind != "bridge" and node.name:
                kind = pci_names.kind(node.name, cards[address.rpartition(".")[0]])
            self.nodes[address] = msgspec.structs.replace(node, kind=kind)
            if kind == "other" and node.name and pci_names.may_be_gpu(node.name):
                reason = "this lspci does not know the NVIDIA device's name"
                self.found.missing[at_pci(address, "kind")] = reason
        if not any(node.name for node in self.nodes.values()):
            self.found.missing["gpus"] = "the tree has no names (lspci -t); lspci -tv has them"
        machine = pci_tree.machine(SOURCE, self.nodes, self.found)
        missing = {at_gpu(EVERY, "name"): pci_names.NAME_IN_TREE} if machine.gpus else {}
        return msgspec.structs.replace(machine, missing=machine.missing | missing)
