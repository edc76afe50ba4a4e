"""Links between GPUs, network cards and the PCI tree, as frozen values."""

import functools
from enum import Enum
from typing import Annotated, Literal

import msgspec

from gputopo.values.fields import Fact, Metric, Value


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
        """Return the hop of an NVML level. Raises ValueError for a number that NVML does not define."""
        for hop, number in _LEVELS.items():
            if number == level:
                return hop
        raise ValueError(f"{level} is no NVML topology level")

    def __lt__(self, other: object) -> bool:
        return self.level < other.level if isinstance(other, Hop) else NotImplemented


_LEVELS = {hop: 10 * position for position, hop in enumerate(Hop)}


def same_address(a: str, b: str) -> bool:
    """Return whether two PCI addresses are the same; the domain may have four or eight digits."""
    return short_address(a) == short_address(b)


def short_address(address: str) -> str:
    """Return a PCI address in lower case with a domain without leading zeros: equal for equal addresses."""
    *domain, bus, slot = f":{address.lower()}".rsplit(":", 2)
    return f"{''.join(domain).strip(':').lstrip('0')}:{bus}:{slot}"


def _same_peer_access(a: str, b: str) -> bool:
    """Return whether two statuses agree: CUDA reports no more than NOT_SUPPORTED."""
    return "OK" not in (a, b) if "NOT_SUPPORTED" in (a, b) else a == b


class Link(Value, frozen=True):
    """The path between two GPUs, low index first. NVLinks are counted beside the PCIe hop, not instead of it.

    `hop` is None where a capture shows only `NV4`. Raises ValueError if `a` is not below `b`.
    """

    a: int
    b: int
    hop: Annotated[Hop | None, Fact("PCIe hop")] = None
    nvlinks: Annotated[  # None: not known; 0: none
        int | None, Fact("NVLinks", metric=Metric("link_nvlinks", "NVLinks between two GPUs"))
    ] = None
    p2p_read: Annotated[str | None, Fact("peer read", same=_same_peer_access)] = None
    p2p_write: Annotated[str | None, Fact("peer write", same=_same_peer_access)] = None
    p2p_reason: Annotated[str | None, Fact("peer access reason")] = None

    def __post_init__(self) -> None:
        if self.a >= self.b:
            raise ValueError(f"a link is written low index first, got {self.a}, {self.b}")


class Nic(Value, frozen=True):
    """A network card of the matrix. `hops` maps `gpu:0` or `nic:1` to how far that device is."""

    index: int
    name: Annotated[str | None, Fact(info=True)] = None
    pci_address: Annotated[str | None, Fact("PCI address", same=same_address, info=True)] = None
    numa_node: Annotated[int | None, Fact("NUMA node", info=True)] = None
    hops: dict[str, Hop] = msgspec.field(default_factory=dict)


class PciNode(Value, frozen=True):
    """One function of the PCI tree: a GPU, a NIC or a bridge on the path from one to its root.

    `parent` is the bridge above, None directly under the root complex (`root`, such as `pci0000:00`; "" where
    it is unknown). Speeds are GT/s per lane. Read from /sys/bus/pci/devices/<address>/. The facts of a link
    now, counters and names are states: every tool takes names from a list of its own.
    """

    address: str
    root: str
    parent: str | None = None
    kind: Literal["gpu", "nic", "bridge", "other"] = "other"
    vendor_id: str | None = None  # "10de"
    device_id: str | None = None
    class_code: str | None = None  # "030000"
    driver: str | None = None
    numa_node: Annotated[int | None, Fact("NUMA node")] = None
    speed_gt_per_s: Annotated[
        float | None,
        Fact(
            "speed",
            unit="GT/s",
            stability="volatile",
            metric=Metric(
                "pci_link_speed_transfers_per_second", "transfers per second and lane of a PCI link now"
            ),
        ),
    ] = None
    max_speed_gt_per_s: Annotated[
        float | None,
        Fact(
            "max speed",
            unit="GT/s",
            metric=Metric(
                "pci_link_speed_max_transfers_per_second",
                "transfers per second and lane of a PCI link at most",
            ),
        ),
    ] = None
    width: Annotated[
        int | None,
        Fact(unit="lanes", stability="state", metric=Metric("pci_link_lanes", "lanes of a PCI link now")),
    ] = None
    max_width: Annotated[
        int | None, Fact(unit="lanes", metric=Metric("pci_link_lanes_max", "lanes of a PCI link at most"))
    ] = None
    acs: Annotated[  # access control redirects peer traffic through the root complex
        bool | None,
        Fact("ACS", metric=Metric("pci_acs", "whether access control sends peer traffic up to the root")),
    ] = None
    aer: Annotated[  # {"correctable": 0, "nonfatal": 0, "fatal": 0}
        dict[str, int] | None,
        Fact(
            "AER errors",
            stability="state",
            counter=True,
            metric=Metric("pci_errors_total", "errors that a PCI device reported (AER)", by="severity"),
        ),
    ] = None
    name: Annotated[str | None, Fact(stability="state")] = None  # as lspci or hwloc call it
