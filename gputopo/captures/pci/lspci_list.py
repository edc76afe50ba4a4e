"""The lists of `lspci` (`-v` to `-vvv`, `-n`, `-nn`, `-D`): text in, Machine out.

Bridges show the bus behind them, which gives the tree. Link capabilities are what a function can do, link
status is its present state. `lspci -vvv | grep ACSCtl` by itself shows whether access control is on anywhere.
Only GPUs, NICs and bridges are read. If a device is listed twice (`lspci` above `lspci -vvv`), its facts are
combined.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gputopo.captures.ledger import Claims, Format, by_line
from gputopo.captures.pci import pci_tree
from gputopo.captures.pci.device_names import (
    NAME_IN_TREE,
    device_by_name,
    vendor_by_name,
)
from gputopo.captures.pci.pci_tree import NVIDIA, TreeFacts
from gputopo.reference import expected_gpu, parse_link_speed, parse_link_width
from gputopo.topology import NVIDIA_DRIVER, bridges_above
from gputopo.values.errors import InputError
from gputopo.values.facts import at_gpu, at_pci
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Bar1Mib, Gpu, Host, Machine, PciNode, Unread

SOURCE = "lspci -vvv"

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
# The configuration is all ones: nothing answers at this address.
_NO_ANSWER = re.compile(r"\(rev ff\)|!!! Unknown header type 7f")
_READ = (_HEAD, _ACS, _BEHIND, _LINK, _NUMA, _DRIVER, _BAR1)
_DETAIL = re.compile(r"\s+\S|[0-9a-f]{2,3}:(?: [0-9a-f]{2})+|pcilib: ")  # indented, or bytes (`-x`)
_IDENTITY = ("class_code", "vendor_id", "device_id")  # facts that are the same in every line about a device
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
# lspci's names for the classes, from pci.ids.
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


def detect(text: str) -> bool:
    """Return whether the text has a device line in the format of lspci, or lines of `grep ACSCtl`."""
    return _HEAD.search(text) is not None or _ACS.search(text) is not None


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is a device line, or a line of `grep ACSCtl`."""
    return detect(lines[0])


def claims(text: str) -> Claims:
    """Return the device lines, and the lines below them that are read; all other lines are known."""
    return by_line(text, lambda line: any(form.search(line) for form in _READ), _DETAIL.match)


def parse(text: str, *, origin: str) -> Machine:
    """Read the list. Raises InputError if it has one device twice with different facts."""
    heads = list(_HEAD.finditer(text))
    if not heads:
        missing = {"gpus": "only the ACS lines were captured"}
        return Machine(source=SOURCE, host=Host(acs=_acs(text)), missing=missing)
    reading = _Reading(origin)
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        reading.device(head, text[head.end() : end], text)
    return reading.machine(_acs(text))


def _acs(text: str) -> str | None:
    """Return whether access control redirects peer traffic anywhere, or None if not reported."""
    redirects = [_redirects(match[1]) for match in _ACS.finditer(text)]
    return ("on" if any(redirects) else "off") if redirects else None


def _redirects(control: str) -> bool:
    """Return whether peers' requests or completions go upstream (PCIe Base Specification, ACS control)."""
    return "ReqRedir+" in control or "CmpltRedir+" in control


@dataclass(slots=True)
class _Reading:
    origin: str
    nodes: dict[str, PciNode] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)  # "0000:05": the bridge that leads to the bus
    buses: set[str] = field(default_factory=set)
    facts: TreeFacts = field(default_factory=TreeFacts)

    def device(self, head: re.Match[str], body: str, text: str) -> None:
        """Read one device: its first line and the lines below it."""
        address = kernel_address(head[1])
        if address is None:
            line = text.count("\n", 0, head.start()) + 1
            self.facts.unread.append(Unread(source=SOURCE, line=line, text=head[0].strip()[:200]))
            return
        self.buses.add(address.rpartition(":")[0])
        word = head[2].strip()
        is_number = re.fullmatch(r"[0-9a-f]{4}", word, re.IGNORECASE)  # `-n`; `-nn` has both
        number = head[3] or (word if is_number else None)
        class_code = f"{number.lower()}00" if number else _CLASSES.get(word)
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
            kind=pci_tree.kind_of(class_code, is_nvidia=vendor == NVIDIA),
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
        """Add the facts of an earlier line about the device. Raises InputError if it is another device."""
        earlier = self.nodes.get(node.address, node)
        names = () if earlier.device_id or node.device_id else ("name",)  # `-nn` writes `Device` for a number
        both = [(getattr(earlier, name), getattr(node, name)) for name in (*_IDENTITY, *names)]
        if any(a is not None and b is not None and a != b for a, b in both):
            raise InputError(
                f"{self.origin} has {node.address} twice, as two devices", "give one file for each machine"
            )
        known = {name: getattr(node, name) for name in node.__struct_fields__}
        return replace(
            earlier, **{name: value for name, value in known.items() if value not in (None, "", "other")}
        )

    def gpu(self, address: str, body: str, *, lost: bool) -> None:
        """Read what only a GPU has: the size of the window to its memory, and whether it answers."""
        size = _BAR1.search(body)
        mib = round(int(size[1]) * _UNITS[size[2]]) if size else None
        earlier = self.facts.gpus.get(address, Gpu(index=0))
        node = self.nodes[address]
        model = _MODEL.search(node.name or "")
        # The GPU of another driver is not counted, and the number of a known model identifies it better.
        named = model and node.driver in (None, NVIDIA_DRIVER) and expected_gpu(None, node.device_id) is None
        self.facts.gpus[address] = Gpu(
            index=0,
            name=model[1] if model and named else None,
            bar1_mib=Bar1Mib(total=earlier.bar1_mib.total if mib is None else mib),
            lost=lost or earlier.lost,
        )
        if "<access denied>" in body:
            self.facts.missing[at_pci(address, "speed_gt_per_s")] = "lspci was not run as root"

    def machine(self, acs: str | None) -> Machine:
        """Return the machine, with the paths according to the bridges' buses."""
        for address, node in list(self.nodes.items()):
            self.nodes[address] = replace(
                node, parent=self.behind.get(address.rpartition(":")[0].lower()), root=self.root(address)
            )
        shown = {address: node for address, node in self.nodes.items() if node.kind != "other"}
        if acs == "on" and self.is_whole() and not self.redirects_above():
            acs = "off"
        machine = pci_tree.machine(SOURCE, shown, self.facts, host=Host(acs=acs))
        missing = {at_gpu(gpu.index, "name"): NAME_IN_TREE for gpu in machine.gpus if gpu.name is None}
        if acs is None:
            missing["host.acs"] = "the text has no ACSCtl lines (run lspci -vvv as root)"
        return replace(machine, missing=machine.missing | missing)

    def redirects_above(self) -> bool:
        """Return whether a bridge above a GPU or a network card redirects traffic; True without either."""
        devices = [node.address for node in self.nodes.values() if node.kind in ("gpu", "nic")]
        above = {bridge for where in devices for bridge in bridges_above(self.nodes, where)[0]}
        return not devices or any(self.nodes[bridge].acs for bridge in above)

    def root(self, address: str) -> str:
        """Return the root complex of a function, or "" if the list has no bridges or a path ends early."""
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


def _link(match: re.Match[str] | None) -> tuple[float | None, int | None]:
    return (None, None) if match is None else (parse_link_speed(match[2]), parse_link_width(match[3]))


FORMAT = Format(
    "`lspci -vvv` text",
    "PCI tree, link speed and width, ACS",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
