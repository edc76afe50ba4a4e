"""The machine as frozen values, and their JSON form (`gputopo.machine/1`).

A fact that is absent is None, and `Machine.missing` holds the reason under the fact's path
(`gpus[0].clocks_mhz.memory.now`). Units are in the names. Building a value never asks the machine anything.
"""

import functools
from enum import Enum
from typing import Any, Literal

import msgspec

from gputopo.values.bandwidth import Bandwidth
from gputopo.values.fields import Value

# Imported from here, too.
from gputopo.values.gpu import (
    FABRIC_STATES as FABRIC_STATES,
)
from gputopo.values.gpu import (
    ClockMhz as ClockMhz,
)
from gputopo.values.gpu import (
    ClocksMhz as ClocksMhz,
)
from gputopo.values.gpu import (
    Ecc as Ecc,
)
from gputopo.values.gpu import (
    Fabric as Fabric,
)
from gputopo.values.gpu import (
    Gpu as Gpu,
)
from gputopo.values.gpu import (
    GpuProcess as GpuProcess,
)
from gputopo.values.gpu import (
    MemoryMib as MemoryMib,
)
from gputopo.values.gpu import (
    Mig as Mig,
)
from gputopo.values.gpu import (
    NvLink as NvLink,
)
from gputopo.values.gpu import (
    Pcie as Pcie,
)
from gputopo.values.gpu import (
    PowerW as PowerW,
)
from gputopo.values.gpu import (
    RemappedRows as RemappedRows,
)
from gputopo.values.gpu import (
    RetiredPages as RetiredPages,
)
from gputopo.values.gpu import (
    SpareRows as SpareRows,
)
from gputopo.values.gpu import (
    TemperatureC as TemperatureC,
)
from gputopo.values.gpu import (
    Throttle as Throttle,
)
from gputopo.values.gpu import (
    UtilizationPercent as UtilizationPercent,
)
from gputopo.values.history import GpuHistory


class NumaNode(Value, frozen=True):
    """One NUMA node: its CPUs as a list ("0-9,20-29"), its memory, its distances to nodes 0, 1, ..."""

    index: int
    cpus: str | None = None
    memory_mib: int | None = None
    distances: tuple[int, ...] | None = None


class Host(Value, frozen=True):
    """The computer around the GPUs. `name` identifies it, and is left out unless it is asked for.

    `fingerprint`: of the machine id, the same in every recording of a host; the id does not follow from it.
    """

    name: str | None = None
    fingerprint: str | None = None
    cpu_model: str | None = None
    sockets: int | None = None
    physical_cores: int | None = None
    logical_cpus: int | None = None
    memory_mib: int | None = None
    numa_nodes: tuple[NumaNode, ...] | None = None
    kernel: str | None = None
    iommu: str | None = None  # off, passthrough, translated
    acs: str | None = None  # off, on
    container: str | None = None  # docker, podman, kubernetes, lxc, ...
    virtual_machine: str | None = None


DriverStatus = Literal[
    "ok",  # NVML answers
    "no_device",  # no NVIDIA device on this machine
    "not_loaded",  # a device, but the kernel module is not loaded
    "library_missing",  # a device, but no libnvidia-ml.so.1
    "too_old",  # older than what the CUDA runtime of a program needs
    "not_ready",  # the fabric manager of NVSwitches has not started (CUDA error 802)
    "version_mismatch",  # library and kernel module are of different versions
    "no_permission",  # /dev/nvidia* may not be opened, or is not there (a container)
    "other_driver",  # a device that is bound to another kernel driver (nouveau, vfio-pci)
    "hung",  # a call of NVML did not return
    "crashed",  # a call of NVML ended the process that made it
    "failed",  # NVML failed otherwise
    "not_read",  # a capture without it
]


class Driver(Value, frozen=True):
    """The NVIDIA driver: its state, and its versions as NVML reports them."""

    status: DriverStatus = "not_read"
    version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    kernel_module_version: str | None = None
    open_kernel_module: bool | None = None
    # nvidia_peermem or nv_peer_mem, by which RDMA cards access GPU memory; "none" where neither is loaded
    peer_memory_module: str | None = None
    detail: str | None = None  # driver message where it failed


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


class Link(Value, frozen=True):
    """The path between two GPUs, low index first. NVLinks are counted beside the PCIe hop, not instead of it.

    `hop` is None where a capture shows only `NV4`. `nccl`: NCCL's transports by its log (`P2P/CUMEM`).
    Raises ValueError if `a` is not below `b`.
    """

    a: int
    b: int
    hop: Hop | None = None
    nvlinks: int | None = None  # None: not known; 0: none
    p2p_read: str | None = None
    p2p_write: str | None = None
    p2p_reason: str | None = None
    nccl: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.a >= self.b:
            raise ValueError(f"a link is written low index first, got {self.a}, {self.b}")


RETRIES = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "duplicate_request",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
)
"""Error counters of an RDMA port that count in operation too (congestion): one by itself says nothing."""


class NicPort(Value, frozen=True):
    """A port of a network card, as RDMA device (`ibstat` prints it) and as network interface (`ip -s link`).

    Read from /sys/class/infiniband/<device>/ports/<port>/ and /sys/class/net/<interface>/. Rates are in one
    direction. `max_rate_gbit_per_s`: of the port by its link modes (`ethtool`), which InfiniBand has not.
    """

    index: int
    rdma_device: str | None = None  # mlx5_0
    rdma_port: int | None = None
    interface: str | None = None  # eth0, ib0
    link_layer: str | None = None  # InfiniBand, Ethernet
    state: str | None = None  # ACTIVE, DOWN, INIT, ARMED
    phys_state: str | None = None  # LinkUp, Polling
    operstate: str | None = None  # up, down
    enabled: bool | None = None  # ip link set INTERFACE up
    carrier: bool | None = None
    duplex: str | None = None
    rate_gbit_per_s: float | None = None
    max_rate_gbit_per_s: float | None = None
    lanes: int | None = None  # of InfiniBand: 4X HDR
    mtu_bytes: int | None = None
    errors: dict[str, int] | None = None  # by the kernel's names: symbol_error, ...

    @property
    def name(self) -> str:
        """`mlx5_0` (`mlx5_0/2` for a port other than the first), else the interface, else the number."""
        if self.rdma_device is not None:
            return f"{self.rdma_device}/{self.rdma_port}" if (self.rdma_port or 1) > 1 else self.rdma_device
        return self.interface or f"port {self.index}"

    @property
    def up(self) -> bool | None:
        """Whether the link is up; None where nothing reports it."""
        if self.state is not None:
            return self.state == "ACTIVE"
        return self.carrier if self.operstate in (None, "unknown") else self.operstate == "up"


class Nic(Value, frozen=True):
    """A network card: one PCI function. `hops` maps `gpu:0` or `nic:1` to how far that device is.

    `ports`: None where the source does not show them. `psid`: the board's type, of which firmware is made
    (`ibv_devinfo`, `mlxfwmanager`); `hca_type`: its chip (`ibstat`). Virtual functions, bonds and interfaces
    without a device are no cards.
    """

    index: int
    name: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    firmware_version: str | None = None
    psid: str | None = None
    hca_type: str | None = None
    ports: tuple[NicPort, ...] | None = None
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
    numa_node: int | None = None
    speed_gt_per_s: float | None = None
    max_speed_gt_per_s: float | None = None
    width: int | None = None
    max_width: int | None = None
    acs: bool | None = None  # access control redirects peer traffic through the root complex
    aer: dict[str, int] | None = None
    name: str | None = None  # as lspci reports it


class Contradiction(Value, frozen=True):
    """Two sources that disagree on a fact; the first one given stands in the machine."""

    fact: str  # "links[0-1].hop"
    said: dict[str, str]  # source: its value


class Unread(Value, frozen=True):
    """A line of a capture that was not understood."""

    source: str
    line: int
    text: str


KernelEventKind = Literal[
    "xid",  # of a GPU, by the NVIDIA kernel module
    "sxid",  # of an NVSwitch
    "lost",  # fallen off the bus
    "aer",  # PCIe Advanced Error Reporting
    "pcie",  # another PCIe error: containment (DPC), link down, device inaccessible
    "nvlink",  # of NVLink, without an Xid
    "nvrm",  # another error of the NVIDIA kernel module, or of the fabric manager
    "program",  # what a program reports: gpu_burn, dcgmi diag, an error of CUDA
]


class KernelEvent(Value, frozen=True):
    """An error in a log, or of a program. Those of one kind, code, severity and device are one, with a count.

    `time`, `last_time`: of the first and the last, as far as the log has them: ISO 8601, `Mar 05 10:00:00`
    where the log has no year, `1234.567 s` since boot.
    """

    kind: KernelEventKind
    text: str  # of the first
    code: int | None = None
    # Of AER corrected, nonfatal or fatal, of an SXid or an Xid of NVLink 5 nonfatal or fatal, of Xid 154 the
    # recovery action.
    severity: str | None = None
    pci_address: str | None = None
    device_driver: str | None = None  # of the device that AER names; else the program that reports it
    count: int = 1
    time: str | None = None
    last_time: str | None = None
    earlier: bool = False  # before the machine booted last, or the NVIDIA module was loaded last


class Nccl(Value, frozen=True):
    """How NCCL connects the GPUs of a job, by its log (`NCCL_DEBUG=INFO`). Rings and trees are of ranks.

    `between_hosts`: transports of GPUs of different hosts. `settings`: variables, `NCCL_P2P_DISABLE=1`.
    """

    version: str | None = None
    ranks: int | None = None
    hosts: int = 1
    network: str | None = None  # IB, Socket, AWS Libfabric, ...
    channels: int | None = None
    nvls: bool | None = None  # whether NVLink switches reduce (NVLink SHARP)
    between_hosts: tuple[str, ...] = ()
    rings: tuple[str, ...] = ()  # `0 1 2 3`
    trees: tuple[str, ...] = ()  # `1->0 2->1`: each rank and its parent
    settings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class TensorFlowInstall(Value, frozen=True):
    """The TensorFlow of the Python that runs gputopo, read without importing it. None: not known."""

    distribution: str | None = None  # tensorflow, tensorflow-cpu, ...
    platform: str | None = None  # x86_64, aarch64
    version: str | None = None
    is_cuda_build: bool | None = None
    cuda_version: str | None = None  # that it was built with
    cudnn_version: str | None = None  # that it would load
    kernels: tuple[str, ...] = ()  # that it contains: `sm_80` for that architecture, `compute_90` as PTX
    missing_libraries: tuple[str, ...] | None = None  # CUDA libraries that are not installed
    unreached_libraries: tuple[str, ...] = ()  # installed in folders where TensorFlow does not look


class LineCounts(Value, frozen=True):
    """How many lines of a capture were read, known to hold nothing about the machine, and not understood."""

    source: str
    read: int
    known: int
    not_understood: int


class Gap(Value, frozen=True):
    """A part of a capture that is missing: what it should hold is unknown, and faults in it are too.

    `attached`: how many GPUs the capture counts, `listed`: how many it shows, where these differ.
    """

    source: str
    text: str
    attached: int | None = None
    listed: int | None = None


class Sample(Value, frozen=True):
    """The GPUs at one time.

    `gpus`: facts of each GPU by path, `{"index": 0, "power_w.draw": 27.6}`: those that pass (load, clocks,
    link now, errors counted), and settings that were not those of the machine. Empty: as in `Machine.gpus`.
    See gputopo.values.samples.
    """

    source: str
    time: str | None = None  # in ISO 8601, None where the source has none
    gpus: tuple[dict[str, Any], ...] = ()


class Machine(Value, frozen=True, tag_field="schema", tag="gputopo.machine/1"):
    """All that is known of one machine, and where it came from.

    `samples`: in order of time, as far as it is known. Where there are several, `gpus` has what lasts and, of
    what passes, the facts of one of them: the last by time, never a mixture. `series`: what was counted over
    all samples of a log, of which `samples` are those that rules need.
    """

    source: str  # live, recording, nvidia-smi topo, ...; several are joined by " + "
    host: Host = Host()
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    pci: tuple[PciNode, ...] = ()
    bandwidth: Bandwidth | None = None
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()
    unread: tuple[Unread, ...] = ()
    lines: tuple[LineCounts, ...] = ()
    samples: tuple[Sample, ...] = ()
    gaps: tuple[Gap, ...] = ()
    kernel_events: tuple[KernelEvent, ...] = ()
    nccl: Nccl | None = None
    tensorflow: TensorFlowInstall | None = None
    series: tuple[GpuHistory, ...] = ()

    @property
    def by_index(self) -> dict[int, Gpu]:
        """The GPUs by index."""
        return {gpu.index: gpu for gpu in self.gpus}

    def link(self, a: int, b: int) -> Link | None:
        """Return the link between two GPUs by index, in either order, or None if it is not known."""
        low, high = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (low, high)), None)

    def temperatures(self, gpu: int) -> list[int]:
        """Return the temperatures of a GPU over the samples, by its index."""
        facts = (one for sample in self.samples for one in sample.gpus if one["index"] == gpu)
        return [one["temperature_c.gpu"] for one in facts if one.get("temperature_c.gpu") is not None]
