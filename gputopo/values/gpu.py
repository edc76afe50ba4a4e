"""One GPU as frozen values: identity, settings, state and health. Each field declares its fact.

Names in `nvidia-smi`: `-q -x` and `-q` of drivers 319 to 610, `--help-query-gpu` of driver 590.
"""

from typing import Annotated

import msgspec

from gputopo.values.fields import Fact, Metric, Smi, Value
from gputopo.values.index_ranges import same_cpus


def same_address(a: str, b: str) -> bool:
    """Return whether two PCI addresses are the same; the domain may have four or eight digits."""
    return short_address(a) == short_address(b)


def short_address(address: str) -> str:
    """Return a PCI address in lower case with a domain without leading zeros: equal for equal addresses."""
    *domain, bus, slot = f":{address.lower()}".rsplit(":", 2)
    return f"{''.join(domain).strip(':').lstrip('0')}:{bus}:{slot}"


def _same_name(a: str, b: str) -> bool:
    """Return whether two names are of one product: drivers since 465 put the maker's name before it."""
    return a.removeprefix("NVIDIA ") == b.removeprefix("NVIDIA ")


class ClockMhz(Value, frozen=True):
    """One clock domain, in MHz: now, the card's maximum, application clock set and default, boost clock."""

    now: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi("clocks/{}_clock", "Clocks/{}", "clocks.current.{}|clocks.{}"),
            metric=Metric("gpu_clock_hertz", "clock of a GPU now"),
        ),
    ] = None
    max: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi("max_clocks/{}_clock", "Max Clocks/{}", "clocks.max.{}"),
            metric=Metric("gpu_clock_max_hertz", "clock of a GPU at most"),
        ),
    ] = None
    application: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi("applications_clocks/{}_clock", "Applications Clocks/{}", "clocks.applications.{}"),
            metric=Metric("gpu_clock_application_hertz", "clock that is set for applications"),
        ),
    ] = None
    default_application: Annotated[
        int | None,
        Fact(
            "default application",
            peers=True,
            smi=Smi(
                "default_applications_clocks/{}_clock",
                "Default Applications Clocks/{}",
                "clocks.default_applications.{}",
            ),
            metric=Metric("gpu_clock_default_application_hertz", "default clock for applications"),
        ),
    ] = None
    boost: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi("max_customer_boost_clocks/{}_clock", "Max Customer Boost Clocks/{}"),
            metric=Metric("gpu_clock_boost_hertz", "boost clock of a GPU"),
        ),
    ] = None


class ClocksMhz(Value, frozen=True):
    """The clock domains of a GPU. The same numbers: `nvidia-smi -q -d CLOCK`."""

    graphics: Annotated[
        ClockMhz, Fact(smi=Smi("graphics", "Graphics", "graphics|gr"), labels={"domain": "graphics"})
    ] = ClockMhz()
    sm: Annotated[ClockMhz, Fact("SM", smi=Smi("sm", "SM", "sm"), labels={"domain": "sm"})] = ClockMhz()
    memory: Annotated[ClockMhz, Fact(smi=Smi("mem", "Memory", "memory|mem"), labels={"domain": "memory"})] = (
        ClockMhz()
    )
    video: Annotated[ClockMhz, Fact(smi=Smi("video", "Video", "video"), labels={"domain": "video"})] = (
        ClockMhz()
    )


class Throttle(Value, frozen=True):
    """Why the clocks are throttled: NVML's raw mask and its bits in words. `nvidia-smi -q -d PERFORMANCE`."""

    mask: Annotated[
        int | None,
        Fact(
            smi=Smi(csv="clocks_event_reasons.active|clocks_throttle_reasons.active", kind="mask"),
            metric=Metric("gpu_throttle_mask", "NVML's mask of the clock event reasons"),
        ),
    ] = None
    reasons: tuple[str, ...] | None = None


_CEILING = "gpu_power_readings/gpu_ceiling_power_limit"  # a separate section since driver 610
_CEILING_TEXT = "GPU Power Readings/GPU Ceiling Power Limit"


class PowerW(Value, frozen=True):
    """Watts of one card. `nvidia-smi -q -d POWER`.

    The software limit is called "requested" since driver 530, and the one in force "current".
    """

    draw: Annotated[
        float | None,
        Fact(
            stability="volatile",
            smi=Smi(
                "{}/average_power_draw|{}/power_draw|{}/instant_power_draw",
                "{}/Average Power Draw|{}/Power Draw|{}/Instantaneous Power Draw",
                "power.draw|power.draw.average|power.draw.instant",
            ),
            metric=Metric("gpu_power_watts", "power that a GPU draws"),
        ),
    ] = None
    limit: Annotated[
        float | None,
        Fact(
            peers=True,
            smi=Smi(
                f"{_CEILING}/requested_power_limit|{_CEILING}/power_limit"
                "|{}/requested_power_limit|{}/power_limit",
                f"{_CEILING_TEXT}/Requested Power Limit|{_CEILING_TEXT}/Power Limit"
                "|{}/Requested Power Limit|{}/Power Limit",
                "power.limit",
            ),
            metric=Metric("gpu_power_limit_watts", "power limit that is set"),
        ),
    ] = None
    default_limit: Annotated[
        float | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                f"{_CEILING}/default_power_limit|{{}}/default_power_limit",
                f"{_CEILING_TEXT}/Default Power Limit|{{}}/Default Power Limit",
                "power.default_limit",
            ),
            metric=Metric("gpu_power_default_limit_watts", "power limit that a GPU starts with"),
        ),
    ] = None
    enforced_limit: Annotated[
        float | None,
        Fact(
            peers=True,
            smi=Smi(
                f"{_CEILING}/current_power_limit|{_CEILING}/enforced_power_limit"
                "|{}/current_power_limit|{}/enforced_power_limit",
                f"{_CEILING_TEXT}/Current Power Limit|{_CEILING_TEXT}/Enforced Power Limit"
                "|{}/Current Power Limit|{}/Enforced Power Limit",
                "enforced.power.limit",
            ),
            metric=Metric("gpu_power_enforced_limit_watts", "power limit that is enforced"),
        ),
    ] = None
    min: Annotated[
        float | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi("{}/min_power_limit", "{}/Min Power Limit", "power.min_limit"),
            metric=Metric("gpu_power_min_limit_watts", "lowest power limit that can be set"),
        ),
    ] = None
    max: Annotated[
        float | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi("{}/max_power_limit", "{}/Max Power Limit", "power.max_limit"),
            metric=Metric("gpu_power_max_limit_watts", "highest power limit that can be set"),
        ),
    ] = None


class TemperatureC(Value, frozen=True):
    """Degrees Celsius. Newer cards have margins instead of thresholds (T.Limit): `margin` is what is left.

    `margin_slowdown` and the others are the margins at which the card acts, at or below 0.
    `nvidia-smi -q -d TEMPERATURE`.
    """

    gpu: Annotated[
        int | None,
        Fact(
            "GPU",
            stability="volatile",
            smi=Smi("{}/gpu_temp", "{}/GPU Current Temp|{}/Gpu", "temperature.gpu"),
            metric=Metric("gpu_temperature_celsius", "temperature now"),
            labels={"sensor": "gpu"},
        ),
    ] = None
    memory: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi("{}/memory_temp", "{}/Memory Current Temp", "temperature.memory"),
            metric=Metric("gpu_temperature_celsius", "temperature now"),
            labels={"sensor": "memory"},
        ),
    ] = None
    slowdown: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_slow_threshold", "{}/GPU Slowdown Temp"),
            metric=Metric("gpu_temperature_slowdown_celsius", "temperature: slowdown"),
        ),
    ] = None
    shutdown: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_max_threshold", "{}/GPU Shutdown Temp"),
            metric=Metric("gpu_temperature_shutdown_celsius", "temperature: shutdown"),
        ),
    ] = None
    max_operating: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_max_gpu_threshold", "{}/GPU Max Operating Temp"),
            metric=Metric("gpu_temperature_max_operating_celsius", "temperature: max operating"),
        ),
    ] = None
    memory_max_operating: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_max_mem_threshold", "{}/Memory Max Operating Temp"),
            metric=Metric(
                "gpu_temperature_memory_max_operating_celsius", "temperature: memory max operating"
            ),
        ),
    ] = None
    target: Annotated[
        int | None,
        Fact(
            smi=Smi(
                "{}/gpu_target_temperature",
                "{}/GPU Target Temperature|{}/GPU Target Temperature Specification",
            ),
            metric=Metric("gpu_temperature_target_celsius", "temperature: target"),
        ),
    ] = None
    margin: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi(
                "{}/gpu_temp_tlimit",
                "{}/GPU T.Limit Temp|{}/GPU Current T.Limit Temp",
                "temperature.gpu.tlimit",
            ),
            metric=Metric("gpu_temperature_margin_celsius", "temperature: margin"),
        ),
    ] = None
    margin_slowdown: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_slow_tlimit_threshold", "{}/GPU Slowdown T.Limit Temp"),
            metric=Metric("gpu_temperature_margin_slowdown_celsius", "temperature: margin slowdown"),
        ),
    ] = None
    margin_shutdown: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_max_tlimit_threshold", "{}/GPU Shutdown T.Limit Temp"),
            metric=Metric("gpu_temperature_margin_shutdown_celsius", "temperature: margin shutdown"),
        ),
    ] = None
    margin_max_operating: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/gpu_temp_max_gpu_tlimit_threshold", "{}/GPU Max Operating T.Limit Temp"),
            metric=Metric(
                "gpu_temperature_margin_max_operating_celsius", "temperature: margin max operating"
            ),
        ),
    ] = None


_GEN, _GEN_TEXT = "pci/pci_gpu_link_info/pcie_gen", "PCI/GPU Link Info/PCIe Generation"
_WIDTH, _WIDTH_TEXT = "pci/pci_gpu_link_info/link_widths", "PCI/GPU Link Info/Link Width"


class Pcie(Value, frozen=True):
    """The PCIe link of a GPU. `gen_max` and `width_max` are what card and slot can do together.

    `limiting_hop` is the PCI address of the bridge that is slower than the card on the path to the root.
    `aer`: advanced error reporting, {"correctable": 0, "nonfatal": 0, "fatal": 0}, from sysfs.
    """

    gen_now: Annotated[
        int | None,
        Fact(
            stability="state",
            smi=Smi(f"{_GEN}/current_link_gen", f"{_GEN_TEXT}/Current", "pcie.link.gen.current", kind="step"),
            metric=Metric("gpu_pcie_generation", "PCIe generation of the link now"),
        ),
    ] = None
    gen_max: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(f"{_GEN}/max_link_gen", f"{_GEN_TEXT}/Max", "pcie.link.gen.max", kind="step"),
            metric=Metric("gpu_pcie_generation_max", "what card and slot can do together"),
        ),
    ] = None
    gen_max_device: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                f"{_GEN}/max_device_link_gen", f"{_GEN_TEXT}/Device Max", "pcie.link.gen.gpumax", kind="step"
            ),
            metric=Metric("gpu_pcie_generation_card", "what the card can do"),
        ),
    ] = None
    gen_max_host: Annotated[
        int | None,
        Fact(
            stability="fixed",
            smi=Smi(
                f"{_GEN}/max_host_link_gen", f"{_GEN_TEXT}/Host Max", "pcie.link.gen.hostmax", kind="step"
            ),
            metric=Metric("gpu_pcie_generation_slot", "what the slot can do"),
        ),
    ] = None
    width_now: Annotated[
        int | None,
        Fact(
            unit="lanes",
            stability="state",
            smi=Smi(
                f"{_WIDTH}/current_link_width",
                f"{_WIDTH_TEXT}/Current",
                "pcie.link.width.current",
                kind="width",
            ),
            metric=Metric("gpu_pcie_lanes", "lanes of the link now"),
        ),
    ] = None
    width_max: Annotated[
        int | None,
        Fact(
            unit="lanes",
            stability="fixed",
            peers=True,
            smi=Smi(f"{_WIDTH}/max_link_width", f"{_WIDTH_TEXT}/Max", "pcie.link.width.max", kind="width"),
            metric=Metric("gpu_pcie_lanes_max", "lanes of the link at most"),
        ),
    ] = None
    replay_counter: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            smi=Smi("pci/replay_counter", "PCI/Replays Since Reset", kind="count"),
            metric=Metric("gpu_pcie_replays_total", "packets that were sent again"),
        ),
    ] = None
    replay_rollovers: Annotated[  # the same packet was sent again four times: the link is trained anew
        int | None,
        Fact(
            stability="state",
            counter=True,
            smi=Smi("pci/replay_rollover_counter", "PCI/Replay Number Rollovers", kind="count"),
            metric=Metric(
                "gpu_pcie_replay_rollovers_total", "packets that were sent again until the link failed"
            ),
        ),
    ] = None
    limiting_hop: Annotated[str | None, Fact(same=same_address, info=True)] = None
    aer: Annotated[
        dict[str, int] | None,
        Fact(
            "AER errors",
            stability="state",
            counter=True,
            metric=Metric("gpu_pcie_errors_total", "errors of the PCIe link (AER)", by="severity"),
        ),
    ] = None


class MemoryMib(Value, frozen=True):
    """Memory of a GPU in MiB. `nvidia-smi --query-gpu=memory.total,memory.used,memory.free`."""

    # Of 40 960 MiB of an A100, nvidia-smi's number, CUDA reports 40 540: without the driver's share.
    total: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            tolerance=0.02,
            smi=Smi("{}/total", "{}/Total", "{}.total"),
            metric=Metric("{}_size_bytes", "{}, in all"),
        ),
    ] = None
    used: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi("{}/used", "{}/Used", "{}.used"),
            metric=Metric("{}_used_bytes", "{}, in use"),
        ),
    ] = None
    free: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi("{}/free", "{}/Free", "{}.free"),
            metric=Metric("{}_free_bytes", "{}, free"),
        ),
    ] = None


class UtilizationPercent(Value, frozen=True):
    """Share of time that kernels ran and that memory was read or written, in percent."""

    gpu: Annotated[
        int | None,
        Fact(
            "GPU",
            smi=Smi("utilization/gpu_util", "Utilization/GPU", "utilization.gpu"),
            metric=Metric("gpu_utilization_ratio", "share of time that kernels ran"),
        ),
    ] = None
    memory: Annotated[
        int | None,
        Fact(
            smi=Smi("utilization/memory_util", "Utilization/Memory", "utilization.memory"),
            metric=Metric("gpu_memory_utilization_ratio", "share of time that memory was read or written"),
        ),
    ] = None


def _errors(error: str, bits: str, since: str) -> Fact:
    help = "memory errors; volatile: since the driver was loaded, aggregate: in all"
    return Fact(
        stability="state",
        counter=True,
        smi=Smi(
            f"ecc_errors/{since}/{bits}_bit/total",
            f"ECC Errors/{since}/{bits} Bit/Total",
            f"ecc.errors.{error}.{since}.total",
            kind="count",
        ),
        metric=Metric("gpu_ecc_errors_total", help),
        labels={"error": error, "counted": since},
    )


class Ecc(Value, frozen=True):
    """Error correction: mode now and after a reboot, error counts since boot and in all, repairs.

    `counts`: by place, as the card reports them, {"volatile.sram_uncorrectable_parity": 0}. Repairs of a
    memory channel or a TPC (cluster of SMs) take effect with a reset (Blackwell and later).
    """

    mode: Annotated[
        bool | None,
        Fact(
            peers=True,
            smi=Smi("ecc_mode/current_ecc", "ECC Mode/Current", "ecc.mode.current", kind="switch"),
            metric=Metric("gpu_ecc_enabled", "whether memory errors are corrected"),
        ),
    ] = None
    mode_pending: Annotated[
        bool | None,
        Fact(
            smi=Smi("ecc_mode/pending_ecc", "ECC Mode/Pending", "ecc.mode.pending", kind="switch"),
            metric=Metric("gpu_ecc_enabled_after_reboot", "the same after a reboot"),
        ),
    ] = None
    corrected_volatile: Annotated[int | None, _errors("corrected", "single", "volatile")] = None
    uncorrected_volatile: Annotated[int | None, _errors("uncorrected", "double", "volatile")] = None
    corrected_aggregate: Annotated[int | None, _errors("corrected", "single", "aggregate")] = None
    uncorrected_aggregate: Annotated[int | None, _errors("uncorrected", "double", "aggregate")] = None
    counts: Annotated[
        dict[str, int] | None,
        Fact(
            stability="state",
            counter=True,
            metric=Metric("gpu_ecc_place_errors_total", "memory errors by their place", by="place"),
        ),
    ] = None
    channel_repair_pending: Annotated[
        bool | None,
        Fact(
            stability="state",
            smi=Smi("ecc_errors/channel_repair_pending", "ECC Errors/Channel Repair Pending", kind="yes"),
            metric=Metric("gpu_channel_repair_pending", "whether the repair of a memory channel is pending"),
        ),
    ] = None
    tpc_repair_pending: Annotated[
        bool | None,
        Fact(
            "TPC repair pending",
            stability="state",
            smi=Smi("ecc_errors/tpc_repair_pending", "ECC Errors/TPC Repair Pending", kind="yes"),
            metric=Metric("gpu_tpc_repair_pending", "whether the repair of a TPC is pending"),
        ),
    ] = None
    unrepairable_memory: Annotated[
        bool | None,
        Fact(
            stability="state",
            smi=Smi("ecc_errors/unrepairable_memory", "ECC Errors/Unrepairable Memory", kind="yes"),
            metric=Metric("gpu_unrepairable_memory", "whether memory could not be repaired"),
        ),
    ] = None


def _banks(spare: str) -> Fact:
    return Fact(
        f"{spare} spare rows",
        smi=Smi(f"{{}}/row_remapper_histogram_{spare}", f"{{}}/{spare}", f"{{}}.{spare}", kind="banks"),
        metric=Metric("gpu_memory_banks", "memory banks, by the spare rows that they have left"),
        labels={"spare_rows": spare},
    )


class SpareRows(Value, frozen=True):
    """Number of memory banks with all, many, some, few or none of their spare rows left."""

    max: Annotated[int | None, _banks("max")] = None
    high: Annotated[int | None, _banks("high")] = None
    partial: Annotated[int | None, _banks("partial")] = None
    low: Annotated[int | None, _banks("low")] = None
    none: Annotated[int | None, _banks("none")] = None


class RemappedRows(Value, frozen=True):
    """Memory rows that were replaced by spare ones (Ampere and later)."""

    correctable: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/remapped_row_corr", "{}/Correctable Error", "{}.correctable", kind="count"),
            metric=Metric("gpu_remapped_rows", "memory rows that were replaced, by the error that caused it"),
            labels={"error": "correctable"},
        ),
    ] = None
    uncorrectable: Annotated[
        int | None,
        Fact(
            smi=Smi("{}/remapped_row_unc", "{}/Uncorrectable Error", "{}.uncorrectable", kind="count"),
            metric=Metric("gpu_remapped_rows", "memory rows that were replaced, by the error that caused it"),
            labels={"error": "uncorrectable"},
        ),
    ] = None
    pending: Annotated[
        bool | None,
        Fact(
            smi=Smi("{}/remapped_row_pending", "{}/Pending", "{}.pending", kind="yes"),
            metric=Metric("gpu_remapping_pending", "whether a row waits for a reset"),
        ),
    ] = None
    failure: Annotated[
        bool | None,
        Fact(
            smi=Smi("{}/remapped_row_failure", "{}/Remapping Failure Occurred", "{}.failure", kind="yes"),
            metric=Metric("gpu_remapping_failed", "whether a row could not be replaced"),
        ),
    ] = None
    banks: Annotated[
        SpareRows,
        Fact(
            "memory banks",
            smi=Smi("{}/row_remapper_histogram", "{}/Bank Remap Availability Histogram", "{}.histogram"),
            part="{whole} with {part}",
        ),
    ] = SpareRows()


class RetiredPages(Value, frozen=True):
    """Memory pages that are no longer used (before Ampere)."""

    single_bit: Annotated[
        int | None,
        Fact(
            smi=Smi(
                "{}/multiple_single_bit_retirement/retired_count",
                "{}/Single Bit ECC",
                "{}.single_bit_ecc.count|{}.sbe",
                kind="count",
            ),
        ),
    ] = None
    double_bit: Annotated[
        int | None,
        Fact(
            smi=Smi(
                "{}/double_bit_retirement/retired_count",
                "{}/Double Bit ECC",
                "{}.double_bit.count|{}.dbe",
                kind="count",
            ),
        ),
    ] = None
    pending: Annotated[
        bool | None,
        Fact(
            smi=Smi(
                "{}/pending_retirement|{}/pending_blacklist",
                "{}/Pending Page Blacklist|{}/Pending",
                "{}.pending",
                kind="yes",
            ),
            metric=Metric("gpu_retirement_pending", "whether a page waits for a reboot"),
        ),
    ] = None


class Mig(Value, frozen=True):
    """Multi-Instance GPU: whether the GPU is split now and after a reset, and into how many instances."""

    mode: Annotated[
        bool | None,
        Fact(
            peers=True,
            smi=Smi("mig_mode/current_mig", "MIG Mode/Current", "mig.mode.current", kind="switch"),
            metric=Metric("gpu_mig_enabled", "whether a GPU is split"),
        ),
    ] = None
    mode_pending: Annotated[
        bool | None,
        Fact(
            smi=Smi("mig_mode/pending_mig", "MIG Mode/Pending", "mig.mode.pending", kind="switch"),
            metric=Metric("gpu_mig_enabled_after_reset", "the same after a reset"),
        ),
    ] = None
    instances: Annotated[
        int | None, Fact(metric=Metric("gpu_mig_instances", "into how many instances a GPU is split"))
    ] = None


class GpuProcess(Value, frozen=True):
    """A process that uses memory of a GPU. Drivers before 450 call the section "Compute Processes"."""

    pid: Annotated[
        int,
        Fact(
            smi=Smi(
                "processes/process_info/pid",
                "Processes/Process ID|Compute Processes/Process ID",
                kind="count",
            )
        ),
    ]
    kind: Annotated[  # compute, graphics or mps
        str | None,
        Fact(smi=Smi("processes/process_info/type", "Processes/Process ID/Type", kind="process")),
    ] = None
    name: Annotated[
        str | None,
        Fact(
            smi=Smi(
                "processes/process_info/process_name",
                "Processes/Process ID/Name|Compute Processes/Process ID/Name",
                kind="program",
            )
        ),
    ] = None
    user: str | None = None
    memory_mib: Annotated[
        int | None,
        Fact(
            "memory",
            unit="MiB",
            smi=Smi(
                "processes/process_info/used_memory",
                "Processes/Process ID/Used GPU Memory|Compute Processes/Process ID/Used GPU Memory",
            ),
        ),
    ] = None


class NvLink(Value, frozen=True):
    """One NVLink port of a GPU. `gb_per_s`: its speed in one direction, as `nvidia-smi nvlink -s` has it."""

    link: int
    active: Annotated[bool | None, Fact(metric=Metric("gpu_nvlink_active", "whether an NVLink is up"))] = None
    version: Annotated[int | None, Fact(info=True)] = None
    gb_per_s: Annotated[
        float | None,
        Fact(
            "speed",
            unit="GB/s",
            metric=Metric("gpu_nvlink_speed_bytes_per_second", "speed of an NVLink in one direction"),
        ),
    ] = None
    remote_pci_address: Annotated[str | None, Fact("remote PCI address", same=same_address, info=True)] = None
    remote_kind: Annotated[str | None, Fact(info=True)] = None  # gpu, switch, ibmnpu
    errors: Annotated[
        dict[str, int],
        Fact(counter=True, metric=Metric("gpu_nvlink_errors_total", "errors of an NVLink", by="error")),
    ] = msgspec.field(default_factory=dict)


JOINING = ("not started", "in progress")  # states of a fabric before "completed"


class Fabric(Value, frozen=True):
    """The state of a GPU in the NVSwitch fabric, as the driver calls it.

    `state`: not started, in progress, completed: how far it has joined. `status`: how that ended, "success"
    or an error. `health`: what is reported of it since, {"summary": "healthy", "bandwidth": "full"}. All in
    nvidia-smi's words, in lower case; None on a GPU without NVSwitches. `nvidia-smi -q`, section Fabric.
    """

    state: Annotated[
        str | None, Fact(smi=Smi("fabric/state", "Fabric/State", "fabric.state", kind="fabric"))
    ] = None
    status: Annotated[
        str | None, Fact(smi=Smi("fabric/status", "Fabric/Status", "fabric.status", kind="fabric"))
    ] = None
    health: dict[str, str] | None = None

    @property
    def joining(self) -> bool:
        """Whether it has not joined yet: until then CUDA does not start on the GPU."""
        return self.state in JOINING


class Gpu(Value, frozen=True):
    """One GPU. `index` is the PCI order, which is also NVML's; `cuda_index` CUDA's default order."""

    index: int
    cuda_index: Annotated[int | None, Fact("CUDA index", info=True)] = None
    uuid: Annotated[
        str | None,
        Fact(
            "UUID",
            stability="fixed",
            smi=Smi("uuid", "GPU UUID", "uuid|gpu_uuid", kind="uuid"),
            info=True,
        ),
    ] = None
    name: Annotated[
        str | None,
        Fact(
            stability="fixed",
            same=_same_name,
            smi=Smi("product_name", "Product Name", "name|gpu_name", kind="words"),
        ),
    ] = None
    brand: Annotated[
        str | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi("product_brand", "Product Brand", kind="words"),
            info=True,
        ),
    ] = None
    architecture: Annotated[
        str | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi("product_architecture", "Product Architecture", kind="words"),
            info=True,
        ),
    ] = None
    pci_address: Annotated[
        str | None,
        Fact(
            "PCI address",
            stability="fixed",
            same=same_address,
            smi=Smi("pci/pci_bus_id", "PCI/Bus Id", "pci.bus_id|gpu_bus_id", kind="address"),
        ),
    ] = None
    pci_device_id: Annotated[  # "2204": the chip and its variant
        str | None,
        Fact(
            "PCI device id",
            stability="fixed",
            smi=Smi("pci/pci_device_id", "PCI/Device Id", "pci.device_id", kind="device"),
            info=True,
        ),
    ] = None
    vbios_version: Annotated[  # "90.04.84.00.06"
        str | None,
        Fact(
            "VBIOS version",
            peers=True,
            smi=Smi("vbios_version", "VBIOS Version", "vbios_version", kind="words"),
            info=True,
        ),
    ] = None
    gsp_firmware_version: Annotated[  # of the GPU System Processor, since Turing: "550.163.01"
        str | None,
        Fact(
            "GSP firmware version",
            peers=True,
            smi=Smi("gsp_firmware_version", "GSP Firmware Version", kind="words"),
            info=True,
        ),
    ] = None
    numa_node: Annotated[int | None, Fact("NUMA node", info=True)] = None
    cpu_affinity: Annotated[  # a list as in sysfs: "0-9,20-29"
        str | None, Fact("CPU affinity", same=same_cpus, info=True)
    ] = None
    clocks_mhz: Annotated[ClocksMhz, Fact("clocks", unit="MHz", part="{part} clock")] = ClocksMhz()
    pstate: Annotated[  # "P0" is the fastest
        str | None,
        Fact(
            "P-state",
            stability="volatile",
            smi=Smi("performance_state", "Performance State", "pstate", kind="pstate"),
        ),
    ] = None
    throttle: Annotated[Throttle, Fact("throttling", stability="volatile")] = Throttle()
    violation_ns: Annotated[
        dict[str, int] | None,
        Fact(
            "violation times",
            unit="ns",
            stability="volatile",
            counter=True,
            metric=Metric(
                "gpu_throttled_seconds_total", "time that the clocks were throttled, by reason", by="reason"
            ),
        ),
    ] = None
    power_w: Annotated[
        PowerW,
        Fact(
            "power",
            unit="W",
            smi=Smi("gpu_power_readings|power_readings", "GPU Power Readings|Power Readings"),
        ),
    ] = PowerW()
    temperature_c: Annotated[
        TemperatureC, Fact("temperature", unit="C", smi=Smi("temperature", "Temperature"))
    ] = TemperatureC()
    pcie: Annotated[Pcie, Fact("PCIe")] = Pcie()
    memory_mib: Annotated[
        MemoryMib,
        Fact(
            "memory",
            unit="MiB",
            smi=Smi("fb_memory_usage", "FB Memory Usage", "memory"),
            metric=Metric("gpu_memory", "memory of a GPU"),
        ),
    ] = MemoryMib()
    bar1_mib: Annotated[
        MemoryMib,
        Fact(
            "BAR1",
            unit="MiB",
            smi=Smi("bar1_memory_usage", "BAR1 Memory Usage"),
            metric=Metric("gpu_bar1", "BAR1 (the window for other devices) of a GPU"),
        ),
    ] = MemoryMib()
    fan_percent: Annotated[
        int | None,
        Fact(
            "fan",
            unit="%",
            stability="volatile",
            smi=Smi("fan_speed", "Fan Speed", "fan.speed"),
            metric=Metric("gpu_fan_speed_ratio", "fan speed, 1 is full"),
        ),
    ] = None
    display_active: Annotated[
        bool | None,
        Fact(
            stability="volatile",
            smi=Smi("display_active", "Display Active", "display_active", kind="switch"),
            metric=Metric("gpu_display_active", "whether a GPU drives a display"),
        ),
    ] = None
    virtualization: Annotated[  # none, pass-through, vgpu, ...
        str | None,
        Fact(
            smi=Smi(
                "gpu_virtualization_mode/virtualization_mode",
                "GPU Virtualization Mode/Virtualization Mode",
                kind="lower",
            ),
            info=True,
        ),
    ] = None
    utilization_percent: Annotated[
        UtilizationPercent, Fact("utilization", unit="%", stability="volatile")
    ] = UtilizationPercent()
    ecc: Annotated[Ecc, Fact("ECC")] = Ecc()
    remapped_rows: Annotated[
        RemappedRows, Fact(stability="state", smi=Smi("remapped_rows", "Remapped Rows", "remapped_rows"))
    ] = RemappedRows()
    retired_pages: Annotated[
        RetiredPages, Fact(stability="state", smi=Smi("retired_pages", "Retired Pages", "retired_pages"))
    ] = RetiredPages()
    mig: Annotated[Mig, Fact("MIG")] = Mig()
    compute_mode: Annotated[
        str | None,
        Fact(
            peers=True,
            smi=Smi("compute_mode", "Compute Mode", "compute_mode", kind="mode"),
            info=True,
        ),
    ] = None
    persistence_mode: Annotated[
        bool | None,
        Fact(
            peers=True,
            smi=Smi("persistence_mode", "Persistence Mode", "persistence_mode", kind="switch"),
            metric=Metric("gpu_persistence_mode", "whether the driver stays loaded without use"),
        ),
    ] = None
    processes: Annotated[tuple[GpuProcess, ...] | None, Fact(stability="volatile")] = None
    nvlinks: Annotated[tuple[NvLink, ...] | None, Fact("NVLinks", stability="state")] = None
    fabric: Annotated[Fabric, Fact(stability="state")] = Fabric()
    lost: Annotated[  # it was counted, and then did not answer
        bool,
        Fact(
            stability="state",
            metric=Metric("gpu_lost", "whether a GPU was counted and then did not answer"),
        ),
    ] = False
    recovery_action: Annotated[  # none, reset, reboot, drain p2p, drain and reset: as nvidia-smi has it
        str | None,
        Fact(
            stability="state",
            smi=Smi("gpu_recovery_action", "GPU Recovery Action", "gpu_recovery_action", kind="action"),
        ),
    ] = None
