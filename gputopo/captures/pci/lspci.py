"""The tree of `lspci -tv` and the lists of `lspci` (`-v` to `-vvv`, `-n`, `-nn`, `-D`): text in, Machine out.

The tree has no class codes: what is an NVIDIA GPU and what is a network card is known by the devices'
names. A device that this lspci's list of names did not know yet (`Device 2684`) is taken as a GPU only if the
reference data has its number, or a sound function of the same card stands beside it.

In lists bridges show the bus behind them, which gives the tree. Link capabilities are what a function can
do, link status what it does now. `lspci -vvv | grep ACSCtl` alone shows whether access control is on
anywhere. Only GPUs, NICs and bridges are read. A device may stand twice (`lspci` above `lspci -vvv`): each
time adds what the other does not show.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gputopo.captures.ledger import Claims, Format, by_line, read_lines
from gputopo.captures.pci import pci_tree
from gputopo.captures.pci.pci_tree import NVIDIA, TreeFacts
from gputopo.reference.expectations import expected_gpu
from gputopo.topology.hops import bridges_above
from gputopo.topology.kernel import NVIDIA_DRIVER
from gputopo.values.errors import InputError
from gputopo.values.machine import Bar1Mib, Gpu, Host, Machine, PciNode, Unread
from gputopo.values.subject import EVERY, at_gpu, at_pci

NAME_IN_TREE = "lspci's own name of it is in the PCI tree"  # why a GPU has no name

# Chips: G80 to GT21x, Fermi to Blackwell (GF, GK, GM, GP, GV, TU, GA, GH, AD, GB).
_GPU_CHIP = re.compile(
    r"\b(?:G[A-Z]\d{2,3}[A-Z]{0,3}|G\d{2,3}[A-Z]{0,3}|TU\d{3}[A-Z]{0,3}|AD\d{3}[A-Z]{0,3}|NV\d{2})\b"
)
_UNKNOWN = re.compile(r"\bDevice ([0-9a-f]{4})\b", re.IGNORECASE)
_NO_GPU = re.compile(
    r"audio|usb|ucsi|nvswitch|bridge|switch|bluefield|connectx|infiniband|ethernet|serial|nforce|smu\b|sata",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"ethernet|network|infiniband|connectx|wi-?fi|wireless|\b(?:10|25|40|50|100|200|400)\s?gb?e\b|omni-path"
    r"|elastic fabric adapter|\bena\b|virtual function",
    re.IGNORECASE,
)
_NO_NETWORK = re.compile(
    r"\b(?:bridge|root port|dma|management|nvme|i/o memory|controller hub|sound|audio)\b", re.IGNORECASE
)
_VENDORS = {
    "NVIDIA Corporation": "10de",
    "Advanced Micro Devices": "1022",
    "Intel Corporation": "8086",
    "Mellanox Technologies": "15b3",
    "Broadcom": "14e4",
    "PLX Technology": "10b5",
    "ASPEED Technology": "1a03",
}


def kind_by_name(name: str, same_card: Sequence[str]) -> Literal["gpu", "nic", "other"]:
    """Return what a function is by its name; `same_card`: the names of all functions of the card."""
    if name.startswith("NVIDIA ") and _NO_GPU.search(name) is None:
        audible = any("audio" in other.lower() for other in same_card)
        number = device_by_name(name)
        if _GPU_CHIP.search(name) or (number and (audible or expected_gpu(None, number) is not None)):
            return "gpu"
    if _NETWORK.search(name) and _NO_NETWORK.search(name) is None:
        return "nic"
    return "nic" if name.startswith("Mellanox ") and "Family" in name else "other"


def may_be_gpu(name: str) -> bool:
    """Return whether it is an NVIDIA device whose name is only a number."""
    return name.startswith("NVIDIA ") and _UNKNOWN.search(name) is not None


def vendor_by_name(name: str) -> str | None:
    """Return the vendor number of the makers that matter here, where the name alone shows it; else None.

    AMD's graphics cards carry another number (1002) under nearly the same name: they get none.
    """
    if "[AMD/ATI]" in name:
        return None
    return next((number for maker, number in _VENDORS.items() if name.startswith(maker)), None)


def device_by_name(name: str) -> str | None:
    """Return the number that lspci writes for a device that its list of names lacks: `Device 2330`."""
    found = _UNKNOWN.search(name)
    return found[1].lower() if found else None


TREE = "lspci -tv"

_TREE_HINT = "copy the whole output of `lspci -tv` again, with its blanks"
_ROOT = re.compile(r"-\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_DEVICE = re.compile(r"-([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_BUSES = re.compile(r"-\[(?:[0-9a-f]{4,8}:)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_JOINT = re.compile(r"-{1,4}\+(?=-)|-{2,4}(?=-[0-9a-f]{2}\.)", re.IGNORECASE)
_START = re.compile(r"[ |]*(?:[-+\\][-+]|-\[)")
_FIRST = re.compile(r"^[ \t]*-(?:\+-)?\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-", re.MULTILINE)
_LAST_IDS = re.compile(r".*\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Bus:
    """A bus: the root complex it belongs to, its number and the bridge that leads to it."""

    domain: str
    root: str
    bus: str
    bridge: str | None


def recognise_tree(text: str) -> bool:
    """Return whether a line of the text begins such a tree."""
    return _FIRST.search(text) is not None


def begins_tree(lines: Sequence[str]) -> bool:
    """Return whether a line is the first of such a tree."""
    return _FIRST.match(lines[0]) is not None


def parse_tree(text: str, *, origin: str) -> Machine:
    """Read the tree. Raises InputError if there is no device in it, or one is in it twice."""
    reading = _TreeReading(origin)
    lines = read_lines(text.expandtabs(), reading.take, bare=str.rstrip, longest=2000)
    if not reading.nodes:
        raise InputError(f"{origin} has no device of `lspci -tv` in it", _TREE_HINT)
    reading.found.unread += lines.unread(TREE)
    return reading.machine()


@dataclass(slots=True)
class _TreeReading:
    origin: str
    joints: dict[int, _Bus | None] = field(default_factory=dict)  # column of a joint: what hangs there
    nodes: dict[str, PciNode] = field(default_factory=dict)
    found: TreeFacts = field(default_factory=TreeFacts)

    def take(self, number: int, line: str) -> bool:
        """Read one line: it begins at a joint of a line above, and may go down several bridges."""
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
        """Go along a line from a joint of the tree: a root or devices, each below the one before it."""
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
            self.nodes[address] = msgspec.structs.replace(self.nodes[address], kind="bridge")
            bus = _Bus(bus.domain, bus.root, buses[1].lower(), address)
            at = buses.end()
        return True

    def device(self, match: re.Match[str], place: _Bus, line: str) -> str:
        """Add one function; its name, where the line has it, goes to the end of the line."""
        address = f"{place.domain}:{place.bus}:{match[1].lower()}.{match[2]}"
        if pci_tree.address(address) is None or address in self.nodes:
            raise InputError(f"{self.origin} has {address} twice, or it is none", _TREE_HINT)
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
        """Return the machine that the tree shows, with the kinds that names show."""
        cards: dict[str, list[str]] = {}
        for node in self.nodes.values():
            cards.setdefault(node.address.rpartition(".")[0], []).append(node.name or "")
        for address, node in list(self.nodes.items()):
            kind: Literal["gpu", "nic", "bridge", "other"] = node.kind
            if kind != "bridge" and node.name:
                kind = kind_by_name(node.name, cards[address.rpartition(".")[0]])
            self.nodes[address] = msgspec.structs.replace(node, kind=kind)
            if kind == "other" and node.name and may_be_gpu(node.name):
                reason = "this lspci does not know the NVIDIA device's name"
                self.found.missing[at_pci(address, "kind")] = reason
        if not any(node.name for node in self.nodes.values()):
            self.found.missing["gpus"] = "the tree has no names (lspci -t); lspci -tv has them"
        machine = pci_tree.machine(TREE, self.nodes, self.found)
        missing = {at_gpu(EVERY, "name"): NAME_IN_TREE} if machine.gpus else {}
        return msgspec.structs.replace(machine, missing=machine.missing | missing)


TREE_FORMAT = Format("`lspci -tv` text", "PCI tree", recognise_tree, parse_tree, begins=begins_tree)


LIST = "lspci -vvv"

_LIST_HINT = "copy the whole output of `sudo lspci -vvv` again"
_HEAD = re.compile(
    r"^[ \t]*((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]) "
    r"([^:\[\n]{0,80}?) ?(?:\[([0-9a-f]{4})\])?: (.+)$",
    re.MULTILINE | re.IGNORECASE,
)
_ACS = re.compile(r"\bACSCtl:\s*(SrcValid[+-].*)")
_BEHIND = re.compile(r"\bBus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2})", re.IGNORECASE)
_LINK = re.compile(r"\b(LnkCap|LnkSta):\s.*?\bSpeed (unknown|[\d.]+ ?GT/s)(?: \([a-z]+\))?, Width x(\d{1,2})")
_IDS = re.compile(r"(?:\[|^)([0-9a-f]{4}):([0-9a-f]{4})\b", re.IGNORECASE)
_NUMA = re.compile(r"\bNUMA node:? (\d{1,4})\b")
_DRIVER = re.compile(r"^[ \t]+Kernel driver in use: (\S{1,60})", re.MULTILINE)
_MODEL = re.compile(r"\[([^\]\[]{2,60})\]$")  # `GA102GL [RTX A5000]`
_BAR1 = re.compile(r"^[ \t]+Region 1: Memory at .*\[size=(\d{1,6})([KMGT])\]", re.MULTILINE)
# All ones where its configuration should be: nothing answers at this address.
_NO_ANSWER = re.compile(r"\(rev ff\)|!!! Unknown header type 7f")
_READ = (_HEAD, _ACS, _BEHIND, _LINK, _NUMA, _DRIVER, _BAR1)
_DETAIL = re.compile(r"\s+\S|[0-9a-f]{2,3}:(?: [0-9a-f]{2})+|pcilib: ")  # indented, or bytes (`-x`)
_IDENTITY = ("class_code", "vendor_id", "device_id")  # what is the same on every line about a device
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
# lspci's names of the classes, from pci.ids.
_CLASSES = {
    "VGA compatible controller": "030000",
    "3D controller": "030200",
    "Display controller": "038000",
    "PCI bridge": "060400",
    "Ethernet controller": "020000",
    "Infiniband controller": "020700",
    "InfiniBand controller": "020700",
    "Network controller": "028000",
    "Fabric controller": "020800",
}


def recognise_list(text: str) -> bool:
    """Return whether the text has a device's line as lspci writes it, or lines of `grep ACSCtl`."""
    return _HEAD.search(text) is not None or _ACS.search(text) is not None


def begins_list(lines: Sequence[str]) -> bool:
    """Return whether a line is a device's, or one of `grep ACSCtl`."""
    return recognise_list(lines[0])


def list_claims(text: str) -> Claims:
    """Return the lines of devices; of what is below them those that are read, all others are known."""
    return by_line(text, lambda line: any(one.search(line) for one in _READ), _DETAIL.match)


def parse_list(text: str, *, origin: str) -> Machine:
    """Read the list. Raises InputError if there is no device in it, or one stands in it twice and differs."""
    heads = list(_HEAD.finditer(text))
    if not heads and _ACS.search(text) is None:
        raise InputError(f"{origin} has no device of lspci in it", _LIST_HINT)
    if not heads:
        missing = {"gpus": "only the ACS lines were captured"}
        return Machine(source=LIST, host=Host(acs=_acs(text)), missing=missing)
    reading = _ListReading(origin)
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        reading.device(head, text[head.end() : end], text)
    return reading.machine(_acs(text))


def _acs(text: str) -> str | None:
    """Return whether access control redirects peer traffic anywhere, None where it is not reported."""
    redirects = [_redirects(match[1]) for match in _ACS.finditer(text)]
    return ("on" if any(redirects) else "off") if redirects else None


def _redirects(control: str) -> bool:
    """Return whether requests or completions of peers are sent up (PCIe Base Specification, ACS control)."""
    return "ReqRedir+" in control or "CmpltRedir+" in control


@dataclass(slots=True)
class _ListReading:
    origin: str
    nodes: dict[str, PciNode] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)  # "0000:05": the bridge that leads to the bus
    buses: set[str] = field(default_factory=set)
    found: TreeFacts = field(default_factory=TreeFacts)

    def device(self, head: re.Match[str], body: str, text: str) -> None:
        """Read one device: its first line and those below it."""
        address = pci_tree.address(head[1])
        if address is None:
            line = text.count("\n", 0, head.start()) + 1
            self.found.unread.append(Unread(source=LIST, line=line, text=head[0].strip()[:200]))
            return
        self.buses.add(address.rpartition(":")[0])
        class_code = _class_code(head)
        ids = _IDS.search(head[4])
        name = re.sub(r" ?\[[0-9a-f]{4}:[0-9a-f]{4}\]| \(rev [0-9a-f]{2}\)| \(prog-if .*", "", head[4])
        vendor = ids[1].lower() if ids else vendor_by_name(name)
        device = ids[2].lower() if ids else device_by_name(name)
        links = {match[1]: match for match in _LINK.finditer(body)}
        now, limit = _link(links.get("LnkSta")), _link(links.get("LnkCap"))
        control = _ACS.search(body)
        node = PciNode(
            address=address,
            root="",
            kind=_kind_by_class(class_code, vendor),
            vendor_id=vendor,
            device_id=device,
            class_code=class_code,
            driver=driver[1] if (driver := _DRIVER.search(body)) else None,
            numa_node=int(numa[1]) if (numa := _NUMA.search(body)) else None,
            speed_gt_per_s=now[0],
            width=now[1],
            max_speed_gt_per_s=limit[0],
            max_width=limit[1],
            acs=_redirects(control[1]) if control else None,
            name=name.strip() or None,
        )
        self.nodes[address] = self.with_earlier(node)
        if bus := _BEHIND.search(body):
            self.behind[f"{address[: address.index(':')]}:{bus[2].lower()}"] = address
        if self.nodes[address].kind == "gpu":
            self.gpu(address, body, lost=_NO_ANSWER.search(head[4] + body) is not None)

    def with_earlier(self, node: PciNode) -> PciNode:
        """Add the facts of an earlier line to the device. Raises InputError if the device is another."""
        earlier = self.nodes.get(node.address, node)
        names = () if earlier.device_id or node.device_id else ("name",)  # `-nn` writes `Device` for a number
        both = [(getattr(earlier, name), getattr(node, name)) for name in (*_IDENTITY, *names)]
        if any(a is not None and b is not None and a != b for a, b in both):
            raise InputError(
                f"{self.origin} has {node.address} twice, as two devices", "give one file for each machine"
            )
        known = {name: getattr(node, name) for name in node.__struct_fields__}
        return msgspec.structs.replace(
            earlier, **{name: value for name, value in known.items() if value not in (None, "", "other")}
        )

    def gpu(self, address: str, body: str, *, lost: bool) -> None:
        """Read what only a GPU has: the size of the window to its memory, and whether it answers."""
        size = _BAR1.search(body)
        mib = round(int(size[1]) * _UNITS[size[2]]) if size else None
        earlier = self.found.gpus.get(address, Gpu(index=0))
        node = self.nodes[address]
        model = _MODEL.search(node.name or "")
        # Another driver's GPU is not counted, and the number of a known model identifies it better.
        named = model and node.driver in (None, NVIDIA_DRIVER) and expected_gpu(None, node.device_id) is None
        self.found.gpus[address] = Gpu(
            index=0,
            name=model[1] if model and named else None,
            bar1_mib=Bar1Mib(total=earlier.bar1_mib.total if mib is None else mib),
            lost=lost or earlier.lost,
        )
        if "<access denied>" in body:
            self.found.missing[at_pci(address, "speed_gt_per_s")] = "lspci was not run as root"

    def machine(self, acs: str | None) -> Machine:
        """Return the machine, with the paths that the bridges' buses show."""
        for address, node in list(self.nodes.items()):
            self.nodes[address] = msgspec.structs.replace(
                node, parent=self.behind.get(address.rpartition(":")[0].lower()), root=self.root(address)
            )
        shown = {address: node for address, node in self.nodes.items() if node.kind != "other"}
        if acs == "on" and self.is_whole() and not self.redirects_above():
            acs = "off"
        machine = pci_tree.machine(LIST, shown, self.found, host=Host(acs=acs))
        missing = {at_gpu(gpu.index, "name"): NAME_IN_TREE for gpu in machine.gpus if gpu.name is None}
        if acs is None:
            missing["host.acs"] = "the text has no ACSCtl lines (run lspci -vvv as root)"
        return msgspec.structs.replace(machine, missing=machine.missing | missing)

    def redirects_above(self) -> bool:
        """Return whether a bridge above a GPU or a network card redirects; true where there is neither."""
        devices = [node.address for node in self.nodes.values() if node.kind in ("gpu", "nic")]
        above = {bridge for where in devices for bridge in bridges_above(self.nodes, where)[0]}
        return not devices or any(self.nodes[bridge].acs for bridge in above)

    def root(self, address: str) -> str:
        """Name the root complex of a function, or "" where the list has no bridges or a path ends early."""
        bus = address.rpartition(":")[0]
        seen = {bus}
        while bus in self.behind:
            bus = self.behind[bus].rpartition(":")[0]
            if bus in seen:
                return ""
            seen.add(bus)
        return f"pci{bus}" if self.is_whole() else ""

    def is_whole(self) -> bool:
        """Return whether all devices are listed, with the buses behind bridges: not `lspci -s` or `-d`."""
        bridges = {address for address, node in self.nodes.items() if node.kind == "bridge"}
        return bridges <= {*self.behind.values()} and any(bus.endswith(":00") for bus in self.buses)


def _class_code(head: re.Match[str]) -> str | None:
    """Return the class: by number (`-nn`, `-n`), else by its name."""
    word = head[2].strip()
    number = head[3] or (word if re.fullmatch(r"[0-9a-f]{4}", word, re.IGNORECASE) else None)
    return f"{number.lower()}00" if number else _CLASSES.get(word)


def _kind_by_class(class_code: str | None, vendor: str | None) -> Literal["gpu", "nic", "bridge", "other"]:
    code = class_code or ""
    if code.startswith(("0300", "0302")) and vendor == NVIDIA:
        return "gpu"
    if code.startswith("02"):
        return "nic"
    return "bridge" if code.startswith("0604") else "other"


def _link(match: re.Match[str] | None) -> tuple[float | None, int | None]:
    return (None, None) if match is None else (pci_tree.speed(match[2]), pci_tree.width(match[3]))


LIST_FORMAT = Format(
    "`lspci -vvv` text",
    "PCI tree, link speed and width, ACS",
    recognise_list,
    parse_list,
    begins=begins_list,
    claims=list_claims,
)
