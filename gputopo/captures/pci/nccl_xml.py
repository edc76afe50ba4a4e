"""NCCL's topology XML, as `NCCL_TOPO_DUMP_FILE` writes it and `NCCL_TOPO_FILE` reads it.

The content, from NCCL's src/graph/xml.cc:

- `<cpu>` is a NUMA node, not a socket, and host bridges are not distinguished: two GPUs under one `<cpu>`
  without a common switch are PHB to NCCL, and may be NODE to `nvidia-smi topo -m`.
- Only the upstream bridge of each switch is written, so one `<pci>` around two GPUs is one switch.
- `link_speed` and `link_width` are the maximum of device and slot together, not the present values.
  Bridges of virtual machines report absurd speeds, which are stored as reported.
- `dev` of a `<gpu>` is NVML's index.
- `<nvlink>` counts links by their other end, without numbers. In some virtual machines that end is the GPU
  itself: then it is not known to which GPUs the links lead.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputopo.captures.ledger import Claims, Format, xml_lines
from gputopo.captures.pci import pci_tree
from gputopo.captures.pci.pci_tree import NVIDIA, TreeFacts
from gputopo.captures.xml_document import opening, parse_xml
from gputopo.reference import generation_of, parse_link_speed, parse_link_width
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu, at_link, at_numa_node
from gputopo.values.fields import kernel_address
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Contradiction, Gpu, Host, Machine, NumaNode, Pcie, PciNode, Unread

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SOURCE = "nccl xml"

_HINT = "make it again with NCCL_TOPO_DUMP_FILE, or copy the whole file"
_ITSELF = "itself"  # other end of NVLinks whose target is their GPU
_PORT = ".port"  # represents the downstream port of a switch, which NCCL omits
_MASK = re.compile(r"[0-9a-f]{1,16}(?:,[0-9a-f]{1,8})*", re.IGNORECASE)
_MAX_CPUS = 8192  # Linux: CONFIG_NR_CPUS_RANGE_END


def detect(text: str) -> bool:
    """Return whether the text is XML whose first element is NCCL's `<system>`."""
    return opening(text) == "system"


def claims(text: str) -> Claims:
    """Return the lines with a tag or an attribute."""
    return xml_lines(text)


def parse(text: str, *, origin: str) -> Machine:
    """Read the topology. Raises InputError if the XML is cut, dangerous or not NCCL's."""
    root = parse_xml(text.strip(), origin=origin, hint=_HINT).root
    if root.tag != "system" or not len(root):
        raise InputError(f"{origin} has no <cpu> in its <system>", _HINT)
    if any("gcn" in gpu.attrib for gpu in root.iter("gpu")):
        raise InputError(f"{origin} is from RCCL, which is for AMD GPUs", "gputopo supports NVIDIA GPUs only")
    reading = TopologyReading(origin)
    for cpu in root:
        if cpu.tag == "cpu":
            reading.cpu(cpu)
        else:
            reading.note(f"<{cpu.tag}> under <system>")
    return reading.machine()


@dataclass(slots=True)
class TopologyReading:
    """The nodes of NCCL's tree, and the NVLinks of its GPUs by their other end: an address, or `switch`."""

    origin: str
    source: str = SOURCE
    nodes: dict[str, PciNode] = field(default_factory=dict)
    facts: TreeFacts = field(default_factory=TreeFacts)
    numa: dict[int, NumaNode] = field(default_factory=dict)
    nvlinks: dict[str, dict[str, int]] = field(default_factory=dict)  # by <gpu>: links by other end

    def note(self, text: str) -> None:
        """List a text as not understood; XML elements have no line number here, so it is 0."""
        self.facts.unread.append(Unread(source=SOURCE, line=0, text=text))

    def cpu(self, cpu: "Element") -> None:
        """Read a NUMA node and everything below it."""
        number = _number(cpu.get("numaid"))
        place = f"numa{len(self.numa) if number is None else number}"
        if number is not None:
            cpus = cpus_of_mask(cpu.get("affinity") or "")
            self.numa[number] = NumaNode(index=number, cpus=None if cpus is None else index_ranges(cpus))
            if cpus is None:
                self.facts.missing[at_numa_node(number, "cpus")] = "the file has no affinity mask"
        elif cpu.get("numaid") not in (None, "-1"):  # -1: the machine has no NUMA numbers
            self.note(f"<cpu numaid={cpu.get('numaid')!r}>")
        waiting: list[tuple[Element, str | None]] = [(child, None) for child in reversed(cpu)]
        while waiting:
            element, parent = waiting.pop()
            if element.tag == "pci":
                below = self.pci(element, place, parent, number)
                waiting += [(child, below) for child in reversed(element)]
            elif element.tag == "gpu" and parent is not None:
                self.gpu(element, parent)
            elif element.tag == "nic":
                self.nic(element, parent)
            else:
                self.note(f"<{element.tag}> under {parent or '<cpu>'}")

    def pci(self, element: "Element", root: str, parent: str | None, numa: int | None) -> str | None:
        """Read one function and return its address, or its parent's address if its own cannot be read."""
        where = kernel_address(element.get("busid") or "")
        if where is None:
            self.note(f"<pci busid={element.get('busid')!r}>")
            return parent
        if where in self.nodes:
            raise InputError(f"{self.origin} has {where} twice", "give the file as NCCL wrote it")
        class_code = _hex(element.get("class"), 6)
        vendor = _hex(element.get("vendor"), 4)
        self.nodes[where] = PciNode(
            address=where,
            root=root,
            parent=parent,
            kind=_kind(element, class_code, is_nvidia=vendor in (None, NVIDIA)),
            vendor_id=vendor,
            device_id=_hex(element.get("device"), 4),
            class_code=class_code,
            numa_node=numa,
            max_speed_gt_per_s=parse_link_speed(element.get("link_speed")),
            max_width=parse_link_width(element.get("link_width")),
        )
        return where

    def gpu(self, element: "Element", where: str) -> None:
        """Read NVML's facts about a GPU: its index and its NVLinks."""
        index = _number(element.get("dev"))
        if index is not None:
            self.facts.indices[where] = index
        ends = self.nvlinks.setdefault(where, {})
        for link in element:
            if link.tag == "c2c":  # to the GPU's own CPU (Grace), which is not in the tree
                continue
            count = _number(link.get("count"))
            if link.tag != "nvlink" or count is None or count > 64:  # NVML_NVLINK_MAX_LINKS is 18
                self.note(f"<{link.tag} {' '.join(f'{k}={v!r}' for k, v in link.attrib.items())}> of {where}")
                continue
            end = kernel_address(link.get("target") or "")
            # Switches and CPUs are not in the tree. NCCL combines all switches into one, and so does
            # `between`.
            code = _hex(link.get("tclass"), 6) or ""
            if end == where:
                key = _ITSELF
            elif end is not None and code.startswith("03"):
                key = end
            else:  # NCCL writes CPUs (POWER) as class 0x068001
                key = {"068000": "switch", "068001": "cpu"}.get(code, "unknown")
            ends[key] = ends.get(key, 0) + count

    def nic(self, element: "Element", where: str | None) -> None:
        """Read the names of a card's ports."""
        names = [name for net in element if net.tag == "net" and (name := net.get("name"))]
        if where is None:  # NCCL writes cards at an unknown place as sockets
            self.facts.missing["nics"] = f"NCCL's XML shows no place of {', '.join(names) or 'one'}"
        else:
            self.facts.nic_names.setdefault(where, []).extend(names)

    def machine(self) -> Machine:
        """Return the machine that the file shows."""
        if not any(node.class_code for node in self.nodes.values()) and not self.nvlinks and self.nodes:
            self.facts.missing["gpus"] = "the file has no class codes: which devices are GPUs is unknown"
        for where, node in self.nodes.items():
            if node.kind == "gpu":
                pcie = Pcie(gen_max=generation_of(node.max_speed_gt_per_s), width_max=node.max_width)
                self.facts.gpus[where] = Gpu(index=0, pcie=pcie)
        numa = tuple(self.numa[index] for index in sorted(self.numa))
        machine = pci_tree.machine(
            self.source,
            self.nodes,
            self.facts,
            host=Host(numa_nodes=numa or None),
            nvlinks=lambda a, b: between(self.nvlinks, a, b),
            whole=_with_ports,
        )
        cpus_of = {index: node.cpus for index, node in self.numa.items()}
        gpus = tuple(
            gpu if gpu.numa_node not in cpus_of else replace(gpu, cpu_affinity=cpus_of[gpu.numa_node])
            for gpu in machine.gpus
        )
        addresses = {gpu.index: str(gpu.pci_address) for gpu in gpus}
        missing = {at_gpu(EVERY, "name"): "not reported by NCCL's XML"} if gpus else {}
        for gpu in gpus:
            ends = self.nvlinks.get(str(gpu.pci_address))
            if ends:
                missing[at_gpu(gpu.index, "nvlinks")] = "NCCL's XML counts links without their numbers"
            if ends and (count := ends.get(_ITSELF)):
                missing[at_gpu(gpu.index, "nvlinks")] = f"NCCL's XML has {count} links of this GPU to itself"
        contradictions = []
        for link in machine.links:
            pair = link.a, link.b
            ways = (pair, pair[::-1])
            counts = [self.nvlinks.get(addresses[a], {}).get(addresses[b], 0) for a, b in ways]
            if 0 < min(counts) < max(counts):
                said = {f"{self.source}, from GPU {a}": str(n) for a, n in zip(pair, counts, strict=True)}
                contradictions.append(Contradiction(fact=at_link(*pair, "nvlinks"), said=said))
            leads_to = [self.nvlinks.get(addresses[gpu], {}) for gpu in pair]
            if link.nvlinks is None and any(_ITSELF in ends for ends in leads_to):
                missing[at_link(link.a, link.b, "nvlinks")] = (
                    "NCCL's XML has links of a GPU to itself: to which GPUs they lead is not reported"
                )
        return replace(
            machine,
            gpus=gpus,
            missing=machine.missing | missing,
            contradictions=tuple(contradictions),
        )


def between(ends: Mapping[str, Mapping[str, int]], a: str, b: str) -> int | None:
    """Count the NVLinks between two GPUs, direct or through switches; None if neither GPU reports any.

    `ends` has, for each GPU that reports NVLinks, the number of links to each other end; `switch` is any
    NVSwitch. Through switches a pair can use as many links as the GPU with fewer links has. The result is
    also None if a GPU has links to itself and none to the other GPU: those links may lead there.
    """
    if a not in ends and b not in ends:
        return None
    both = ends.get(a, {}).get(b, 0), ends.get(b, {}).get(a, 0)
    direct = min(both) or max(both)
    if not direct and (_ITSELF in ends.get(a, {}) or _ITSELF in ends.get(b, {})):
        return None
    return direct + min(ends.get(a, {}).get("switch", 0), ends.get(b, {}).get("switch", 0))


def _with_ports(tree: Sequence[PciNode]) -> Sequence[PciNode]:
    """Add the downstream ports that NCCL omits: two GPUs of two switches are PXB, not PIX."""
    ports = [PciNode(address=f"{node.address}{_PORT}", root=node.root, parent=node.address) for node in tree]
    return [
        *(
            replace(node, parent=f"{node.parent}{_PORT}") if node.parent is not None else node
            for node in tree
        ),
        *ports,
    ]


def _kind(element: "Element", class_code: str | None, *, is_nvidia: bool) -> pci_tree.Kind:
    """Return what a function is by its class, or by the elements below it."""
    tags = {child.tag for child in element}
    by_class = pci_tree.kind_of(class_code, is_nvidia=is_nvidia)
    if by_class == "gpu" or ("gpu" in tags and is_nvidia):
        return "gpu"
    if by_class == "nic" or "nic" in tags:
        return "nic"
    return "bridge" if "pci" in tags else by_class


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else None


def _hex(text: str | None, digits: int) -> str | None:
    """Read "0x10de" as "10de"; None for other texts and for the unknown value 0xffff."""
    number = (text or "").lower().removeprefix("0x")
    fits = 0 < len(number) <= digits and all(digit in "0123456789abcdef" for digit in number)
    return number.zfill(digits) if fits and set(number) != {"f"} else None


def cpus_of_mask(text: str) -> frozenset[int] | None:
    """Return the CPUs of a mask, or None if the text is not a CPU mask.

    NCCL and the kernel write words of 32 bits, the highest first, separated by commas: `00000000,00ffffff`.
    """
    if _MASK.fullmatch(text) is None:
        return None
    words = text.split(",")
    if len(words) * 32 > _MAX_CPUS:
        return None
    mask = 0
    for word in words:
        mask = mask << 32 | int(word, 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


FORMAT = Format(
    "NCCL topology XML (`NCCL_TOPO_DUMP_FILE`)", "PCI tree, links, NICs", detect, parse, claims=claims
)
