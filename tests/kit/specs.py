"""The parts of a machine of the kit: frozen values of GPUs, links, bridges, NICs, and the whole box.

Hops are derived from the bridges by `Scenario.level`, independently of gputopo.topology.hops. Default numbers
describe an invented, well-behaved, idle data-centre card.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NOT_SUPPORTED = 3
GPU_IS_LOST = 15
DEPRECATED = 26

# Calls that a GeForce driver refuses: error correction, user clocks, MIG, violation times, newer thermal
# ones.
CONSUMER = dict.fromkeys(
    (
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetMemoryErrorCounter",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetRetiredPages",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetApplicationsClock",
        "nvmlDeviceGetMaxCustomerBoostClock",
        "nvmlDeviceGetClock",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetViolationStatus",
        "field[82]",
        "field[193]",
        "field[194]",
        "field[196]",
    ),
    NOT_SUPPORTED,
)


@dataclass(frozen=True)
class LinkSpec:
    """A PCIe link: GT/s per lane and lanes, current and maximum. The texts are as the kernel writes them."""

    speed: float = 8.0
    width: int = 16
    max_speed: float = 8.0
    max_width: int = 16


@dataclass(frozen=True)
class Bridge:
    """A PCI bridge. `parent`: None if it is directly under the root complex `root`."""

    address: str
    root: str
    parent: str | None = None
    link: LinkSpec = LinkSpec()
    acs: int | None = 0  # the control register of access control services; None: the bridge has none
    aer: tuple[int, int, int] = (0, 0, 0)  # correctable, nonfatal, fatal


@dataclass(frozen=True)
class PortSpec:
    """A port: its current link, its interface, and its counters other than 0, by name.

    `state` None: no RDMA. Counters whose names begin with rx_ or tx_ are in /sys/class/net.
    """

    interface: str | None = None
    link_layer: str = "InfiniBand"
    state: str | None = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    rate: str = "100 Gb/sec (4X EDR)"
    mtu: int = 4092
    enabled: bool = True
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return self.enabled and self.phys_state == "5: LinkUp"


@dataclass(frozen=True)
class NicSpec:
    address: str
    parent: str | None
    root: str
    name: str
    infiniband: bool = True
    numa_node: int = -1
    ports: tuple[PortSpec, ...] = (PortSpec(),)
    firmware: str = "12.28.2006"
    psid: str = "MT_2180110032"
    hca_type: str = "MT4115"


@dataclass(frozen=True)
class ProcessSpec:
    pid: int
    kind: str  # compute, graphics, mps
    used_bytes: int | None
    name: str = "/home/someone/venv/bin/python train.py"


@dataclass(frozen=True)
class NvLinkSpec:
    """One NVLink port. `remote`: a GPU's index, or the address of a switch. None: the link is down."""

    remote: int | str | None
    version: int = 2
    errors: Mapping[int, int] = field(default_factory=dict)  # by nvmlNvLinkErrorCounter_t
    field_errors: Mapping[int, int] = field(default_factory=dict)  # by NVML_FI_DEV_NVLINK_*, newer cards
    mb_per_s: int = 25_000  # in one direction


@dataclass(frozen=True)
class GpuSpec:
    """A GPU and the numbers that NVML reports for it, in NVML's units. A value None is NOT_SUPPORTED.

    `refuses` maps a call, with or without its plain arguments in brackets, to the code it returns. `lost`:
    `handle` (no handle either) or `calls` (there is a handle, but every call is refused).
    """

    address: str
    parent: str | None
    root: str
    name: str = "NVIDIA Test-100"
    uuid: str = ""
    device_id: str = "20b0"
    subsystem_id: int = 0x134F10DE
    part_number: str = "692-2G500-0200-000"
    inforom: str = "G500.0200.00.03"
    vbios: str = "92.00.19.00.01"
    gsp_firmware: str = "550.163.01"
    class_code: str = "030200"
    kernel_driver: str | None = "nvidia"
    numa_node: int = -1
    link: LinkSpec = LinkSpec()
    # graphics, SM, memory, video in MHz
    clocks: tuple[int, int, int, int] = (1305, 1305, 1215, 1275)
    max_clocks: tuple[int, int, int, int] = (1410, 1410, 1215, 1290)
    application_clocks: tuple[int, int, int, int] = (1095, 1095, 1215, 1005)
    boost_clocks: tuple[int, int, int, int] = (1400, 1400, 1214, 1280)
    pstate: int = 0
    throttle: int = 0x1
    violations: Mapping[int, int] = field(
        default_factory=lambda: dict.fromkeys((0, 1, 2, 3, 4, 5, 10, 11), 0)
    )
    # ns of hardware slowdown: thermal, and by the power brake. Drivers before 575 do not report them.
    slowdown_ns: tuple[int, int] = (0, 0)
    power_mw: int = 61_500
    power_limit_mw: int = 400_000
    power_default_mw: int = 400_000
    power_enforced_mw: int = 400_000
    power_range_mw: tuple[int, int] = (100_000, 400_000)
    temperature: int = 31
    memory_temperature: int = 33
    slowdown: int = 95
    shutdown: int = 98
    max_operating: int | None = 85
    memory_max_operating: int | None = 95
    target: int | None = 80
    margin: int = 54
    # Field values by NVML_FI_*. These are the margins to shutdown, slowdown, and maximum temperature.
    fields: Mapping[int, int] = field(default_factory=lambda: {193: -8, 194: -2, 196: 0, 230: 0})
    fan: int | None = 30
    replays: int = 0
    pcie_kb_per_s: tuple[int, int] = (0, 0)  # sent by the GPU, received
    gen_script: tuple[int, ...] = ()  # PCIe generations, one per call; the last one stays
    aer: tuple[int, int, int] = (0, 0, 0)  # correctable, nonfatal, fatal
    memory_bytes: tuple[int, int, int] = (42_949_672_960, 0, 42_949_672_960)  # total, used, free
    bar1_bytes: tuple[int, int, int] = (68_719_476_736, 1_048_576, 68_718_428_160)
    utilization: tuple[int, int] = (0, 0)
    brand: int = 2  # nvmlBrandType_t: Tesla
    architecture: int = 7  # NVML_DEVICE_ARCH_*: Ampere
    display: int = 0
    virtualization: int = 0
    ecc_mode: tuple[int, int] | None = (1, 1)
    ecc_errors: tuple[int, int, int, int] = (0, 0, 0, 0)  # corrected vol., aggr., uncorrected vol., aggr.
    # The same by nvmlMemoryLocation_t, and the struct with separate counts for the chip's own memories.
    ecc_at: Mapping[int, tuple[int, int, int, int]] = field(
        default_factory=lambda: {2: (0, 0, 0, 0), 7: (0, 0, 0, 0)}
    )
    sram_errors: Mapping[str, int] | None = field(default_factory=lambda: {"volatileCor": 0})
    remapped_rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    # Fields of the structs of newer drivers, and default application clocks by nvmlClockType_t.
    spare_rows: Mapping[str, int] | None = None
    repairs: Mapping[str, int] | None = None
    unrepairable: Mapping[str, int] | None = None
    default_clocks: Mapping[int, int] | None = None
    retired_pages: tuple[int, int] = (0, 0)
    retired_pending: int = 0
    mig: tuple[int, int] | None = (0, 0)
    mig_instances: tuple[int, ...] = ()  # the used places, of 7
    compute_mode: int = 0
    persistence: int = 1
    processes: tuple[ProcessSpec, ...] = ()
    nvlinks: tuple[NvLinkSpec, ...] = ()
    c2c: int | None = None
    fabric: Mapping[str, int] | None = None  # the fields of nvmlGpuFabricInfo_v3_t
    refuses: Mapping[str, int] = field(default_factory=dict)
    lost: str | None = None
    initialise_s: float = 0.0  # how long the first handle takes in each process


@dataclass(frozen=True)
class Scenario:
    """One machine. `cpus`: the CPUs of each NUMA node; `p2p`: status codes of pairs that differ."""

    name: str
    gpus: tuple[GpuSpec, ...]
    bridges: tuple[Bridge, ...]
    nics: tuple[NicSpec, ...] = ()
    cpu_model: str = "Intel(R) Xeon(R) CPU E5-2630 v4 @ 2.20GHz"
    sockets: int = 1
    cpus: tuple[Sequence[int], ...] = (range(20),)
    memory_mib: int = 64_000
    driver_version: str = "550.163.01"
    nvml_version: str = "12.550.163.01"
    cuda_version: int = 12_040
    p2p: Mapping[tuple[int, int], int] = field(default_factory=dict)
    init_code: int = 0  # what nvmlInit returns
    init_s: float = 0.0  # time that nvmlInit takes
    count_s: float = 0.0  # time that the first count of the GPUs takes in each process
    peer_memory: str | None = "nvidia_peermem"  # the kernel module for GPUDirect RDMA
    driver_loaded: bool = True  # the kernel module, and with it /dev/nvidia*
    pci_shown: bool = True  # False: a container or a micro-VM that hides the PCI tree
    container: str | None = None
    virtual: bool = False  # a virtual machine
    iommu: str | None = None  # the type of the GPUs' IOMMU groups: identity, DMA-FQ; None: no IOMMU
    privileged: bool = True  # False: only the first 64 bytes of config space can be read
    xids: tuple[tuple[int, int], ...] = ()  # (GPU, code), delivered to every event set
    extra_pci: tuple[tuple[str, str | None, str, str, str], ...] = ()  # address, parent, root, vendor, class

    def bridges_above(self, gpu: int) -> list[str]:
        """Return the bridges above a GPU, the nearest first."""
        parents = {bridge.address: bridge.parent for bridge in self.bridges}
        above = []
        bridge = self.gpus[gpu].parent
        while bridge is not None:
            above.append(bridge)
            bridge = parents[bridge]
        return above

    def slot(self, gpu: int) -> LinkSpec:
        """Return the link of the bridge directly above a GPU; without a bridge, what the card supports."""
        links = {bridge.address: bridge.link for bridge in self.bridges}
        return links.get(self.gpus[gpu].parent or "", self.gpus[gpu].link)

    def level(self, a: int, b: int) -> int:
        """Return NVML's topology level of a pair: 10, 20, 30, 40 or 50."""
        ways = self.bridges_above(a), self.bridges_above(b)
        shared = [bridge for bridge in ways[0] if bridge in ways[1]]
        if shared:
            below = [way.index(shared[0]) for way in ways]
            return 10 if max(below) < 2 else 20
        first, second = self.gpus[a], self.gpus[b]
        if first.root == second.root:
            return 30
        return 40 if first.numa_node == second.numa_node else 50


def changed(
    scenario: Scenario, gpus: Mapping[int, Mapping[str, Any]] | None = None, **fields: Any
) -> Scenario:
    """Return a variant of a scenario: fields of some GPUs by index, and fields of the scenario itself."""
    specs = tuple(
        replace(gpu, **dict((gpus or {}).get(index, {}))) for index, gpu in enumerate(scenario.gpus)
    )
    return replace(scenario, gpus=specs, **fields)
