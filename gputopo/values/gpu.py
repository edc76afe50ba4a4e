"""One GPU as frozen values: identity, settings, state and health. Its facts are declared in `facts.csv`."""

import msgspec

from gputopo.values.fields import Value


class ClockMhz(Value, frozen=True):
    """One clock domain, in MHz: now, the card's maximum, application clock set and default, boost clock."""

    now: int | None = None
    max: int | None = None
    application: int | None = None
    default_application: int | None = None
    boost: int | None = None


class ClocksMhz(Value, frozen=True):
    """The clock domains of a GPU. The same numbers: `nvidia-smi -q -d CLOCK`."""

    graphics: ClockMhz = ClockMhz()
    sm: ClockMhz = ClockMhz()
    memory: ClockMhz = ClockMhz()
    video: ClockMhz = ClockMhz()


class Throttle(Value, frozen=True):
    """Why the clocks are throttled: NVML's raw mask and its bits in words. `nvidia-smi -q -d PERFORMANCE`."""

    mask: int | None = None
    reasons: tuple[str, ...] | None = None


class PowerW(Value, frozen=True):
    """Watts of one card. `nvidia-smi -q -d POWER`.

    The software limit is called "requested" since driver 530, and the one in force "current".
    """

    draw: float | None = None
    limit: float | None = None
    default_limit: float | None = None
    enforced_limit: float | None = None
    min: float | None = None
    max: float | None = None


class TemperatureC(Value, frozen=True):
    """Degrees Celsius. Newer cards have margins instead of thresholds (T.Limit): `margin` is what is left.

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


class Pcie(Value, frozen=True):
    """The PCIe link of a GPU. `gen_max` and `width_max` are what card and slot can do together.

    `limiting_hop` is the PCI address of the bridge that is slower than the card on the path to the root.
    `aer`: advanced error reporting, {"correctable": 0, "nonfatal": 0, "fatal": 0}, from sysfs.
    """

    gen_now: int | None = None
    gen_max: int | None = None
    gen_max_device: int | None = None
    gen_max_host: int | None = None
    width_now: int | None = None
    width_max: int | None = None
    replay_counter: int | None = None
    replay_rollovers: int | None = None  # the same packet was sent again four times: the link is trained anew
    limiting_hop: str | None = None
    aer: dict[str, int] | None = None


class MemoryMib(Value, frozen=True):
    """Memory of a GPU in MiB. `nvidia-smi --query-gpu=memory.total,memory.used,memory.free`."""

    # Of 40 960 MiB of an A100, nvidia-smi's number, CUDA reports 40 540: without the driver's share.
    total: int | None = None
    used: int | None = None
    free: int | None = None


class UtilizationPercent(Value, frozen=True):
    """Share of time that kernels ran and that memory was read or written, in percent."""

    gpu: int | None = None
    memory: int | None = None


class Ecc(Value, frozen=True):
    """Error correction: mode now and after a reboot, error counts since boot and in all, repairs.

    `counts`: by place, as the card reports them, {"volatile.sram_uncorrectable_parity": 0}. Repairs of a
    memory channel or a TPC (cluster of SMs) take effect with a reset (Blackwell and later).
    """

    mode: bool | None = None
    mode_pending: bool | None = None
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    counts: dict[str, int] | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    unrepairable_memory: bool | None = None


class SpareRows(Value, frozen=True):
    """Number of memory banks with all, many, some, few or none of their spare rows left."""

    max: int | None = None
    high: int | None = None
    partial: int | None = None
    low: int | None = None
    none: int | None = None


class RemappedRows(Value, frozen=True):
    """Memory rows that were replaced by spare ones (Ampere and later)."""

    correctable: int | None = None
    uncorrectable: int | None = None
    pending: bool | None = None
    failure: bool | None = None
    banks: SpareRows = SpareRows()


class RetiredPages(Value, frozen=True):
    """Memory pages that are no longer used (before Ampere)."""

    single_bit: int | None = None
    double_bit: int | None = None
    pending: bool | None = None


class Mig(Value, frozen=True):
    """Multi-Instance GPU: whether the GPU is split now and after a reset, and into how many instances."""

    mode: bool | None = None
    mode_pending: bool | None = None
    instances: int | None = None


class GpuProcess(Value, frozen=True):
    """A process that uses memory of a GPU. Drivers before 450 call the section "Compute Processes"."""

    pid: int
    kind: str | None = None  # compute, graphics or mps
    name: str | None = None
    user: str | None = None
    memory_mib: int | None = None


class NvLink(Value, frozen=True):
    """One NVLink port of a GPU. `gb_per_s`: its speed in one direction, as `nvidia-smi nvlink -s` has it."""

    link: int
    active: bool | None = None
    version: int | None = None
    gb_per_s: float | None = None
    remote_pci_address: str | None = None
    remote_kind: str | None = None  # gpu, switch, ibmnpu
    errors: dict[str, int] = msgspec.field(default_factory=dict)


FABRIC_STATES = ("not started", "in progress", "completed")
# The health of a fabric without a fault.
_SOUND = {
    "summary": "healthy",
    "bandwidth": "full",
    "route_recovery_in_progress": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}


class Fabric(Value, frozen=True):
    """The state of a GPU in the NVSwitch fabric, as the driver calls it.

    `state`: not started, in progress, completed: how far it has joined. `status`: how that ended, "success"
    or an error. `health`: what is reported of it since, {"summary": "healthy", "bandwidth": "full"}. All in
    nvidia-smi's words, in lower case; None on a GPU without NVSwitches. Only GPUs of one clique reach one
    another. `nvidia-smi -q`, section Fabric.
    """

    state: str | None = None
    status: str | None = None
    clique_id: int | None = None
    health: dict[str, str] | None = None

    @property
    def joining(self) -> bool:
        """Whether it has not joined yet: until then CUDA does not start on the GPU."""
        return self.state in FABRIC_STATES[:2]

    @property
    def is_joined(self) -> bool:
        """Whether it has joined, however that ended."""
        return self.state == FABRIC_STATES[2]

    @property
    def is_accepted(self) -> bool | None:
        """Whether its NVSwitches took it; None: not reported."""
        return None if self.status is None else self.status == "success"

    @property
    def is_sound(self) -> dict[str, bool]:
        """Whether each part of its health that has such a word is without a fault."""
        health = self.health or {}
        return {part: health[part] == word for part, word in _SOUND.items() if part in health}


class Gpu(Value, frozen=True):
    """One GPU. `index` is the PCI order, which is also NVML's; `cuda_index` CUDA's default order."""

    index: int
    cuda_index: int | None = None
    uuid: str | None = None
    name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    pci_address: str | None = None
    pci_device_id: str | None = None
    pci_subsystem_id: str | None = None  # device and vendor, as nvidia-smi writes them
    board_part_number: str | None = None
    vbios_version: str | None = None
    inforom_version: str | None = None
    gsp_firmware_version: str | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None
    clocks_mhz: ClocksMhz = ClocksMhz()
    pstate: str | None = None
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
    c2c_mode: bool | None = None  # NVLink-C2C to the CPU
    fabric: Fabric = Fabric()
    lost: bool = False  # it was counted, and then did not answer
    recovery_action: str | None = None  # none, reset, reboot, drain p2p, drain and reset
