"""The machine as frozen values, and their JSON form (`gputopo.machine/1`).

A fact that is absent is None, and `Machine.missing` holds the reason under the fact's path
(`gpus[0].clocks_mhz.memory.now`). Units are in the names. Building a value never asks the machine anything.
"""

import functools
from enum import Enum
from typing import Literal

import msgspec

from gputopo.bandwidth import Bandwidth


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

DriverStatus = Literal[
    "ok",  # NVML answers
    "no_device",  # no NVIDIA device on this machine
    "not_loaded",  # a device, but the kernel module is not loaded
    "library_missing",  # a device, but no libnvidia-ml.so.1
    "version_mismatch",  # library and kernel module are of different versions
    "no_permission",  # /dev/nvidia* may not be opened, or is not there (a container)
    "other_driver",  # a device that another kernel driver holds (nouveau, vfio-pci)
    "failed",  # NVML failed in a way that fits none of these
    "not_read",  # a capture that says nothing about it
]


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values: immutable, fields by name."""


class ClockMhz(_Value, frozen=True):
    """One clock domain, in MHz: now, the most the card can do, the set application clock, the boost clock."""

    now: int | None = None
    max: int | None = None
    application: int | None = None
    boost: int | None = None


class ClocksMhz(_Value, frozen=True):
    """The clock domains of a GPU. The same numbers: `nvidia-smi -q -d CLOCK`."""

    graphics: ClockMhz = ClockMhz()
    sm: ClockMhz = ClockMhz()
    memory: ClockMhz = ClockMhz()
    video: ClockMhz = ClockMhz()


class Throttle(_Value, frozen=True):
    """Why clocks are held down: NVML's raw mask and its bits in words. `nvidia-smi -q -d PERFORMANCE`."""

    mask: int | None = None
    reasons: tuple[str, ...] | None = None


class PowerW(_Value, frozen=True):
    """Watts of one card. `nvidia-smi -q -d POWER`."""

    draw: float | None = None
    limit: float | None = None
    default_limit: float | None = None
    enforced_limit: float | None = None
    min: float | None = None
    max: float | None = None


class TemperatureC(_Value, frozen=True):
    """Degrees Celsius. Newer cards tell margins instead of thresholds (T.Limit): `margin` is what is left.

    `margin_slowdown` and the others are the margins at which the card acts, at or below 0.
    `nvidia-smi -q -d TEMPERATURE`.
    """

    gpu: int | None = None
    memory: int | None = None
    slowdown: int | None = None
    shutdown: int | None = None
    max_operating: int | None = None
    memory_max_operating: int | None = None
    target: int | None = None
    margin: int | None = None
    margin_slowdown: int | None = None
    margin_shutdown: int | None = None
    margin_max_operating: int | None = None


class Pcie(_Value, frozen=True):
    """The PCIe link of a GPU. `gen_max` is what card and slot can do together.

    `limiting_hop` is the PCI address of the bridge that is slower than the card on the way to the root.
    `aer`: advanced error reporting, {"correctable": 0, "nonfatal": 0, "fatal": 0}, from sysfs.
    `nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current`.
    """

    gen_now: int | None = None
    gen_max: int | None = None
    gen_max_device: int | None = None
    gen_max_host: int | None = None
    width_now: int | None = None
    width_max: int | None = None
    replay_counter: int | None = None
    limiting_hop: str | None = None
    aer: dict[str, int] | None = None


class MemoryMib(_Value, frozen=True):
    """Device memory in MiB. `nvidia-smi --query-gpu=memory.total,memory.used,memory.free`."""

    total: int | None = None
    used: int | None = None
    free: int | None = None


class UtilizationPercent(_Value, frozen=True):
    """Share of time that kernels ran and that memory was read or written, in percent."""

    gpu: int | None = None
    memory: int | None = None


class Ecc(_Value, frozen=True):
    """Error correction: mode now and after a reboot, and error counts since boot and in all.

    `counts`: what the card tells by place, {"volatile.sram_uncorrectable_parity": 0}.
    """

    mode: bool | None = None
    mode_pending: bool | None = None
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    counts: dict[str, int] | None = None


class RemappedRows(_Value, frozen=True):
    """Memory rows that were replaced by spare ones (Ampere and later)."""

    correctable: int | None = None
    uncorrectable: int | None = None
    pending: bool | None = None
    failure: bool | None = None


class RetiredPages(_Value, frozen=True):
    """Memory pages that are no longer used (before Ampere)."""

    single_bit: int | None = None
    double_bit: int | None = None
    pending: bool | None = None


class Mig(_Value, frozen=True):
    """Multi-Instance GPU: whether the card is split now and after a reset, and into how many instances."""

    mode: bool | None = None
    mode_pending: bool | None = None
    instances: int | None = None


class GpuProcess(_Value, frozen=True):
    """A process that holds memory on a GPU."""

    pid: int
    kind: str | None = None  # compute, graphics or mps
    name: str | None = None
    user: str | None = None
    memory_mib: int | None = None


class NvLink(_Value, frozen=True):
    """One NVLink port of a GPU. `gb_per_s`: its speed in one direction, as `nvidia-smi nvlink -s` has it."""

    link: int
    active: bool | None = None
    version: int | None = None
    gb_per_s: float | None = None
    remote_pci_address: str | None = None
    remote_kind: str | None = None  # gpu, switch, ibmnpu
    errors: dict[str, int] = {}


class Fabric(_Value, frozen=True):
    """How a GPU stands with the NVSwitches that join it to others: its fabric, as the driver calls it.

    `state`: not started, in progress, completed: how far it has joined. `status`: how that ended, "success"
    or an error. `health`: what is told of it since, {"summary": "healthy", "bandwidth": "full"}. All in
    nvidia-smi's words, in lower case; None on a GPU without NVSwitches. `nvidia-smi -q`, section Fabric.
    """

    state: str | None = None
    status: str | None = None
    health: dict[str, str] | None = None

    @property
    def joining(self) -> bool:
        """Tell whether it has not joined yet: until then CUDA does not start on the GPU."""
        return self.state in ("not started", "in progress")


class Gpu(_Value, frozen=True):
    """One GPU. `index` is the PCI order, which is also NVML's; `cuda_index` CUDA's default order."""

    index: int
    cuda_index: int | None = None
    uuid: str | None = None
    name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    pci_address: str | None = None
    pci_device_id: str | None = None  # "2204": the chip and its variant
    numa_node: int | None = None
    cpu_affinity: str | None = None  # a list as in sysfs: "0-9,20-29"
    clocks_mhz: ClocksMhz = ClocksMhz()
    pstate: str | None = None  # "P0" is the fastest
    throttle: Throttle = Throttle()
    violation_ns: dict[str, int] | None = None
    power_w: PowerW = PowerW()
    temperature_c: TemperatureC = TemperatureC()
    pcie: Pcie = Pcie()
    memory_mib: MemoryMib = MemoryMib()
    bar1_mib: MemoryMib = MemoryMib()
    fan_percent: int | None = None
    display_active: bool | None = None
    virtualization: str | None = None  # none, pass-through, vgpu, ...
    utilization_percent: UtilizationPercent = UtilizationPercent()
    ecc: Ecc = Ecc()
    remapped_rows: RemappedRows = RemappedRows()
    retired_pages: RetiredPages = RetiredPages()
    mig: Mig = Mig()
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: Fabric = Fabric()
    lost: bool = False  # it was counted, and then did not answer
    recovery_action: str | None = None  # none, reset, reboot, drain p2p, drain and reset: as nvidia-smi says


class Link(_Value, frozen=True):
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


class Nic(_Value, frozen=True):
    """A network card of the matrix. `hops` maps `gpu:0` or `nic:1` to how far that device is."""

    index: int
    name: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    hops: dict[str, Hop] = {}


class NumaNode(_Value, frozen=True):
    """One memory node: its CPUs as a list ("0-9,20-29"), its memory, its distances to nodes 0, 1, ..."""

    index: int
    cpus: str | None = None
    memory_mib: int | None = None
    distances: tuple[int, ...] | None = None


class Host(_Value, frozen=True):
    """The computer around the GPUs. No host name: it identifies a person's machine."""

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
    virtual_machine: str | None = None  # kvm, vmware, ...; "none" on bare metal


class Driver(_Value, frozen=True):
    """The NVIDIA driver: its state, and its versions as NVML gives them."""

    status: DriverStatus = "not_read"
    version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    kernel_module_version: str | None = None
    detail: str | None = None  # the driver's own words where it failed


class PciNode(_Value, frozen=True):
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


class Contradiction(_Value, frozen=True):
    """Two sources that say different things of one fact; the first one given stands in the machine."""

    fact: str  # "links[0-1].hop"
    said: dict[str, str]  # source: what it said


class Unread(_Value, frozen=True):
    """A line of a capture that was not understood."""

    source: str
    line: int
    text: str


class Machine(_Value, frozen=True, tag_field="schema", tag="gputopo.machine/1"):
    """All that is known of one machine, and where it came from."""

    source: str  # live, recording, nvidia-smi topo, ...; several are joined by " + "
    host: Host = Host()
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    pci: tuple[PciNode, ...] = ()
    bandwidth: Bandwidth | None = None
    missing: dict[str, str] = {}
    contradictions: tuple[Contradiction, ...] = ()
    unread: tuple[Unread, ...] = ()

    def link(self, a: int, b: int) -> Link | None:
        """Give the link between two GPUs by index, in either order, or None if it is not known."""
        low, high = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (low, high)), None)
