"""The names of each fact in the three dialects of `nvidia-smi`: XML, text and CSV. One row a fact.

Fields declare their names themselves (gputopo.values.gpu). Here are the names of what has no field of its
own: the keys of dictionaries, and questions that together make one fact.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from gputopo.values.fields import fields_of
from gputopo.values.machine import Driver, Gpu, GpuProcess

Dialect = Literal["xml", "text", "csv"]

_PLACE: dict[Dialect, int] = {"xml": 0, "text": 1, "csv": 2}


class Row(NamedTuple):
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


def _declared(kind: type[msgspec.Struct]) -> Iterable[Row]:
    for path, field in fields_of(kind).items():
        if field.smi is not None and field.leaf and "[]" not in path:
            names = field.smi
            yield Row(path, names.kind or field.unit, names.xml, names.text, names.csv)


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


def _reasons() -> Iterable[Row]:
    for reason, tags, headings in _REASONS:
        yield Row(
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


def _counters() -> Iterable[Row]:
    for name, tag, heading in _COUNTERS:
        section = "clocks_event_reasons_counters"
        yield Row(
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
_BUCKETS = (
    ("l2", "L2"),
    ("sm", "SM"),
    ("microcontroller", "Microcontroller"),
    ("pcie", "PCIE"),
    ("other", "Other"),
)


def _ecc() -> Iterable[Row]:
    for since in ("volatile", "aggregate"):
        at = f"ecc_errors/{since}", f"ECC Errors/{since}"
        for tag, heading, query in _SRAM:
            yield Row(
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
                yield Row(f"ecc.counts.{since}.{bit}_bit.{tag}", "count", *names)
    yield Row(
        "ecc.counts.aggregate.sram_threshold_exceeded",
        "yes as 1",
        "ecc_errors/aggregate/sram_threshold_exceeded",
        "ECC Errors/Aggregate/SRAM Threshold Exceeded",
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    )
    for tag, heading in _BUCKETS:
        query = tag.replace("microcontroller", "mcu")
        yield Row(
            f"ecc.counts.aggregate_uncorrectable_sram_sources.sram_{tag}",
            "count",
            f"ecc_errors/aggregate_uncorrectable_sram_sources/sram_{tag}",
            f"ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM {heading}",
            f"ecc.errors.uncorrected.aggregate.sram.{query}",
        )


# Tag, heading. The newer the driver the more of them.
_FABRIC = (
    ("summary", "Summary"),
    ("bandwidth", "Bandwidth"),
    ("route_recovery_in_progress", "Route Recovery in progress"),
    ("route_unhealthy", "Route Unhealthy"),
    ("access_timeout_recovery", "Access Timeout Recovery"),
    ("incorrect_configuration", "Incorrect Configuration"),
    ("partition_assigned", "Partition Assigned"),
)


def _fabric() -> Iterable[Row]:
    for name, heading in _FABRIC:
        at = f"fabric/health/{name}", f"Fabric/Health/{heading}", f"fabric.health.{name}"
        yield Row(f"fabric.health.{name}", "fabric", *at)


# What a GPU needs before it can be used again. Drivers since 570 name the action (`GPU Recovery Action`),
# those from 530 answer two questions instead (nvml.h calls them deprecated in favour of the action).
RECOVERY = "recovery_action"
RESET_REQUIRED = f"{RECOVERY}.reset_required"
DRAIN_RECOMMENDED = f"{RECOVERY}.drain_and_reset_recommended"

_RECOVERY = (
    Row(
        RESET_REQUIRED,
        "yes",
        "gpu_reset_status/reset_required",
        "GPU Reset Status/Reset Required",
        "reset_status.reset_required",
    ),
    Row(
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
