"""hwloc's XML (`lstopo topo.xml`), of versions 1, 2 and 3.

hwloc keeps every bridge, so hops come from its tree. It shows a link's speed as GB/s of all lanes together
(0: not known), without generation and width. Its matrices of latencies and of NVLink bandwidth are not read.
Host names, serial numbers and process lists are left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from gputopo.captures.ledger import Claims, Format, xml_lines
from gputopo.captures.pci import pci_tree
from gputopo.captures.pci.pci_tree import NVIDIA, TreeFacts, cpus_of_mask, opening, root_of
from gputopo.values.errors import InputError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Host, Machine, MemoryMib, NumaNode, PciNode, Unread
from gputopo.values.subject import at_pci

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SOURCE = "hwloc xml"

_HINT = "make it again with `lstopo topology.xml`, or copy the whole file"
_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_HOST_BRIDGE = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-[0-9a-f]{2}\]", re.IGNORECASE)
_NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"  # how people mask it


def recognise(text: str) -> bool:
    """Return whether the text is XML whose first element is hwloc's `<topology>`."""
    return opening(text) == "topology"


def claims(text: str) -> Claims:
    """Return the lines that have a tag or an attribute."""
    return xml_lines(text)


def parse(text: str, *, origin: str) -> Machine:
    """Read the topology. Raises InputError if the XML is cut, dangerous or not hwloc's."""
    root = root_of(text, origin=origin, hint=_HINT)
    if root.tag != "topology" or root.find("object") is None:
        raise InputError(f"{origin} has no <object> in its <topology>", _HINT)
    reading = _Reading()
    for element, above in _objects(root):
        reading.object(element, above)
    return reading.machine(root)


def _objects(root: "Element") -> Iterator[tuple["Element", tuple["Element", ...]]]:
    """Return each object with those around it, the nearest first; without recursion: a file may be deep."""
    waiting: list[tuple[Element, tuple[Element, ...]]] = [(top, ()) for top in root.findall("object")]
    while waiting:
        element, above = waiting.pop()
        yield element, above
        inside = (element, *above)[:64]  # PCI allows fewer levels than that
        waiting += [(child, inside) for child in reversed(element.findall("object"))]


@dataclass(slots=True)
class _Reading:
    nodes: dict[str, PciNode] = field(default_factory=dict)
    found: TreeFacts = field(default_factory=TreeFacts)
    numa: dict[int, NumaNode] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    cpu_model: str | None = None

    def object(self, element: "Element", above: tuple["Element", ...]) -> None:
        """Read one object of the tree."""
        kind = element.get("type") or ""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "NUMANode":
            self.numa_node(element)
        elif kind in ("Package", "Socket", "Machine"):
            self.cpu_model = self.cpu_model or _info(element).get("CPUModel")
        elif kind in ("PCIDev", "Bridge") and element.get("pci_busid"):
            self.function(element, above)
        elif kind == "OSDev":
            self.device(element, above)

    def numa_node(self, element: "Element") -> None:
        """Read one NUMA node."""
        index = _number(element.get("os_index"))
        if index is None:
            self.note(f"a NUMANode with os_index={element.get('os_index')!r}")
            return
        cpus = cpus_of_mask(element.get("cpuset") or "")
        memory = _number(element.get("local_memory"))
        self.numa[index] = NumaNode(
            index=index,
            cpus=None if cpus is None else index_ranges(cpus),
            memory_mib=None if memory is None else memory >> 20,
        )

    def function(self, element: "Element", above: tuple["Element", ...]) -> None:
        """Read one PCI function."""
        where = pci_tree.address(element.get("pci_busid") or "")
        codes = _TYPE.match(element.get("pci_type") or "")
        if where is None or codes is None or where in self.nodes:
            said = f"pci_busid={element.get('pci_busid')!r} pci_type={element.get('pci_type')!r}"
            self.note(f"{element.get('type')} {said}")
            return
        class_code, vendor, device = (code.lower() for code in codes.groups())
        parents = (pci_tree.address(outer.get("pci_busid") or "") for outer in above)
        self.nodes[where] = PciNode(
            address=where,
            root=_root(above),
            parent=next((parent for parent in parents if parent in self.nodes), None),
            kind=_kind(element, class_code, vendor),
            vendor_id=vendor,
            device_id=device,
            class_code=f"{class_code}00",  # hwloc leaves the programming interface out
            numa_node=_numa_of(above),
            name=element.get("name") or _info(element).get("PCIDevice"),
        )
        speed = _decimal(element.get("pci_link_speed"))
        if speed:
            self.found.missing[at_pci(where, "speed_gt_per_s")] = (
                f"hwloc reports {speed:.2f} GB/s of all lanes together"
            )

    def device(self, element: "Element", above: tuple["Element", ...]) -> None:
        """Read what the kernel, NVML or CUDA call a function: mlx5_0, nvml0, cuda0."""
        name = element.get("name") or ""
        where = pci_tree.address(above[0].get("pci_busid") or "") if above else None
        node = self.nodes.get(where or "")
        if node is None:
            return
        if node.kind == "nic" and _is_network(element):
            self.found.nic_names.setdefault(node.address, []).append(name)
        elif node.kind == "gpu" and (number := re.fullmatch(r"(nvml|cuda)(\d{1,4})", name)):
            self.gpu(node.address, number[1] == "cuda", int(number[2]), element)

    def gpu(self, where: str, is_cuda: bool, index: int, element: "Element") -> None:
        """Add the facts of a GPU from one library to those from another."""
        info = _info(element)
        old = self.found.gpus.get(where, Gpu(index=0))
        memory = re.fullmatch(r"(\d{1,12})\s*Ki?B", info.get("CUDAGlobalMemorySize", ""))
        uuid = info.get("NVIDIAUUID")
        self.found.gpus[where] = Gpu(
            index=0,
            name=info.get("GPUModel") or old.name,
            cuda_index=index if is_cuda else old.cuda_index,
            uuid=uuid if uuid and uuid != _NO_UUID else old.uuid,
            memory_mib=MemoryMib(total=int(memory[1]) >> 10) if memory else old.memory_mib,
        )
        if not is_cuda:
            self.found.indices[where] = index

    def note(self, text: str) -> None:
        """Remember what was not understood; XML elements have no line here, so it is 0."""
        self.found.unread.append(Unread(source=SOURCE, line=0, text=text))

    def machine(self, root: "Element") -> Machine:
        """Return the machine that the file shows."""
        if len(self.numa) == 1:
            only = next(iter(self.numa))
            for key, node in self.nodes.items():
                if node.numa_node is None:
                    self.nodes[key] = msgspec.structs.replace(node, numa_node=only)
        for where, gpu in list(self.found.gpus.items()):
            cpus = next((n.cpus for n in self.numa.values() if n.index == self.nodes[where].numa_node), None)
            self.found.gpus[where] = msgspec.structs.replace(gpu, cpu_affinity=cpus)
        return pci_tree.machine(SOURCE, self.nodes, self.found, host=self.host(root))

    def host(self, root: "Element") -> Host:
        """Return the host: its processors, NUMA nodes and kernel."""
        nodes = tuple(self.numa[index] for index in sorted(self.numa))
        memories = [node.memory_mib for node in nodes]
        infos = [_info(root), *(_info(top) for top in root.findall("object"))]
        return Host(
            cpu_model=self.cpu_model,
            sockets=self.counts.get("Package", self.counts.get("Socket")),
            physical_cores=self.counts.get("Core"),
            logical_cpus=self.counts.get("PU"),
            memory_mib=sum(m for m in memories if m is not None) if nodes and None not in memories else None,
            numa_nodes=nodes or None,
            kernel=next((info["OSRelease"] for info in infos if "OSRelease" in info), None),
        )


def _root(above: tuple["Element", ...]) -> str:
    """Name the root complex as the kernel does, by the host bridge around a function; "" if there is none."""
    for outer in above:
        bridge = _HOST_BRIDGE.fullmatch(outer.get("bridge_pci") or "")
        if bridge and (outer.get("bridge_type") or "").startswith("0-"):
            return f"pci{int(bridge[1], 16):04x}:{bridge[2].lower()}"
    return ""


def _numa_of(above: tuple["Element", ...]) -> int | None:
    """Return the NUMA node of a function: the only one of the nearest object that has any."""
    for outer in above:
        nodes = cpus_of_mask(outer.get("nodeset") or "")  # the same notation
        if nodes:
            return next(iter(nodes)) if len(nodes) == 1 else None
    return None


def _kind(element: "Element", class_code: str, vendor: str) -> Literal["gpu", "nic", "bridge", "other"]:
    if element.get("type") == "Bridge":
        return "bridge"
    if class_code in ("0300", "0302") and vendor == NVIDIA:
        return "gpu"
    return "nic" if class_code.startswith("02") else "other"


def _is_network(element: "Element") -> bool:
    """Whether it is a network or InfiniBand device: hwloc 1 and 2 number the types, hwloc 3 has bits."""
    kinds = ("2", "3") if element.get("subtype") is None else ()
    info = _info(element)
    return (
        element.get("osdev_type") in kinds
        or "Address" in info
        or "NodeGUID" in info
        or element.get("subtype") in ("OpenFabrics", "Slingshot", "BXI")
        or re.fullmatch(r"(?:mlx|en|eth|ib|hfi|bnxt|hsi|efa|roce)\w{1,30}", element.get("name") or "")
        is not None
    )


def _info(element: "Element") -> dict[str, str]:
    return {info.get("name") or "": info.get("value") or "" for info in element.findall("info")}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _decimal(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,6}(?:\.\d{1,9})?", text, re.ASCII) else None


FORMAT = Format("hwloc XML (`lstopo --of xml`)", "NUMA nodes, PCI tree", recognise, parse, claims=claims)
