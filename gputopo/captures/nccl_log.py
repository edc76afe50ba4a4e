"""NCCL's log (`NCCL_DEBUG=INFO`) of any version since 2.4, by itself or in nccl-tests: text in, Machine out.

    n1:70:91 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM

A line may mix messages of several processes. GPUs have bus ids (`1b000`: 0000:1b:00.0) or NVML's
indices. In a job on several hosts, only the GPUs of rank 0's host are read. Hops are in the paths of
`NCCL_DEBUG_SUBSYS=INIT,GRAPH`, and in NCCL's tree of the system, with rates in GB/s that NCCL computes from
generation, width and number of links; NCCL does not distinguish host bridges:

    n1:70:91 [0] NCCL INFO CPU/0 (1/2/-1)
    n1:70:91 [0] NCCL INFO + PCI[24.0] - GPU/3b000 (0)
    n1:70:91 [0] NCCL INFO               + NVL[240.0] - GPU/5e000
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.captures.ledger import Claims, Format, by_line
from gputopo.captures.limits import require_gpus
from gputopo.captures.matching import aligned
from gputopo.captures.pci import nccl_xml
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu, at_link
from gputopo.values.fields import kernel_address
from gputopo.values.machine import (
    Driver,
    Gpu,
    Hop,
    KernelEvent,
    Link,
    Machine,
    Nccl,
    Nic,
    NicPort,
    PciNode,
)

SOURCE = "nccl log"

_HINT = "run the program again with NCCL_DEBUG=INFO, and give the whole log"
_MARK = re.compile(r"(?:([\w.-]{1,255}):\d{1,9}:\d{1,9} )?\[\d{1,5}\] NCCL INFO |NCCL INFO ")
_LINE = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR|version) |^NCCL_\w+=")
_LONGEST = 8000  # the trees of 64 channels, and a few messages of other processes
_MAX_LISTED = 32  # rings, trees, settings, warnings
_SYSTEM = re.compile(r"NCCL INFO === System : maxBw ")
_WARN = re.compile(r"\bNCCL (?:WARN|ERROR) (\S.*)")
_VERSION = re.compile(r"\bNCCL version (\d{1,2}(?:\.\d{1,3}){1,2})(?:\+cuda(\d{1,2}\.\d{1,2}))?")
_CUDA = re.compile(r"cudaDriverVersion (\d{1,3})0(\d)0\b")
_RANK = re.compile(
    r"comm 0x[0-9a-f]+ rank (?P<rank>\d{1,6}) n[rR]anks (?P<ranks>\d{1,6})(?: cudaDev \d{1,4})?"
    r"(?: nvmlDev (?P<nvml>\d{1,4}))?(?: busId (?P<bus>[0-9a-f]{1,10})\b)?(?: nNodes (?P<nodes>\d{1,5}))?"
)
_NUMBER = r"(?:Channel|Ring) \d{1,3}(?:/\d{1,3})? : +"
_END = r"(\d{1,6})(?:\[([0-9a-f]{1,10})\])?"
_EDGE = re.compile(rf"{_NUMBER}{_END} -> {_END}(?: \[(?:send|receive)\])? via (\w[\w ./()-]{{1,60}})")
_CARD_NUMBER = re.compile(r"/\d{1,4}(?:\(\d{1,6}\))?(?=/|$)")
_RING = re.compile(rf"{_NUMBER}(\d{{1,6}}(?: +\d{{1,6}})*)\s*$")
_TREE = re.compile(r"\[(\d{1,3})\] ([-\d/]{1,40})->(\d{1,6})->([-\d/]{1,40})")
_PATHS = re.compile(r"^GPU/(?:\d-)?([0-9A-Fa-f]{1,10}) :(.*)")
_PATH = re.compile(r"GPU/(?:\d-)?([0-9A-Fa-f]{1,10}) \(\d{1,3}/[\d.]{1,12}/([A-Z0-9]{2,4})\)")
_ROOT = re.compile(r"CPU/(?:\d{1,3}-)?(\d{1,4}) \(")
_BRANCH = re.compile(
    r"( {0,400})\+ (PCI|NVL)\[(\d{1,5}\.\d)\] - (GPU|PCI|NVS)/(?:\d{1,3}-)?([0-9A-Fa-f]{1,10})(?= |$)"
)
# GB/s that NCCL uses for an NVLink, and the maximum number per GPU: src/graph/topo.h (`SM80_NVLINK_BW`).
_NVLINKS = ((20.0, 12), (20.6, 18), (40.1, 18), (31.2, 36), (12.0, 4), (18.0, 4))
_SLOW_SHARE = 0.6  # Not measured; chosen because with half the lanes or one generation less the rate is half.
_NO_P2P = re.compile(
    r"Could not enable P2P between dev \d{1,4}\(=([0-9a-f]{1,10})\) and dev \d{1,4}\(=([0-9a-f]{1,10})\)"
    r"|P2P is disabled between (?:connected )?GPUs (\d{1,4}) and (\d{1,4})"
)
_USING = re.compile(r"NET/(?:IB|Socket) ?: Using (.*?)(?:;|$)")
_CARD = re.compile(r"\[\d{1,4}\] ?([\w.-]{1,60}):(?:(\d{1,3})/(IB|RoCE))?")
_NETWORK = re.compile(r"Using network (\S[\w -]{0,40})")
_CHANNELS = re.compile(r"\b(\d{1,4}) coll channels")
_NVLS = re.compile(r"NVLS multicast support is (not )?available|\b(\d{1,4}) nvls channels")
_SET = re.compile(
    r"(?<!can set )(?<!message with )"  # advice
    r"\b(NCCL_[A-Z0-9_]{2,60})(?: set (?:by environment )?to |=)([^\s\"';]{1,80}?)\.?(?=[\s\"';]|$)"
)
# Variables that select the paths and algorithms with which NCCL copies.
_DECIDING = re.compile(r"NCCL_(?:P2P_DISABLE|P2P_LEVEL|SHM_DISABLE|NVLS_ENABLE|ALGO|PROTO|MAX_NCHANNELS)=")
_HOPS = {hop.value: hop for hop in Hop}
_REFUSED = "CUDA reports that one cannot access the other"
_FABRICS = {"IB": "InfiniBand", "RoCE": "Ethernet"}


def is_line(line: str) -> bool:
    """Return whether a line is from NCCL, or has one of its variables."""
    return _LINE.search(line) is not None


def version_in(line: str) -> tuple[str, str | None] | None:
    """Return NCCL's version in a line, and the CUDA version that it was built for."""
    match = _VERSION.search(line)
    return None if match is None else (match[1], match[2])


def deciding(settings: Iterable[str]) -> dict[str, None]:
    """Return the variables that select how NCCL copies, such as `NCCL_ALGO=Ring`."""
    return {setting: None for setting in settings if _DECIDING.match(setting)}


def settings_in(line: str) -> list[str]:
    """Return NCCL's variables in a line, such as `NCCL_ALGO=Ring`."""
    return [f"{name}={value}" for name, value in _SET.findall(line)] if "NCCL_" in line else []


def detect(text: str) -> bool:
    """Return whether a line shows a path, a rank, a network or a warning from NCCL."""
    lines = (line[:_LONGEST] for line in text.splitlines() if "NCCL " in line) if "NCCL " in text else ()
    return any(pattern.search(line) for line in lines for pattern in (_EDGE, _RANK, _USING, _WARN, _SYSTEM))


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is from NCCL."""
    return "NCCL INFO " in lines[0] or "NCCL WARN " in lines[0]


def claims(text: str) -> Claims:
    """Return NCCL's lines; lines of the program around them are known."""
    return by_line(text, is_line, lambda line: True)


def parse(text: str, *, origin: str) -> Machine:
    """Read the log. Raises InputError if it has no GPU and no warning, or is from RCCL."""
    if "RCCL" in text or "/XGMI)" in text:
        raise InputError(f"{origin} is from RCCL, which is for AMD GPUs", "gputopo supports NVIDIA GPUs only")
    reading = NcclLog()
    for line in text.splitlines():
        if "NCCL" in line:
            reading.take(line[:_LONGEST])
    gpus = reading.gpus()
    require_gpus(gpus, origin)
    if not gpus and not reading.warnings:
        raise InputError(f"{origin} is an NCCL log without a GPU", _HINT)
    return reading.machine(gpus)


class Ends(NamedTuple):
    """Ranks and GPUs of a sender and a receiver, and the host that wrote the message."""

    host: str
    a: int
    a_gpu: str
    b: int
    b_gpu: str


@dataclass
class NcclLog:
    """The content of the lines so far. GPUs have the names in the log: bus ids, or NVML's indices."""

    facts: dict[str, str] = field(default_factory=dict)  # version, cuda, network, channels
    ranks: dict[tuple[str, int], tuple[str | None, str]] = field(default_factory=dict)  # NVML's index, bus id
    count: int = 0  # number of ranks
    nodes: int = 1
    edges: dict[tuple[Ends, str], None] = field(default_factory=dict)
    rings: dict[str, None] = field(default_factory=dict)
    trees: dict[int, dict[int, int]] = field(default_factory=dict)  # each rank's parent, by channel
    hops: dict[tuple[str, str, str], Hop] = field(default_factory=dict)  # by host
    no_p2p: dict[tuple[str, str, str, bool], None] = field(default_factory=dict)  # by host; whether bus ids
    cards: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # port and kind, by host
    printers: dict[str, str] = field(default_factory=dict)  # by host: the process whose tree is read
    trees_of: dict[str, nccl_xml.TopologyReading] = field(default_factory=dict)
    numa: int = 0  # node of the present branch
    above: list[tuple[int, str, float]] = field(default_factory=list)  # indentation, address, lowest rate
    rates: dict[tuple[str, int], float] = field(default_factory=dict)  # GPUs' paths, by host, bus id
    nvls: bool | None = None
    settings: dict[str, None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    index: dict[tuple[bool, int], int] = field(default_factory=dict)  # by (whether name is a bus id, name)

    def take(self, line: str) -> dict[str, None]:
        """Read a line, in which messages of several processes may be mixed.

        Return what the line shows about NCCL's copies: P2P, SHM, NET/IB, GDRDMA, NVLS, cards, NCCL_ALGO=Ring.
        """
        if version := version_in(line):
            self.facts["version"] = version[0]
        if "NCCL WARN" in line and (match := _WARN.search(line)):
            self.warnings[" ".join(match[1].split())[:200]] = None
        settings = settings_in(line) if is_line(line) else []
        self.settings |= dict.fromkeys(settings)
        shown = deciding(settings)
        marks = [*_MARK.finditer(line)]
        for mark, following in zip(marks, [*marks[1:], None], strict=False):
            text = line[mark.end() : following.start() if following else None]
            if not self.branch(mark[0], mark[1] or "", text):
                shown |= self.message(mark[1] or "", text)
        return shown

    def branch(self, process: str, host: str, text: str) -> bool:
        """Read a line of the system tree from a host's first process. Returns False for any other line."""
        root, match = _ROOT.match(text), _BRANCH.match(text)
        if root and self.printers.setdefault(host, process) == process:
            self.numa, self.above = int(root[1]), []
        if match is None or self.printers.get(host) != process:
            return False
        kind, rate, bus = match[4], float(match[3]), int(match[5], 16)
        self.above = [bridge for bridge in self.above if bridge[0] < len(match[1])]
        parent = self.above[-1][1] if self.above else None
        where = _address(bus) or match[5]
        tree = self.trees_of.setdefault(host, nccl_xml.TopologyReading(SOURCE, SOURCE))
        if match[2] == "NVL":
            counts = ((round(rate / each), each, most) for each, most in _NVLINKS)
            fits = (count for count, each, most in counts if count <= most and abs(rate - count * each) < 0.1)
            links = tree.nvlinks.setdefault(parent or "", {})
            links["switch" if kind == "NVS" else where] = next(fits, 0)
            return True
        lowest = min([rate, *(above for _, _, above in self.above[-1:])])
        self.above.append((len(match[1]), where, lowest))
        tree.nodes[where] = PciNode(
            address=where,
            root=f"numa{self.numa}",
            parent=parent,
            kind="gpu" if kind == "GPU" else "bridge",
            numa_node=self.numa,
        )
        if kind == "GPU":
            self.rates[host, bus] = lowest
            tree.nvlinks.setdefault(where, {})
        return True

    def message(self, host: str, text: str) -> dict[str, None]:
        """Read a message of a process on a host, and return what it shows about NCCL's copies."""
        if match := _EDGE.search(text):
            a, a_gpu, b, b_gpu, via = match.groups()
            via = _CARD_NUMBER.sub("", via).strip().replace("direct shared memory", "SHM/direct")
            self.edges[Ends(host, int(a), a_gpu or "", int(b), b_gpu or ""), via] = None
            kind, *more = via.split("/")
            shown = [kind] if kind != "NET" else [kind, "/".join((kind, *more[:1])), *{"GDRDMA"} & {*more}]
            return dict.fromkeys(shown)
        elif match := _RING.search(text):
            self.rings[" ".join(match[1].split())] = None
        elif match := _RANK.search(text):
            self.count, self.nodes = int(match["ranks"]), max(self.nodes, int(match["nodes"] or 1))
            if match["bus"]:
                self.ranks.setdefault((host, int(match["rank"])), (match["nvml"], match["bus"]))
        elif match := _PATHS.search(text):
            for other, kind in _PATH.findall(match[2]):
                if kind in _HOPS:
                    self.hops[host, match[1], other] = _HOPS[kind]
        elif match := _NO_P2P.search(text):
            self.no_p2p[host, match[1] or match[3], match[2] or match[4], match[1] is not None] = None
        elif match := _USING.search(text):
            cards = _CARD.findall(match[1])
            self.cards |= {(host, name): (port, kind) for name, port, kind in cards}
            return {f"card {name}": None for name, _, _ in cards}
        else:
            return self.about_all(text)
        return {}

    def about_all(self, text: str) -> dict[str, None]:
        """Read a message about the whole communicator, and return what it shows about NCCL's copies."""
        for name, form in (("network", _NETWORK), ("cuda", _CUDA), ("channels", _CHANNELS)):
            if match := form.search(text):
                self.facts[name] = ".".join(match.groups()).strip()
        for channel, first, rank, last in _TREE.findall(text) if "Trees" in text else ():
            parent = first if "/" in last else last  # up to 2.6 the parent comes first
            self.trees.setdefault(int(channel), {})[int(rank)] = int(parent) if parent.isdecimal() else -1
        match = _NVLS.search(text)
        if match and not self.nvls:
            self.nvls = int(match[2]) > 0 if match[2] else not match[1]
        if match and (match[1] or match[2]):
            return {"NVLS" if int(match[2] or 0) else "no NVLS": None}
        return {"COLLNET": None} if "via COLLNET/" in text else {}

    @property
    def host(self) -> str:
        """The host of the lowest rank."""
        ranks = [(rank, host) for host, rank in self.ranks] or [(ends.a, ends.host) for ends, _ in self.edges]
        return min(ranks or [(0, host) for host in self.trees_of], default=(0, ""))[1]

    @property
    def by_bus(self) -> bool:
        """Whether the ends of paths are bus ids, as in versions up to 2.17."""
        names = [name for ends, _ in self.edges for name in (ends.a_gpu, ends.b_gpu)]
        return any(len(name) > 2 or not name.isdecimal() for name in names if name)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs of the host, with NVML's numbers if the log shows them, else by address."""
        mine, by_bus = self.host, self.by_bus
        local = [ends for ends, via in self.edges if ends.host == mine and not via.startswith("NET")]
        names = [name for ends in local for name in (ends.a_gpu, ends.b_gpu) if name]
        named = dict.fromkeys(int(name, 16 if by_bus else 10) for name in names)
        nvml_of: dict[int, int | None] = dict.fromkeys(bus for host, bus in self.rates if host == mine)
        nvml_of |= dict.fromkeys(named) if by_bus else {}
        ranks = [names for (host, _), names in self.ranks.items() if host == mine]
        nvml_of |= {int(bus, 16): int(nvml) if nvml else None for nvml, bus in ranks}
        names_of_gpus: list[tuple[int | None, int | None]] = [(nvml, bus) for bus, nvml in nvml_of.items()]
        if not by_bus:
            names_of_gpus += [(number, None) for number in named if number not in nvml_of.values()]
        known = [nvml for nvml, _ in names_of_gpus]
        is_numbered = None not in known and len(set(known)) == len(known)
        if not is_numbered:
            names_of_gpus.sort(key=lambda names: names[1] or 0)
        gpus: list[Gpu] = []
        for place, (nvml, bus) in enumerate(names_of_gpus):
            number = nvml if is_numbered and nvml is not None else place
            gpus.append(Gpu(index=number, pci_address=None if bus is None else _address(bus)))
            if bus is not None:
                self.index[True, bus] = number
            if nvml is not None and known.count(nvml) == 1:
                self.index[False, nvml] = number
        return tuple(sorted(gpus, key=lambda gpu: gpu.index))

    def machine(self, gpus: Sequence[Gpu]) -> Machine:
        """Return the machine of the host, with the paths of its GPUs."""
        transports, between = self.transports()
        trees = dict.fromkeys(
            " ".join(f"{rank}->{parent}" for rank, parent in sorted(parents.items()) if parent >= 0)
            for _, parents in sorted(self.trees.items())
        )
        trees.pop("", None)
        mine = self.host
        refused = {self.pair(a, b, by_bus=of) for host, a, b, of in self.no_p2p if host == mine}
        hops = {self.pair(a, b, by_bus=True): hop for (host, a, b), hop in self.hops.items() if host == mine}
        tree = self.trees_of.get(mine, nccl_xml.TopologyReading(SOURCE, SOURCE)).machine()
        tree, _ = aligned(Machine(source=SOURCE, gpus=tuple(gpus)), tree)
        shown = {(link.a, link.b): link for link in tree.links}
        links: list[Link] = []
        missing: dict[str, str] = {at_gpu(EVERY, "name"): "not in NCCL's log"} if gpus else {}
        for a, b in combinations([gpu.index for gpu in gpus], 2):
            by = tuple(sorted(transports.get((a, b), ())))
            p2p = "OK" if any(via.startswith("P2P") for via in by) else None
            p2p, why = ("NOT_SUPPORTED", _REFUSED) if p2p is None and (a, b) in refused else (p2p, None)
            link = shown.get((a, b), Link(a=a, b=b))
            hop = hops.get((a, b), link.hop)
            new = {"hop": hop, "p2p_read": p2p, "p2p_write": p2p, "p2p_reason": why, "nccl": by}
            links.append(replace(link, **new))
            if hop is None:
                missing[at_link(a, b, "hop")] = "in the log only with NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        return Machine(
            source=SOURCE,
            driver=Driver(cuda_version=self.facts.get("cuda")),
            gpus=tuple(gpus),
            links=tuple(links),
            nics=self.nics(),
            missing=missing if gpus else {"gpus": "NCCL's log shows none"},
            contradictions=tree.contradictions,
            kernel_events=tuple(self.slow_paths(mine)),
            nccl=Nccl(
                version=self.facts.get("version"),
                ranks=self.count or None,
                hosts=max(self.hosts, 2 if between else 1),
                network=self.facts.get("network"),
                channels=int(self.facts["channels"]) if "channels" in self.facts else None,
                nvls=self.nvls,
                between_hosts=tuple(sorted(between)),
                rings=tuple(self.rings)[:_MAX_LISTED],
                trees=tuple(trees)[:_MAX_LISTED],
                settings=tuple(self.settings)[:_MAX_LISTED],
                warnings=tuple(self.warnings)[:_MAX_LISTED],
            ),
        )

    def slow_paths(self, mine: str) -> Iterator[KernelEvent]:
        """Yield the GPUs whose path to the CPU is slow in comparison with another GPU's path."""
        rates = {self.index[True, bus]: rate for (host, bus), rate in self.rates.items() if host == mine}
        most = max(rates.values(), default=0.0)
        for gpu, rate in sorted(rates.items()):
            if rate < _SLOW_SHARE * most:
                text = f"GPU {gpu} behind {rate:g} GB/s of PCIe, another one behind {most:g} GB/s"
                yield KernelEvent(kind="program", text=text, device_driver="NCCL")

    @property
    def hosts(self) -> int:
        """Number of hosts in the job."""
        return max(self.nodes, len({host for host, _ in self.ranks} | {ends.host for ends, _ in self.edges}))

    def transports(self) -> tuple[dict[tuple[int, int], set[str]], set[str]]:
        """Return the transports between GPUs of the host, and between hosts. Both may be a network."""
        within: dict[tuple[int, int], set[str]] = {}
        between: set[str] = set()
        by_bus, here = self.by_bus, self.host
        mine = {rank for host, rank in self.ranks if host == here}
        for ends, via in self.edges:
            mine |= {ends.a, ends.b} if ends.host == here and not via.startswith("NET") else set()
        for ends, via in self.edges:
            if via.startswith("NET") and not {ends.a, ends.b} <= mine:
                between.add(via)
            elif ends.host == here and (pair := self.pair(ends.a_gpu, ends.b_gpu, by_bus=by_bus)) is not None:
                within.setdefault(pair, set()).add(via)
        return within, between

    def pair(self, a: str, b: str, *, by_bus: bool) -> tuple[int, int] | None:
        """Return two GPUs by index, the lower first, or None if one is not known or both are the same."""
        ends = [self.index.get((by_bus, int(name, 16 if by_bus else 10))) for name in (a, b) if name]
        known = sorted({end for end in ends if end is not None})
        return (known[0], known[1]) if len(known) == 2 else None

    def nics(self) -> tuple[Nic, ...]:
        """Return the network cards that NCCL uses on the host."""
        mine = self.host
        nics: list[Nic] = []
        for (host, name), (number, kind) in self.cards.items():
            if host == mine:  # without a port number the name is a network interface
                port = NicPort(index=0, interface=name)
                if number:
                    port = NicPort(
                        index=0, rdma_device=name, rdma_port=int(number), link_layer=_FABRICS[kind]
                    )
                nics.append(Nic(index=len(nics), name=name, ports=(port,)))
        return tuple(nics)


def _address(bus: int) -> str | None:
    """Return the PCI address of a bus id: `1b000` is 0000:1b:00.0."""
    return kernel_address(f"{bus >> 20:x}:{bus >> 12 & 255:x}:{bus >> 4 & 255:x}.{bus & 15:x}")


FORMAT = Format(
    "NCCL's log (`NCCL_DEBUG=INFO`)",
    "GPUs, transport of each pair (P2P, SHM, NET), network cards, rings, trees, NVLS, settings",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
