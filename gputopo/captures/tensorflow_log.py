"""The lines in which TensorFlow 1.x and 2.x list their GPUs, in any log: text in, Machine out.

TensorFlow uses CUDA's numbers of the visible GPUs: that number is `cuda_index`. TensorFlow 1 prints
cudaDeviceProp.clockRate, the core's boost clock, as `memoryClockRate`; TensorFlow 2 prints the same number as
`coreClock`. It is stored as the core clock. The matrix of Y and N is cuDeviceCanAccessPeer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gputopo.captures.bandwidth.texts import access_links
from gputopo.captures.ledger import Claims, Format, Lines, read_lines
from gputopo.reference import address_order
from gputopo.values.errors import InputError
from gputopo.values.facts import at_gpu
from gputopo.values.fields import kernel_address
from gputopo.values.machine import ClockMhz, ClocksMhz, Contradiction, Gpu, Machine, MemoryMib, Unread

SOURCE = "tensorflow log"

_HINT = "give the whole log of a run on GPUs, with TensorFlow's own lines (TF_CPP_MIN_LOG_LEVEL=0)"
_FOUND = re.compile(r"Found device (\d{1,3}) with properties")
_CREATED = re.compile(
    r"-> (?:physical GPU )?\(?device: (\d{1,3}), name: (.{1,100}?), pci bus id: ([0-9a-fA-F:.]{7,20})"
)
_NAME = re.compile(r"\bname: (.{1,100}?)(?= major: | computeCapability: |\s*$)")
_ADDRESS = re.compile(r"\bpciBusID:? ([0-9a-fA-F:.]{7,20})")
_CORE = re.compile(r"\bcoreClock: (\d{1,3}(?:\.\d{1,6})?)GHz")
_CORE_OF_1 = re.compile(r"\bmemoryClockRate ?\(GHz\):? (\d{1,3}(?:\.\d{1,6})?)")
_TOTAL = re.compile(r"\b(?:deviceMemorySize: |totalMemory: |Total memory: )(\d{1,6}(?:\.\d{1,4})?)([MGT])iB")
_FREE = re.compile(r"\b(?:freeMemory: |Free memory: )(\d{1,6}(?:\.\d{1,4})?)([MGT])iB")
_MATRIX = re.compile(r"\bedge matrix:|\bDMA:((?: \d{1,3})*)\s*$")
_COLUMNS = re.compile(r"(?:^|\] )\s*(\d{1,3}(?: \d{1,3})*)\s*$")
_ROW = re.compile(r"(?:^|\] )\s*(\d{1,3}):\s+([YN](?: [YN])*)\s*$")
_OF_TENSORFLOW = re.compile(
    r"\b[IWEF]\d{0,4} ?(?:\S+ )?(?:\S+ )?(?:external/\S+/)?tensorflow/|^(?:major|minor): "
)
_MIB = {"M": Decimal(1), "G": Decimal(1024), "T": Decimal(1024 * 1024)}
_NOT_MEMORY = "TensorFlow 1 prints the core's boost clock as memoryClockRate"


@dataclass(slots=True)
class _Device:
    """One GPU according to a block of lines."""

    number: int
    line: int
    address: str | None = None
    name: str | None = None
    core_mhz: int | None = None
    total_mib: int | None = None
    free_mib: int | None = None
    is_version_1: bool = False


@dataclass(slots=True)
class _Reading:
    devices: list[_Device] = field(default_factory=list)
    peers: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    block: _Device | None = None
    columns: list[int] | None = None  # GPUs of the matrix columns
    in_matrix: bool = False

    def read(self, text: str) -> Lines:
        """Read a log."""
        return read_lines(text, self.take, bare=str.rstrip, longest=2000)

    def take(self, number: int, line: str) -> bool:
        """Read one line. Returns False if it is not about GPUs."""
        if match := _FOUND.search(line):
            self.block = _Device(int(match[1]), number)
            self.devices.append(self.block)
        elif created := _CREATED.search(line):
            address = kernel_address(created[3])
            self.devices.append(_Device(int(created[1]), number, address, created[2]))
        elif matrix := _MATRIX.search(line):
            self.in_matrix = True
            self.columns = [int(word) for word in (matrix[1] or "").split()] or None
        elif self.in_matrix and self.columns is None and (head := _COLUMNS.search(line)):
            self.columns = [int(word) for word in head[1].split()]
        elif self.columns is not None and (row := _ROW.search(line)):
            cells = row[2].split()
            if len(cells) != len(self.columns):
                return False
            for column, cell in zip(self.columns, cells, strict=True):
                if column != int(row[1]):
                    self.peers.setdefault((int(row[1]), column), set()).add(cell)
        else:
            return self.block is not None and _add_facts(self.block, line)
        return True


def detect(text: str) -> bool:
    """Return whether the text has a line in which TensorFlow lists a GPU."""
    return any(pattern.search(text) for pattern in (_FOUND, _CREATED, _ADDRESS))


def begins(lines: Sequence[str]) -> bool:
    """Return whether TensorFlow lists a GPU in a line."""
    return detect(lines[0])


def claims(text: str) -> Claims:
    """Return the lines about GPUs; other lines that TensorFlow wrote are known."""
    lines = _Reading().read(text)
    return Claims(lines.taken, frozenset(n for n, line in lines.rest.items() if _OF_TENSORFLOW.search(line)))


def parse(text: str, *, origin: str) -> Machine:
    """Read the GPUs of a log. Raises InputError if no line has a GPU with its address."""
    reading = _Reading()
    reading.read(text)
    machine = _machine(reading)
    if not machine.gpus:
        raise InputError(f"{origin} has no line with the PCI address of a GPU", _HINT)
    return machine


def _add_facts(block: _Device, line: str) -> bool:
    """Add the facts in a line to the device of its block; the first number of each kind is used."""
    if address := _ADDRESS.search(line):
        block.address = block.address or kernel_address(address[1])
    if name := _NAME.search(line):
        block.name = block.name or name[1].strip()
    clock = _CORE.search(line) or _CORE_OF_1.search(line)
    if clock and block.core_mhz is None:
        block.core_mhz = int(Decimal(clock[1]) * 1000)
        block.is_version_1 = "memoryClockRate" in line
    if (total := _TOTAL.search(line)) and block.total_mib is None:
        block.total_mib = round(Decimal(total[1]) * _MIB[total[2]])
    if (free := _FREE.search(line)) and block.free_mib is None:
        block.free_mib = round(Decimal(free[1]) * _MIB[free[2]])
    return bool(address or name or clock or total or free)


def _machine(reading: _Reading) -> Machine:
    by_address: dict[str, list[_Device]] = {}
    for device in reading.devices:
        if device.address is None:
            text = f"device {device.number} has no readable PCI address"
            reading.unread.append(Unread(source=SOURCE, line=device.line, text=text))
        else:
            by_address.setdefault(device.address, []).append(device)
    missing: dict[str, str] = {}
    contradictions: list[Contradiction] = []
    addresses = sorted(by_address, key=address_order)
    numbers = _numbers(by_address)
    gpus = tuple(
        _gpu(index, where, by_address[where], numbers.get(where), missing, contradictions)
        for index, where in enumerate(addresses)
    )
    at = {gpu.cuda_index: gpu.index for gpu in gpus if gpu.cuda_index is not None}
    access = {
        (at[a], at[b]): {cell == "Y" for cell in cells}
        for (a, b), cells in reading.peers.items()
        if a in at and b in at
    }
    links, unclear, differing = access_links(access, SOURCE)
    return Machine(
        source=SOURCE,
        gpus=gpus,
        links=links,
        missing=missing | unclear,
        contradictions=(*contradictions, *differing),
        unread=tuple(reading.unread),
    )


def _numbers(by_address: dict[str, list[_Device]]) -> dict[str, int]:
    """Return the CUDA number of each address that has only one, if no other address has the same number.

    In a log of several processes with one visible GPU each, every process calls its GPU device 0.
    """
    numbers_at = {where: {device.number for device in devices} for where, devices in by_address.items()}
    return {
        where: next(iter(numbers))
        for where, numbers in numbers_at.items()
        if len(numbers) == 1 and sum(1 for others in numbers_at.values() if numbers & others) == 1
    }


def _gpu(
    index: int,
    where: str,
    devices: list[_Device],
    number: int | None,
    missing: dict[str, str],
    contradictions: list[Contradiction],
) -> Gpu:
    """Return one GPU from all its blocks, in order."""
    names = dict.fromkeys(device.name for device in devices if device.name)
    if len(names) > 1:
        said = {f"{SOURCE} ({place})": name for place, name in enumerate(names, 1)}
        contradictions.append(Contradiction(fact=at_gpu(index, "name"), said=said))
    core = next((device for device in devices if device.core_mhz is not None), devices[0])
    if core.is_version_1:
        missing[at_gpu(index, "clocks_mhz.memory.now")] = _NOT_MEMORY
    if number is None:
        missing[at_gpu(index, "cuda_index")] = "processes in this log number it differently"
    return Gpu(
        index=index,
        cuda_index=number,
        name=next(iter(names), None),
        pci_address=where,
        clocks_mhz=ClocksMhz(graphics=ClockMhz(boost=core.core_mhz)),
        memory_mib=MemoryMib(
            total=next((device.total_mib for device in devices if device.total_mib is not None), None),
            free=next((device.free_mib for device in devices if device.free_mib is not None), None),
        ),
    )


FORMAT = Format(
    "a TensorFlow log",
    "names, PCI addresses, memory, peer matrix",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
