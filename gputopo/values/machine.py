"""The machine as frozen values, and their JSON form (`gputopo.machine/1`).

A missing fact is None, and `Machine.missing` has the reason under the fact's path
(`gpus[0].clocks_mhz.memory.now`). Units are in the names. Creating a value never reads the machine.
"""

import functools
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec

from gputopo.values.bandwidth import Bandwidth
from gputopo.values.fields import Fact, Metric, Smi, Value, same_address, same_peer_access

# These can be imported from here too.
from gputopo.values.gpu import Gpu as Gpu
from gputopo.values.gpu import GpuProcess as GpuProcess
from gputopo.values.gpu import Mig as Mig
from gputopo.values.gpu_clocks import ClockMhz as ClockMhz
from gputopo.values.gpu_clocks import ClocksMhz as ClocksMhz
from gputopo.values.gpu_clocks import PowerW as PowerW
from gputopo.values.gpu_clocks import TemperatureC as TemperatureC
from gputopo.values.gpu_clocks import Throttle as Throttle
from gputopo.values.gpu_clocks import UtilizationPercent as UtilizationPercent
from gputopo.values.gpu_links import FABRIC_STATES as FABRIC_STATES
from gputopo.values.gpu_links import Fabric as Fabric
from gputopo.values.gpu_links import NvLink as NvLink
from gputopo.values.gpu_links import Pcie as Pcie
from gputopo.values.gpu_memory import Bar1Mib as Bar1Mib
from gputopo.values.gpu_memory import Ecc as Ecc
from gputopo.values.gpu_memory import MemoryMib as MemoryMib
from gputopo.values.gpu_memory import RemappedRows as RemappedRows
from gputopo.values.gpu_memory import RetiredPages as RetiredPages
from gputopo.values.gpu_memory import SpareRows as SpareRows
from gputopo.values.history import GpuHistory
from gputopo.values.index_ranges import same_cpus


class NumaNode(Value, frozen=True):
    """One NUMA node: its CPUs as a list ("0-9,20-29"), its memory, and its distances to nodes 0, 1, ..."""

    index: int
    cpus: Annotated[str | None, Fact("CPUs", same=same_cpus)] = None
    memory_mib: Annotated[
        int | None,
        Fact(
            "memory",
            unit="MiB",
            metric=Metric("numa_node_memory_bytes", "memory of a NUMA node"),
            tolerance=0.01,
        ),
    ] = None
    distances: tuple[int, ...] | None = None


class Host(Value, frozen=True):
    """The computer around the GPUs. `name` identifies it, and is only set if it was requested.

    `fingerprint`: derived from the machine id, and the same in every recording of a host. The id cannot be
    derived from it.
    """

    name: str | None = None
    fingerprint: str | None = None
    cpu_model: Annotated[str | None, Fact("CPU model", info=True)] = None
    sockets: Annotated[int | None, Fact(metric=Metric("host_sockets", "CPU sockets"))] = None
    physical_cores: Annotated[int | None, Fact(metric=Metric("host_physical_cores", "CPU cores"))] = None
    logical_cpus: Annotated[
        int | None, Fact("logical CPUs", metric=Metric("host_logical_cpus", "logical CPUs"))
    ] = None
    memory_mib: Annotated[
        int | None,
        Fact("memory", unit="MiB", metric=Metric("host_memory_bytes", "memory of the host"), tolerance=0.01),
    ] = None
    numa_nodes: Annotated[tuple[NumaNode, ...] | None, Fact("NUMA nodes")] = None
    kernel: Annotated[str | None, Fact(info=True)] = None
    # off, passthrough, translated
    iommu: Annotated[str | None, Fact("IOMMU", info=True)] = None
    # off, on
    acs: Annotated[str | None, Fact("ACS", info=True)] = None
    # docker, podman, kubernetes, lxc, ...
    container: Annotated[str | None, Fact(info=True)] = None
    virtual_machine: Annotated[str | None, Fact(info=True)] = None


DriverStatus = Literal[
    "ok",  # NVML answers
    "no_device",  # no NVIDIA device on this machine
    "not_loaded",  # a device, but the kernel module is not loaded
    "library_missing",  # a device, but no libnvidia-ml.so.1
    "too_old",  # older than what the CUDA runtime of a program needs
    "not_ready",  # the fabric manager of NVSwitches has not started (CUDA error 802)
    "version_mismatch",  # library and kernel module have different versions
    "no_permission",  # /dev/nvidia* may not be opened, or does not exist (a container)
    "other_driver",  # a device that is bound to another kernel driver (nouveau, vfio-pci)
    "hung",  # an NVML call did not return
    "crashed",  # an NVML call ended the process that made it
    "failed",  # another error of NVML
    "not_read",  # the capture does not include it
]


class Driver(Value, frozen=True):
    """The NVIDIA driver: its status, and its versions as NVML reports them."""

    status: Annotated[DriverStatus, Fact(info=True)] = "not_read"
    version: Annotated[
        str | None,
        Fact(
            info=True,
            smi=Smi(
                kind="version",
                xml=("kmd_version", "driver_version"),
                text=("KMD Version", "Driver Version"),
                csv=("kmd_version", "driver_version"),
            ),
        ),
    ] = None
    cuda_version: Annotated[
        str | None,
        Fact(
            "CUDA version",
            info=True,
            smi=Smi(
                kind="version",
                xml=("cuda_umd_version", "cuda_version"),
                text=("CUDA UMD Version", "CUDA Version"),
            ),
        ),
    ] = None
    nvml_version: Annotated[
        str | None,
        Fact("NVML version", info=True, smi=Smi(kind="version", xml="nvml_version", text="NVML Version")),
    ] = None
    kernel_module_version: Annotated[str | None, Fact(info=True)] = None
    open_kernel_module: bool | None = None
    # nvidia_peermem or nv_peer_mem, by which RDMA cards access GPU memory; "none" if neither is loaded
    peer_memory_module: Annotated[str | None, Fact("GPUDirect RDMA module", info=True)] = None
    # the driver's message if it failed
    detail: Annotated[str | None, Fact(stability="volatile")] = None


@functools.total_ordering
class Hop(Enum):
    """The distance of two devices on PCIe, with the names of `nvidia-smi topo -m`. Nearer is smaller.

    `level` is NVML's number for it (nvmlGpuTopologyLevel_t).
    """

    INTERNAL = "INTERNAL"  # two GPUs on one board
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
    """The path between two GPUs, low index first. `hop`: over PCIe, also if there are NVLinks.

    `hop` is None if a capture shows only `NV4`. `nccl`: NCCL's transports from its log (`P2P/CUMEM`). Raises
    ValueError if `a` is not below `b`.
    """

    a: int
    b: int
    hop: Annotated[Hop | None, Fact("PCIe hop")] = None
    # None: not known; 0: none
    nvlinks: Annotated[
        int | None, Fact("NVLinks", metric=Metric("link_nvlinks", "NVLinks between two GPUs"))
    ] = None
    p2p_read: Annotated[str | None, Fact("peer read", same=same_peer_access)] = None
    p2p_write: Annotated[str | None, Fact("peer write", same=same_peer_access)] = None
    p2p_reason: Annotated[str | None, Fact("peer access reason")] = None
    nccl: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.a >= self.b:
            raise ValueError(f"a link is written low index first, got {self.a}, {self.b}")

    @property
    def p2p_refusals(self) -> tuple[str, ...]:
        """NVML's statuses that are not OK: for reads, then for writes, without duplicates."""
        statuses = (self.p2p_read, self.p2p_write)
        return tuple(dict.fromkeys(status for status in statuses if status not in (None, "OK")))


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
"""Error counters of an RDMA port that also increase in normal operation (congestion)."""


class NicPort(Value, frozen=True):
    """A port of a network card, as RDMA device (`ibstat` prints it) and as network interface (`ip -s link`).

    Read from /sys/class/infiniband/<device>/ports/<port>/ and /sys/class/net/<interface>/. Rates are in one
    direction. `max_rate_gbit_per_s`: maximum of the port's link modes (`ethtool`); InfiniBand has none.
    """

    index: int
    # mlx5_0
    rdma_device: Annotated[str | None, Fact("RDMA device", info=True)] = None
    rdma_port: Annotated[int | None, Fact("RDMA port", info=True)] = None
    # eth0, ib0
    interface: Annotated[str | None, Fact("network interface", info=True)] = None
    # InfiniBand, Ethernet
    link_layer: Annotated[str | None, Fact(info=True)] = None
    # ACTIVE, DOWN, INIT, ARMED
    state: Annotated[str | None, Fact(stability="state")] = None
    # LinkUp, Polling
    phys_state: Annotated[str | None, Fact("physical state", stability="state")] = None
    # up, down
    operstate: Annotated[str | None, Fact("operational state", stability="state")] = None
    # as set by ip link set INTERFACE up
    enabled: Annotated[bool | None, Fact("interface enabled")] = None
    carrier: Annotated[bool | None, Fact(stability="state")] = None
    duplex: Annotated[str | None, Fact(stability="state")] = None
    rate_gbit_per_s: Annotated[
        float | None,
        Fact(
            "rate",
            unit="Gbit/s",
            stability="state",
            metric=Metric("nic_port_rate_bytes_per_second", "rate of a network port's link now"),
        ),
    ] = None
    max_rate_gbit_per_s: Annotated[
        float | None,
        Fact(
            "max rate",
            unit="Gbit/s",
            metric=Metric("nic_port_rate_max_bytes_per_second", "highest rate that a network port supports"),
        ),
    ] = None
    # InfiniBand: 4 for 4X HDR
    lanes: Annotated[int | None, Fact(unit="lanes", stability="state")] = None
    mtu_bytes: Annotated[
        int | None, Fact("MTU", unit="bytes", metric=Metric("nic_port_mtu_bytes", "MTU of an interface"))
    ] = None
    # with the kernel's names: symbol_error, ...
    errors: Annotated[
        dict[str, int] | None,
        Fact(
            stability="state",
            counter=True,
            metric=Metric("nic_port_errors_total", "errors that a network port counted", by="counter"),
        ),
    ] = None

    @property
    def name(self) -> str:
        """`mlx5_0` (`mlx5_0/2` for a port other than the first), else the interface, else the number."""
        if self.rdma_device is not None:
            return f"{self.rdma_device}/{self.rdma_port}" if (self.rdma_port or 1) > 1 else self.rdma_device
        return self.interface or f"port {self.index}"

    @property
    def up(self) -> bool | None:
        """Whether the link is up; None if nothing reports it."""
        if self.state is not None:
            return self.state == "ACTIVE"
        return self.carrier if self.operstate in (None, "unknown") else self.operstate == "up"

    @property
    def is_active_rdma(self) -> bool:
        """Whether it is an RDMA device whose link is up."""
        return self.rdma_device is not None and bool(self.up)


class Nic(Value, frozen=True):
    """A network card: one PCI function. `hops`: distance to other devices, by `gpu:0` or `nic:1`.

    `ports`: None if the source does not show them. `psid`: the board's type, which selects its firmware
    (`ibv_devinfo`, `mlxfwmanager`). `hca_type`: its chip (`ibstat`). Virtual functions, bonds and interfaces
    without a device are not cards.
    """

    index: int
    name: Annotated[str | None, Fact(info=True)] = None
    pci_address: Annotated[str | None, Fact("PCI address", info=True, same=same_address)] = None
    numa_node: Annotated[int | None, Fact("NUMA node", info=True)] = None
    firmware_version: Annotated[str | None, Fact(info=True)] = None
    psid: Annotated[str | None, Fact("PSID", info=True)] = None
    hca_type: Annotated[str | None, Fact("HCA type", info=True)] = None
    ports: tuple[NicPort, ...] | None = None
    hops: dict[str, Hop] = msgspec.field(default_factory=dict)


class PciNode(Value, frozen=True):
    """One function of the PCI tree: a GPU, a NIC, or a bridge on the path from one to its root.

    `parent`: the bridge above, None directly below the root complex (`root`, such as `pci0000:00`; "" if
    unknown). Speeds are GT/s per lane. Read from /sys/bus/pci/devices/<address>/. The current link, counters
    and names are states: each tool takes names from its own list.
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
                "maximum transfers per second and lane of a PCI link",
            ),
        ),
    ] = None
    width: Annotated[
        int | None,
        Fact(unit="lanes", stability="state", metric=Metric("pci_link_lanes", "lanes of a PCI link now")),
    ] = None
    max_width: Annotated[
        int | None,
        Fact(unit="lanes", metric=Metric("pci_link_lanes_max", "maximum number of lanes of a PCI link")),
    ] = None
    # access control redirects peer traffic through the root complex
    acs: Annotated[
        bool | None,
        Fact("ACS", metric=Metric("pci_acs", "whether access control sends peer traffic up to the root")),
    ] = None
    aer: Annotated[
        dict[str, int] | None,
        Fact(
            "AER errors",
            stability="state",
            counter=True,
            metric=Metric("pci_errors_total", "errors that a PCI device reported (AER)", by="severity"),
        ),
    ] = None
    # as lspci reports it
    name: Annotated[str | None, Fact(stability="state")] = None

    @property
    def max_rate(self) -> float | None:
        """The highest rate of its link over all lanes in GT/s, for ratios between links of one kind."""
        if self.max_speed_gt_per_s is None or self.max_width is None:
            return None
        return self.max_speed_gt_per_s * self.max_width


class Contradiction(Value, frozen=True):
    """Two sources that disagree on a fact. The machine has the value of the first source."""

    fact: str  # "links[0-1].hop"
    said: dict[str, str]  # values by source


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
    "nvlink",  # about NVLink, without an Xid
    "nvrm",  # another error of the NVIDIA kernel module or of the fabric manager
    "program",  # reported by a program: gpu_burn, dcgmi diag, an error of CUDA
]


class KernelEvent(Value, frozen=True):
    """An error in a log or of a program. Errors of the same kind, code, severity and device are counted.

    `time`, `last_time`: of the first and the last error, as far as the log has them: ISO 8601, `Mar 05
    10:00:00` if the log has no year, `1234.567 s` since boot.
    """

    kind: KernelEventKind
    text: str  # of the first error
    code: int | None = None
    # AER: corrected, nonfatal or fatal. SXid, and Xid of NVLink 5: nonfatal or fatal. Xid 154: the recovery
    # action.
    severity: str | None = None
    pci_address: str | None = None
    device_driver: str | None = None  # of the device in an AER message; else the program that reports it
    count: int = 1
    time: str | None = None
    last_time: str | None = None
    earlier: bool = False  # before the machine last booted, or the NVIDIA module was last loaded


class Nccl(Value, frozen=True):
    """How NCCL connects the GPUs of a job, from its log (`NCCL_DEBUG=INFO`). Rings and trees have ranks.

    `between_hosts`: transports between GPUs of different hosts. `settings`: variables, `NCCL_P2P_DISABLE=1`.
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
    cuda_version: str | None = None  # with which it was built
    cudnn_version: str | None = None  # that it would load
    kernels: tuple[str, ...] = ()  # kernels in it: `sm_80` for that architecture, `compute_90` as PTX
    missing_libraries: tuple[str, ...] | None = None  # CUDA libraries that are not installed
    unreached_libraries: tuple[str, ...] = ()  # installed in folders where TensorFlow does not look


class LineCounts(Value, frozen=True):
    """Number of lines of a capture: read, known to say nothing about the machine, and not understood."""

    source: str
    read: int
    known: int
    not_understood: int


class Gap(Value, frozen=True):
    """A missing part of a capture. Its contents are unknown, so faults in it are unknown too.

    `attached`: number of GPUs that the capture reports; `listed`: number that it shows, if these differ.
    """

    source: str
    text: str
    attached: int | None = None
    listed: int | None = None


class Sample(Value, frozen=True):
    """The GPUs at one time.

    `gpus`: facts of each GPU by path, `{"index": 0, "power_w.draw": 27.6}`: facts that change by themselves
    (load, clocks, current link, error counts), and settings that differ from the machine's. Empty: as in
    `Machine.gpus`. See gputopo.values.samples.
    """

    source: str
    time: str | None = None  # in ISO 8601, None if the source has none
    gpus: tuple[dict[str, Any], ...] = ()


class Machine(Value, frozen=True, tag_field="schema", tag="gputopo.machine/1"):
    """All that is known about one machine, and where it came from.

    `samples`: in order of time, as far as the time is known. If there are several, `gpus` has the lasting
    facts, and the changing facts of the last sample only, never a mixture. `series`: counts over all samples
    of a log; `samples` then has only those that rules need.
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

    @property
    def links_by_pair(self) -> dict[tuple[int, int], Link]:
        """The links by their two GPU indices, low index first."""
        return {(link.a, link.b): link for link in self.links}

    @property
    def pci_by_address(self) -> dict[str, PciNode]:
        """The PCI devices by address."""
        return {node.address: node for node in self.pci}

    def link(self, a: int, b: int) -> Link | None:
        """Return the link between two GPUs by index, in either order, or None if it is not known."""
        low, high = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (low, high)), None)

    def temperatures(self, gpu: int) -> list[int]:
        """Return the temperatures of a GPU, given by its index, over the samples."""
        facts = (
            gpu_facts for sample in self.samples for gpu_facts in sample.gpus if gpu_facts["index"] == gpu
        )
        return [
            gpu_facts["temperature_c.gpu"]
            for gpu_facts in facts
            if gpu_facts.get("temperature_c.gpu") is not None
        ]
