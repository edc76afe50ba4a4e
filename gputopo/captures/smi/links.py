"""`nvidia-smi topo -p2p r|w|rw|n|a|p` and `nvidia-smi nvlink -s` (and `-R`, `-e`): text in, Machine out.

The text of `topo -p2p` does not show which capability it shows; only the command line above it does. Of `r`
the cells are p2p_read, of `w` p2p_write. Where no command line stands there, they are taken as both, and
`missing` states that this is not certain. The tables of NVLink, atomics and proprietary P2P have no place:
they are Unread.

GB/s of `nvlink -s` are those of one direction. Where NVML refuses, its words are the reason in `missing`. Its
lines of GPUs without any of links are a list of GPUs: that of `nvidia-smi -L`, or of the reports about their
environment that PyTorch, vLLM and SGLang print.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import msgspec

from gputopo.captures.bandwidth.texts import peer_links
from gputopo.captures.ledger import Claims, Format, by_line, read_lines
from gputopo.captures.pci import pci_tree
from gputopo.captures.smi.machine import Unanswered, unanswered_of, with_lost
from gputopo.captures.smi.topo_table import GPU, PEER_STATUS, Head, cells_below, header_words, label_of
from gputopo.reference.expectations import expected_gpu
from gputopo.values.errors import InputError
from gputopo.values.machine import Driver, Gap, Gpu, Machine, Mig, NvLink, Unread
from gputopo.values.subject import EVERY, at_gpu, at_link, item

P2P = "nvidia-smi topo -p2p"

_P2P_HINT = "copy the whole output of `nvidia-smi topo -p2p r` again, header and all rows"
# The legend's words, as NVML's names of nvmlGpuP2PStatus_t.
_STATUS = {
    "OK": "OK",
    "CNS": "CHIPSET_NOT_SUPPORTED",
    "GNS": "GPU_NOT_SUPPORTED",
    "TNS": "TOPOLOGY_NOT_SUPPORTED",
    "DR": "DISABLED_BY_REGKEY",
    "NS": "NOT_SUPPORTED",
    "U": "UNKNOWN",
}
_COMMAND = re.compile(r"\btopo\s+(?:-p2p|--p2p_status)[ =]*\"?([rwnap]{1,2})\b")
_PEER_LEGEND = re.compile(r"^[^\w\n]*(?:OK|CNS|GNS|TNS)\s*=\s", re.MULTILINE)
_LEGEND = re.compile(r"\W*(?:Legend:|(?:X|OK|CNS|GNS|TNS|NS|DR|U|NV#|CNS)\s*=\s)")
_CAPABILITY_UNKNOWN = "capability not shown in the text; taken as read and write"

Direction = Literal["p2p_read", "p2p_write"]


@dataclass(slots=True)
class _P2pTable:
    columns: tuple[str, ...]
    capability: str | None  # r, w, rw, n, a, p; None: not shown
    line: int
    rows: dict[str, tuple[int, list[str]]]


def recognise_p2p(text: str) -> bool:
    """Return whether the text has a row of such cells, or one GPU's row and their legend."""
    if re.search(r"GPU\d", text) is None:
        return False
    tables = _p2p_tables(text)
    cells = {cell for table in tables for _, row in table.rows.values() for cell in row}
    said = _PEER_LEGEND.search(text) is not None or any(table.capability for table in tables)
    return bool(cells & PEER_STATUS) or (said and bool(tables))


def begins_p2p(lines: Sequence[str]) -> bool:
    """Return whether a line is the command, or a header with a row of such cells below it."""
    return _COMMAND.search(lines[0]) is not None or cells_below(lines) == "statuses"


def p2p_claims(text: str) -> Claims:
    """Return the lines of the tables, and those of their legends."""
    tables = _p2p_tables(text)
    own = {line for one in tables for line in (one.line, *(line for line, _ in one.rows.values()))}
    legend = by_line(text, _COMMAND.search, _LEGEND.match)
    return Claims(legend.read | own, legend.known - own)


def parse_p2p(text: str, *, origin: str) -> Machine:
    """Read the matrices of a text: one, or one for read and one for write.

    Raises InputError where rows and columns do not fit together.
    """
    tables = [table for table in _p2p_tables(text) if table.rows]
    if not tables:
        raise InputError(f"{origin}: there is no `nvidia-smi topo -p2p` matrix in it", _P2P_HINT)
    columns = tables[0].columns
    statuses: dict[tuple[str, int, int], set[str]] = {}
    unread: list[Unread] = []
    missing: dict[str, str] = {}
    for table in tables:
        _check(table, columns, origin)
        directions = _directions(table.capability)
        for label, (line, cells) in table.rows.items():
            if not directions:
                said = f"{label}: {' '.join(cells)} (topo -p2p {table.capability})"
                unread.append(Unread(source=P2P, line=line, text=said))
            for direction, (column, cell) in product(directions, zip(columns, cells, strict=True)):
                if cell != "X":
                    key = direction, int(label[3:]), int(column[3:])
                    statuses.setdefault(key, set()).add(_STATUS[cell])
        if table.capability is None and len(columns) > 1:
            missing |= {at_link(EVERY, fact=fact): _CAPABILITY_UNKNOWN for fact in ("p2p_read", "p2p_write")}
    gpus = tuple(Gpu(index=index) for index in sorted(int(label[3:]) for label in columns))
    links, unclear, contradictions = peer_links(statuses, P2P)
    return Machine(
        source=P2P,
        gpus=gpus,
        links=links,
        missing=missing | unclear,
        contradictions=contradictions,
        unread=tuple(unread),
    )


def _p2p_tables(text: str) -> list[_P2pTable]:
    tables: list[_P2pTable] = []
    capability: str | None = None
    for number, shown in enumerate(text.splitlines(), 1):
        if "GPU" not in shown and "topo" not in shown:
            continue
        line = shown.replace("|", " ")
        if command := _COMMAND.search(line):
            capability = command[1]
        head: Head | None = header_words(line)
        if head is not None:
            tables.append(_P2pTable(head[0], capability, number, {}))
            capability = None
            continue
        words = line.split()
        label = label_of(words[0]) if words else ""
        if tables and GPU.fullmatch(label):
            row = (number, words[1:])
            # A second row of one name is stored under another name, so that the check meets it.
            tables[-1].rows[label if label not in tables[-1].rows else f"{label} (again)"] = row
    return tables


def _directions(capability: str | None) -> tuple[Direction, ...]:
    if capability is None:
        return "p2p_read", "p2p_write"
    read: tuple[Direction, ...] = ("p2p_read",) if "r" in capability else ()
    return (*read, "p2p_write") if "w" in capability else read


def _check(table: _P2pTable, columns: tuple[str, ...], origin: str) -> None:
    """Check that rows and columns fit and that X stands on the diagonal. Raises InputError."""
    if table.columns != columns or not all(GPU.fullmatch(label) for label in columns):
        raise InputError(f"{origin}: the header in line {table.line} names other devices", _P2P_HINT)
    if len(set(columns)) != len(columns) or set(table.rows) != set(columns):
        raise InputError(
            f"{origin}: rows and header (line {table.line}) do not name the same GPUs", _P2P_HINT
        )
    for label, (line, cells) in table.rows.items():
        if len(cells) != len(columns):
            raise InputError(f"{origin}: the row of {label} (line {line}) has {len(cells)} cells", _P2P_HINT)
        for column, cell in zip(columns, cells, strict=True):
            if (cell == "X") != (column == label) or (cell != "X" and cell not in _STATUS):
                raise InputError(f"{origin}: cell {label}-{column} (line {line}) is {cell[:20]}", _P2P_HINT)


P2P_FORMAT = Format(
    "`nvidia-smi topo -p2p` text",
    "peer access and why it is refused",
    recognise_p2p,
    parse_p2p,
    begins=begins_p2p,
    claims=p2p_claims,
)


NVLINK = "nvidia-smi nvlink"
LIST = "list of GPUs"

_NVLINK_HINT = "copy the whole output of `nvidia-smi nvlink -s` again"
_GPU_LINE = re.compile(
    r"^\W{0,40}(?:GPU models and configuration *: )?GPU (\d{1,3}(?:,\d{1,3}){0,63}): (\S.{0,120}?)"
    r"(?: \(UUID: ([^)\s]{1,60})\).*|\s*)$"
)
_INSTANCE = re.compile(r"^\W{0,40}MIG \S.{0,60}Device +\d{1,3}: \(UUID: MIG-")
_VERSION = re.compile(r"^\W{0,40}(?:Nvidia|CUDA) driver version *: (\d{3}(?:\.\d{1,3}){1,2})\s*$", re.I)
_LINK = re.compile(r"^\W{0,40}Link (\d{1,2})\s*[:,]\s*(.+?)\s*$")
_SPEED = re.compile(r"(\d{1,4}(?:\.\d{1,4})?) GB/s")
_REMOTE = re.compile(r"Remote Device ([0-9a-fA-F:.]{7,20}): Link \d{1,2}")
_COUNTERS = {  # of `nvlink -e`: up to NVLink 4, then of NVLink 5
    "Replay Errors": "replay",
    "Recovery Errors": "recovery",
    "CRC Errors": "crc",
    "Local link integrity Errors": "integrity",
    "Link recovery failed events": "recovery_failed",
    "Effective Errors": "effective",
}
_ERRORS = re.compile(rf"({'|'.join(_COUNTERS)}): (\d{{1,18}})")
_COUNTED = re.compile(r"[A-Z][\w -]{2,40}: [\d.eE+-]{1,30}|\w[\w /]{2,50} supported: (?:true|false)")
_REFUSED = re.compile(
    r"^\W{0,40}(?:NVML: )?((?=.{0,160}(?:NVML|link|GPU))"
    r"(?:Unable|Failed|Error|Not supported|GPU is lost).{1,160})$",
    re.IGNORECASE,
)
_ALL_DOWN = re.compile(r"\ball links are inactive\b", re.IGNORECASE)
_MASKED = re.compile(r"(?:GPU|MIG)-[0Xx-]+")


@dataclass(slots=True)
class _ReportedGpu:
    name: str
    uuid: str | None
    links: dict[int, NvLink] = field(default_factory=dict)
    refused: str | None = None
    is_cut: bool = False
    instances: int | None = None


def recognise_nvlink(text: str) -> bool:
    """Return whether the text has a GPU's line."""
    return "GPU " in text and any(map(_gpu_line, text.splitlines()))


def begins_nvlink(lines: Sequence[str]) -> bool:
    """Return whether a line is a GPU's."""
    return _gpu_line(lines[0]) is not None


def _gpu_line(line: str) -> re.Match[str] | None:
    """Return a line of a GPU, or of equal ones: with a UUID, or with the name of a known model alone."""
    found = _GPU_LINE.match(line) if "GPU " in line else None
    return found if found and (found[3] or expected_gpu(found[2])) else None


def parse_nvlink(text: str, *, origin: str) -> Machine:
    """Read the GPUs and the links of each. Raises InputError if there is none, or two differ of a GPU."""
    reported: dict[int, _ReportedGpu] = {}
    lost: dict[str | int | None, Unanswered] = {}
    gpu: _ReportedGpu | None = None
    driver = Driver()

    def take(number: int, line: str) -> bool:
        nonlocal gpu, driver
        if head := _gpu_line(line):
            uuid = None if _MASKED.fullmatch(head[3] or "GPU-0") else head[3]
            for index in map(int, head[1].split(",")):
                gpu = reported.setdefault(index, _ReportedGpu(head[2], uuid))
                if (gpu.name, gpu.uuid) != (head[2], uuid):
                    twice = f"{origin} lists GPU {index} twice with different values (line {number})"
                    raise InputError(twice, _NVLINK_HINT)
        elif gpu is not None and _INSTANCE.match(line):
            gpu.instances = (gpu.instances or 0) + 1
        elif version := _VERSION.match(line):
            driver = Driver(version=version[1])
        elif silent := unanswered_of(line.strip()):
            lost[silent.address or silent.number] = silent
        elif gpu is not None and (refused := _REFUSED.match(line)):
            gpu.refused = refused[1].strip()
        elif gpu is not None and line.strip() in ("...", "…"):
            gpu.is_cut = True
        else:
            return gpu is not None and _add(gpu, line, number, origin)
        return True

    lines = read_lines(text, take)
    if not reported:
        raise InputError(f"{origin} has no GPU of `nvidia-smi nvlink -s` in it", _NVLINK_HINT)
    source = NVLINK if any(one.links or one.refused or one.is_cut for one in reported.values()) else LIST
    return with_lost(_machine(reported, driver, source, lines.unread(source)), lost.values())


def _add(gpu: _ReportedGpu, line: str, number: int, origin: str) -> bool:
    """Add the content of a line to a link; False if the line is not known."""
    match = _LINK.match(line)
    if match is None:
        return False
    index, said = int(match[1]), match[2]
    old = gpu.links.get(index, NvLink(link=index))
    if errors := _ERRORS.fullmatch(said):
        counts = old.errors | {_COUNTERS[errors[1]]: int(errors[2])}
        gpu.links[index] = msgspec.structs.replace(old, errors=counts)
        return True
    if speed := _SPEED.fullmatch(said):
        new = msgspec.structs.replace(old, active=True, gb_per_s=float(speed[1]))
    elif said.strip("<>").lower() == "inactive":
        new = msgspec.structs.replace(old, active=False)
    elif (remote := _REMOTE.fullmatch(said)) and (address := pci_tree.address(remote[1])):
        new = msgspec.structs.replace(old, remote_pci_address=address)
    else:
        return _COUNTED.fullmatch(said) is not None  # packets, bit error rates
    if old.active is not None and new != old:
        raise InputError(
            f"{origin} lists link {index} twice with different values (line {number})", _NVLINK_HINT
        )
    gpu.links[index] = new
    return True


def _machine(
    reported: dict[int, _ReportedGpu], driver: Driver, source: str, unread: tuple[Unread, ...]
) -> Machine:
    missing: dict[str, str] = {}
    gpus: list[Gpu] = []
    gaps: list[Gap] = []
    for index, gpu in sorted(reported.items()):
        if gpu.is_cut or sorted(gpu.links) != [*range(len(gpu.links))]:
            gpu.links, gpu.refused = {}, "the text leaves some of its links out"
            gaps.append(Gap(source=NVLINK, text=f"some of the links of GPU {index} are left out"))
        if not gpu.links and _ALL_DOWN.search(gpu.refused or ""):
            gpu.links = _down_like_its_peers(gpu, reported.values())
        links = tuple(gpu.links[number] for number in sorted(gpu.links)) or None
        if links is None:
            missing[at_gpu(index, "nvlinks")] = gpu.refused or "no line about its links"
        elif gpu.refused and not _ALL_DOWN.search(gpu.refused):
            missing[at_gpu(index, item("nvlinks", EVERY))] = gpu.refused
        if gpu.uuid is None:
            missing[at_gpu(index, "uuid")] = "masked or left out in the text"
        mig = Mig(mode=True, instances=gpu.instances) if gpu.instances else Mig()
        gpus.append(Gpu(index=index, name=gpu.name, uuid=gpu.uuid, mig=mig, nvlinks=links))
    return Machine(
        source=source, driver=driver, gpus=tuple(gpus), missing=missing, unread=unread, gaps=tuple(gaps)
    )


def _down_like_its_peers(gpu: _ReportedGpu, reported: Iterable[_ReportedGpu]) -> dict[int, NvLink]:
    """Return the links of a GPU that are all down, as many as a GPU of its model here has; else none."""
    same_model = [other.links for other in reported if other.name == gpu.name]
    return {number: NvLink(link=number, active=False) for number in max(same_model, key=len)}


NVLINK_FORMAT = Format(
    "`nvidia-smi nvlink -s` text; or a list of GPUs: `nvidia-smi -L`, environment report of PyTorch, vLLM or "
    "SGLang",
    "state and speed of NVLinks; or names, UUIDs, MIG instances",
    recognise_nvlink,
    parse_nvlink,
    begins=begins_nvlink,
)
