"""Links between GPUs, network cards and the PCI tree, as frozen values."""

import functools
from enum import Enum
from typing import Literal

import msgspec

from gputopo.values.fields import Value


@functools.total_ordering
class Hop(Enum):
    """How far apart two devices are on PCIe, by the names of `nvidia-smi topo -m`. Nearer is smaller.

    `level` is NVML's number for it (nvmlGpuTopologyLevel_t).
    """

    INTERNAL = "INTERNAL"  # two GPUs of one board
    PIX = "PIX"  # at most one PCIe switch between them
    PXB = "PXB"  # several switches, no host bridge
    PHB = "PHB"  # a host bridge: through the CPU's root complex
    NODE = "NODE"  # several host bridges of one NUMA node
    SYS = "SYS"  # the link between NUMA nodes (SOC in old captures)

    @property
    def level(self) -> int:
        """NVML's number: 0, 10, 20, 30, 40, 50 from near to far."""
        return _LEVELS[self]

    @classmethod
    def from_level(cls, level: int) -> "Hop":
        """Give the hop of an NVML level. Raises ValueError for a number that NVML does not define."""
        for hop, number in _LEVELS.items():
            if number == level:
                return hop
        raise ValueError(f"{level} is no NVML topology level")

    def __lt__(self, other: object) -> bool:
        return self.level < other.level if isinstance(other, Hop) else NotImplemented


_LEVELS = {hop: 10 * position for position, hop in enumerate(Hop)}


class Link(Value, frozen=True):
    """The way between two GPUs, low index first. NVLinks are counted beside the PCIe hop, not instead of it.

    `hop` is None where a capture shows only `NV4`. Raises ValueError if `a` is not below `b`.
    """

    a: int
    b: int
    hop: Hop | None = None
    nvlinks: int | None = None  # None: not known; 0: none
    p2p_read: str | None = None
    p2p_write: str | None = None
    p2p_reason: str | None = None

    def __post_init__(self) -> None:
        if self.a >= self.b:
            raise ValueError(f"a link is written low index first, got {self.a}, {self.b}")


class Nic(Value, frozen=True):
    """A network card of the matrix. `hops` maps `gpu:0` or `nic:1` to how far that device is."""

    index: int
    name: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    hops: dict[str, Hop] = msgspec.field(default_factory=dict)


class PciNode(Value, frozen=True):
    """One function of the PCI tree: a GPU, a NIC or a bridge on the way from one to its root.

    `parent` is the bridge above, None directly under the root complex (`root`, such as `pci0000:00`).
    Speeds are GT/s per lane. Read from /sys/bus/pci/devices/<address>/.
    """

    address: str
    root: str
    parent: str | None = None
    kind: Literal["gpu", "nic", "bridge", "other"] = "other"
    vendor_id: str | None = None  # "10de"
    device_id: str | None = None
    class_code: str | None = None  # "030000"
    driver: str | None = None
    numa_node: int | None = None
    speed_gt_per_s: float | None = None
    max_speed_gt_per_s: float | None = None
    width: int | None = None
    max_width: int | None = None
    acs: bool | None = None  # access control sends peer traffic up to the root
    aer: dict[str, int] | None = None  # {"correctable": 0, "nonfatal": 0, "fatal": 0}
    name: str | None = None  # as lspci or hwloc call it


def same_address(a: str, b: str) -> bool:
    """Return whether two PCI addresses are the same; the domain may have four or eight digits."""
    return short_address(a) == short_address(b)


def short_address(address: str) -> str:
    """Return a PCI address in lower case with a domain without leading zeros: equal for equal addresses."""
    *domain, bus, slot = f":{address.lower()}".rsplit(":", 2)
    return f"{''.join(domain).strip(':').lstrip('0')}:{bus}:{slot}"
