"""The names of each fact in the three dialects of `nvidia-smi`: XML, text and CSV. One row a fact.

Fields declare their names themselves (gputopo.values.gpu). Here are the names of what has no field of its
own (keys of dictionaries, questions that together make one fact), and known names without a place in a
Machine: a name stands for itself and all below it, `*` at the end for any ending.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gputopo.values.fields import fields_of
from gputopo.values.machine import Driver, Gpu, GpuProcess


def _listed(text: str) -> tuple[str, ...]:
    """Return the names of a list that commas part, in lower case."""
    return tuple(" ".join(name.lower().split()) for name in text.split(","))


def _tags(path: str) -> str:
    """Return the tags of the XML for a heading of the text and those above it."""
    return "/".join(re.sub(r"[^a-z0-9*]+", "_", heading).strip("_") for heading in path.split("/"))


UNPLACED_TEXT = _listed(
    """
    Timestamp, Attached GPUs, Attached Units, HIC Info, Temperature/Memory Temp,
    Display Mode, Display Attached, Addressing Mode, Accounting Mode,
    Accounting Mode Buffer Size, Driver Model, Serial Number, GPU PDI, Minor Number,
    MultiGPU Board, Board ID, GPU Part Number, FRU Part Number, Module ID,
    Platform Info, Inforom Version, Inforom BBX Object Flush, GPU Operation Mode,
    IBMNPU, Capabilities, Fabric/Cluster*,
    Voltage, Clock Policy, Deferred Clocks/Memory, Supported Clocks, Accounted Processes, Encoder Stats,
    FBC Stats, DRAM Encryption Mode, Sparse Operation Mode, Conf Compute Protected Memory Usage,
    GPU Memory Power Readings, Module Power Readings, Power Smoothing, Workload Power Profiles,
    EDPp Multiplier, Power Samples, Module Power Samples, SM Clock Samples, Memory Clock Samples,
    GPU Utilization Samples, Memory Utilization Samples, ENC Utilization Samples,
    DEC Utilization Samples, JPEG Utilization Samples, OFA Utilization Samples, Video Encoder Stats,
    GPU Virtualization Mode/Host VGPU Mode, GPU Virtualization Mode/vGPU Heterogeneous Mode, PCI/Bus,
    PCI/Device, PCI/Domain, PCI/Base Classcode, PCI/Sub Classcode, PCI/Bridge Chip,
    PCI/Tx Throughput, PCI/Rx Throughput, PCI/Atomic Caps *,
    PCI/GPU Link Info/PCIe Generation/Device Current, FB Memory Usage/Reserved, MIG Device,
    Utilization/Encoder, Utilization/Decoder, Utilization/JPEG, Utilization/OFA,
    Remapped Rows/Inactive Correctable Error, Remapped Rows/Inactive Uncorrectable Error,
    Temperature/Memory Max Operating T.Limit Temp,
    GPU Power Readings/Power State, Power Readings/Power State, Power Readings/Power Management,
    GPU Power Readings/GPU Base Power, Inforom Time Data, vGPU Driver Capability, vGPU Device Capability,
    vGPU Software Licensed Product, vGPU Software Licensed Product/Product Name,
    Processes/GPU instance ID, Processes/Compute instance ID
    """
)

# XML tags are the headings of the text in lower case with underscores, but for these.
UNPLACED_XML = _listed(
    """
    cc_protected_memory_usage, deferred_clocks/mem_clock, gpu_fru_part_number, gpu_module_id,
    inforom_bbx_flush, inforom_checksum, mig_devices/mig_device, pci/pci_base_class, pci/pci_bridge_chip,
    pci/pci_bus, pci/pci_device, pci/pci_domain, pci/pci_sub_class, pci/rx_util,
    pci/tx_util, pci/pci_gpu_link_info/pcie_gen/device_current_link_gen, pdi, platforminfo, power_profiles,
    processes/process_info/compute_instance_id, processes/process_info/gpu_instance_id,
    remapped_rows/remapped_row_corr_inactive, remapped_rows/remapped_row_unc_inactive,
    retired_pages/double_bit_retirement/retired_page*,
    retired_pages/multiple_single_bit_retirement/retired_page*, serial, supported_gpu_target_temp,
    temperature/gpu_temp_max_mem_tlimit_threshold, utilization/decoder_util, utilization/encoder_util,
    utilization/jpeg_util, utilization/ofa_util
    """
)

UNPLACED_CSV = _listed(
    """
    timestamp, count, index, serial, gpu_serial, hostname, display_mode, display_attached,
    addressing_mode, accounting.*, driver_model.*, inforom.*,
    gom.*, compute_cap, vgpu_driver_capability.*, vgpu_device_capability.*, pci.domain, pci.bus,
    pci.device, pci.baseclass, pci.subclass, pcie.link.gen.gpucurrent,
    memory.reserved, utilization.encoder, utilization.decoder, utilization.jpeg, utilization.ofa,
    encoder.stats.*, dramencryption.*, clocks_event_reasons.supported,
    clocks_throttle_reasons.supported, power.management, module.*,
    power_smoothing.*, edpp_multiplier, gsp.mode.*,
    protected_memory.*, fabric.cluster*, platform.*, minor_number,
    remapped_rows.correctable_inactive, remapped_rows.uncorrectable_inactive, gpu.base.*, bbx.*
    """
)


Dialect = Literal["xml", "text", "csv"]

_PLACE: dict[Dialect, int] = {"xml": 0, "text": 1, "csv": 2}


class NameRow(NamedTuple):
    """A fact of the Gpu (its path there), how its value is written (see values.py), and its names."""

    fact: str
    kind: str
    xml: str
    text: str
    csv: str = ""

    def names(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the names in one dialect, the preferred one first."""
        listed = (self.xml, self.text, self.csv)[_PLACE[dialect]].lower().split("|")
        return tuple(dict.fromkeys(name for name in listed if name))


def _declared(kind: type[msgspec.Struct]) -> Iterable[NameRow]:
    for path, field in fields_of(kind).items():
        if field.smi is not None and field.leaf and "[]" not in path:
            names = field.smi
            yield NameRow(path, names.kind or field.unit, names.xml, names.text, names.csv)


# Our names of the reasons are those of gputopo.reference.clock_events.BITS. Tag, heading, query.
_REASONS = (
    ("gpu_idle", "gpu_idle", "Idle"),
    ("applications_clocks_setting", "applications_clocks_setting", "Applications Clocks Setting"),
    ("sw_power_cap", "sw_power_cap", "SW Power Cap"),
    ("hw_slowdown", "hw_slowdown", "HW Slowdown"),
    ("sync_boost", "sync_boost", "Sync Boost"),
    ("sw_thermal_slowdown", "sw_thermal_slowdown", "SW Thermal Slowdown"),
    ("hw_thermal_slowdown", "hw_thermal_slowdown", "HW Slowdown/HW Thermal Slowdown|HW Thermal Slowdown"),
    (
        "hw_power_brake_slowdown",
        "hw_power_brake_slowdown",
        "HW Slowdown/HW Power Brake Slowdown|HW Power Brake Slowdown",
    ),
    ("display_clock_setting", "display_clocks_setting|display_clock_setting", "Display Clock Setting"),
    ("board_limit", "board_limit", "Board Limit"),
    ("reliability", "reliability", "Reliability"),
    ("user_defined_clocks", "user_defined_clocks", "User Defined Clocks"),
    ("unknown", "unknown", "Unknown"),
)
# Reported in every era: without these the list of reasons in force is not whole.
BASE_REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown")


def _reasons() -> Iterable[NameRow]:
    for reason, tags, headings in _REASONS:
        yield NameRow(
            f"throttle.reasons.{reason}",
            "active",
            "|".join(
                f"clocks_{era}_reasons/clocks_{era}_reason_{tag}"
                for era in ("event", "throttle")
                for tag in tags.split("|")
            ),
            "|".join(
                f"Clocks {era} Reasons/{heading}"
                for era in ("Event", "Throttle")
                for heading in headings.split("|")
            ),
            "|".join(
                f"clocks_{era}_reasons.{tag}" for era in ("event", "throttle") for tag in tags.split("|")
            ),
        )


# NVML's violation times are other counters than these, so these have the reasons' names. Tag, heading.
_COUNTERS = (
    ("sw_power_cap", "sw_power_cap", "SW Power Capping"),
    ("sync_boost", "sync_boost", "Sync Boost"),
    ("sw_thermal_slowdown", "sw_therm_slowdown", "SW Thermal Slowdown"),
    ("hw_thermal_slowdown", "hw_therm_slowdown", "HW Thermal Slowdown"),
    ("hw_power_brake_slowdown", "hw_power_brake", "HW Power Braking"),
)


def _counters() -> Iterable[NameRow]:
    for name, tag, heading in _COUNTERS:
        section = "clocks_event_reasons_counters"
        yield NameRow(
            f"violation_ns.{name}",
            "us",
            f"{section}/{section}_{tag}",
            f"Clocks Event Reasons Counters/{heading}",
            f"{section}.{name}",
        )


# Up to Volta: single and double bit errors by place. Tag, heading, query.
_PLACES = (
    ("device_memory", "Device Memory", "device_memory"),
    ("register_file", "Register File", "register_file"),
    ("l1_cache", "L1 Cache", "l1_cache"),
    ("l2_cache", "L2 Cache", "l2_cache"),
    ("texture_memory", "Texture Memory", "texture_memory"),
    ("texture_shm", "Texture Shared", "texture_shm"),
    ("cbu", "CBU", "cbu"),
)
# Since Turing. Tag, heading, query.
_SRAM = (
    ("sram_correctable", "SRAM Correctable", "corrected.{}.sram"),
    ("sram_uncorrectable", "SRAM Uncorrectable", "uncorrected.{}.sram"),
    ("sram_uncorrectable_parity", "SRAM Uncorrectable Parity", "uncorrected.{}.sram.parity"),
    ("sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", "uncorrected.{}.sram.secded"),
    ("dram_correctable", "DRAM Correctable", "corrected.{}.dram"),
    ("dram_uncorrectable", "DRAM Uncorrectable", "uncorrected.{}.dram"),
)
_BUCKETS = ("L2", "SM", "Microcontroller", "PCIE", "Other")


def _ecc() -> Iterable[NameRow]:
    for since in ("volatile", "aggregate"):
        at = f"ecc_errors/{since}", f"ECC Errors/{since}"
        for tag, heading, query in _SRAM:
            yield NameRow(
                f"ecc.counts.{since}.{tag}",
                "count",
                f"{at[0]}/{tag}",
                f"{at[1]}/{heading}",
                "ecc.errors." + query.format(since),
            )
        for bit, word in (("single", "corrected"), ("double", "uncorrected")):
            section = f"{at[0]}/{bit}_bit/", f"{at[1]}/{bit} Bit/", f"ecc.errors.{word}.{since}."
            for tag, heading, query in _PLACES:
                names = section[0] + tag, section[1] + heading, section[2] + query
                yield NameRow(f"ecc.counts.{since}.{bit}_bit.{tag}", "count", *names)
    yield NameRow(
        "ecc.counts.aggregate.sram_threshold_exceeded",
        "yes as 1",
        "ecc_errors/aggregate/sram_threshold_exceeded",
        "ECC Errors/Aggregate/SRAM Threshold Exceeded",
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    )
    for heading in _BUCKETS:
        tag = heading.lower()
        query = tag.replace("microcontroller", "mcu")
        yield NameRow(
            f"ecc.counts.aggregate_uncorrectable_sram_sources.sram_{tag}",
            "count",
            f"ecc_errors/aggregate_uncorrectable_sram_sources/sram_{tag}",
            f"ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM {heading}",
            f"ecc.errors.uncorrected.aggregate.sram.{query}",
        )


# The newer the driver the more of them.
_FABRIC = (
    "Summary", "Bandwidth", "Route Recovery in progress", "Route Unhealthy", "Access Timeout Recovery",
    "Incorrect Configuration", "Partition Assigned",
)  # fmt: skip


def _fabric() -> Iterable[NameRow]:
    for heading in _FABRIC:
        name = _tags(heading.lower())
        at = f"fabric/health/{name}", f"Fabric/Health/{heading}", f"fabric.health.{name}"
        yield NameRow(f"fabric.health.{name}", "fabric", *at)


# What a GPU needs before it can be used again. Drivers since 570 name the action (`GPU Recovery Action`),
# those from 530 answer two questions instead (nvml.h calls them deprecated in favour of the action).
RECOVERY = "recovery_action"
RESET_REQUIRED = f"{RECOVERY}.reset_required"
DRAIN_RECOMMENDED = f"{RECOVERY}.drain_and_reset_recommended"

_RECOVERY = (
    NameRow(
        RESET_REQUIRED,
        "yes",
        "gpu_reset_status/reset_required",
        "GPU Reset Status/Reset Required",
        "reset_status.reset_required",
    ),
    NameRow(
        DRAIN_RECOMMENDED,
        "yes",
        "gpu_reset_status/drain_and_reset_recommended",
        "GPU Reset Status/Drain and Reset Recommended",
        "reset_status.drain_and_reset_recommended",
    ),
)

# Fields that several rows make up: dictionaries, the list of reasons, the recovery action.
COLLECTED = ("throttle.reasons", "violation_ns", "ecc.counts", "fabric.health", RECOVERY)

DRIVER = tuple(_declared(Driver))
PROCESS = tuple(_declared(GpuProcess))
GPU = (*_declared(Gpu), *_reasons(), *_counters(), *_ecc(), *_fabric(), *_RECOVERY)


class Named(NamedTuple):
    """A row, and how good this one of its names is: 0 is the best."""

    row: NameRow
    rank: int


class Names(NamedTuple):
    """The names of one output format."""

    facts: dict[str, Named]
    processes: dict[str, NameRow]
    driver: dict[str, Named]
    sections: frozenset[str]
    unplaced: frozenset[str]
    prefixes: tuple[str, ...]

    def is_unplaced(self, path: str) -> bool:
        """Return whether a name is known and has no place in a Machine; so are all names below it.

        A name that a field declares has one, also where `known` lists it.
        """
        if path in self.facts:
            return False
        at = len(path)
        while at > 0:
            if path[:at] in self.unplaced:
                return True
            at = path.rfind("/", 0, at)
        return path.startswith(self.prefixes)

    def nearest(self, above: Sequence[str], name: str) -> str | None:
        """Return the path of a name under the nearest of the headings above where it is known by itself."""
        for depth in range(len(above), -1, -1):
            path = "/".join([*above[:depth], name])
            listed = (self.facts, self.processes, self.sections, self.unplaced)
            if any(path in paths for paths in listed) or path.startswith(self.prefixes):
                return path
        return None

    def below(self, section: str) -> list[Named]:
        """Return the facts that are reported under a section."""
        return [named for name, named in self.facts.items() if name.startswith(f"{section}/")]


_UNPLACED: dict[Dialect, tuple[str, ...]] = {
    "xml": (*map(_tags, UNPLACED_TEXT), *UNPLACED_XML),
    "text": UNPLACED_TEXT,
    "csv": UNPLACED_CSV,
}


@functools.cache
def names(dialect: Dialect) -> Names:
    """Return the names of one output format, in lower case."""
    facts = _by_name(GPU, dialect)
    processes = {name: row for row in PROCESS for name in row.names(dialect)} if dialect != "csv" else {}
    unplaced = [name for name in _UNPLACED[dialect] if not name.endswith("*")]
    paths = [*facts, *processes, *_UNPLACED[dialect]]
    sections = {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    return Names(
        facts=facts,
        processes=processes,
        driver=_by_name(DRIVER, dialect),
        sections=frozenset(sections),
        unplaced=frozenset(unplaced),
        prefixes=tuple(name[:-1] for name in _UNPLACED[dialect] if name.endswith("*")),
    )


def _by_name(rows: tuple[NameRow, ...], dialect: Dialect) -> dict[str, Named]:
    return {name: Named(row, rank) for row in rows for rank, name in enumerate(row.names(dialect))}
