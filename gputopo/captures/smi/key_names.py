"""Names in `nvidia-smi` of facts without their own field in a Gpu: keys of its dictionaries, parts of a fact.

Reasons have the names of gputopo.reference.clock_events; violation times are other counters than NVML's.
"""

from collections.abc import Iterator, Mapping
from itertools import product

from gputopo.values.fields import Smi


def _reason(*names: str, text: tuple[str, ...]) -> Smi:
    """Return the names of a reason; older drivers call the section `clocks_throttle_reasons`."""
    eras = ("event", "throttle")
    return Smi(
        kind="active",
        xml=tuple(f"clocks_{era}_reasons/clocks_{era}_reason_{name}" for era, name in product(eras, names)),
        text=tuple(f"Clocks {era} Reasons/{words}" for era, words in product(eras, text)),
        csv=tuple(f"clocks_{era}_reasons.{name}" for era, name in product(eras, names)),
    )


REASONS: Mapping[str, Smi] = {
    "throttle.reasons.gpu_idle": _reason("gpu_idle", text=("Idle",)),
    "throttle.reasons.applications_clocks_setting": _reason(
        "applications_clocks_setting", text=("Applications Clocks Setting",)
    ),
    "throttle.reasons.sw_power_cap": _reason("sw_power_cap", text=("SW Power Cap",)),
    "throttle.reasons.hw_slowdown": _reason("hw_slowdown", text=("HW Slowdown",)),
    "throttle.reasons.sync_boost": _reason("sync_boost", text=("Sync Boost",)),
    "throttle.reasons.sw_thermal_slowdown": _reason("sw_thermal_slowdown", text=("SW Thermal Slowdown",)),
    "throttle.reasons.hw_thermal_slowdown": _reason(
        "hw_thermal_slowdown", text=("HW Slowdown/HW Thermal Slowdown", "HW Thermal Slowdown")
    ),
    "throttle.reasons.hw_power_brake_slowdown": _reason(
        "hw_power_brake_slowdown", text=("HW Slowdown/HW Power Brake Slowdown", "HW Power Brake Slowdown")
    ),
    "throttle.reasons.display_clock_setting": _reason(
        "display_clocks_setting", "display_clock_setting", text=("Display Clock Setting",)
    ),
    "throttle.reasons.board_limit": _reason("board_limit", text=("Board Limit",)),
    "throttle.reasons.reliability": _reason("reliability", text=("Reliability",)),
    "throttle.reasons.user_defined_clocks": _reason("user_defined_clocks", text=("User Defined Clocks",)),
    "throttle.reasons.unknown": _reason("unknown", text=("Unknown",)),
}
# Reported by every driver version: without these the list of active reasons is incomplete.
BASE_REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown")


def _violation(name: str, text: str, xml: str) -> Smi:
    """Return the names of a counter; `xml`: the end of its tag."""
    section = "clocks_event_reasons_counters"
    return Smi(
        "us", f"{section}/{section}_{xml}", f"Clocks Event Reasons Counters/{text}", f"{section}.{name}"
    )


VIOLATION_TIMES: Mapping[str, Smi] = {
    f"violation_ns.{name}": _violation(name, text, xml)
    for name, text, xml in (
        ("sw_power_cap", "SW Power Capping", "sw_power_cap"),
        ("sync_boost", "Sync Boost", "sync_boost"),
        ("sw_thermal_slowdown", "SW Thermal Slowdown", "sw_therm_slowdown"),
        ("hw_thermal_slowdown", "HW Thermal Slowdown", "hw_therm_slowdown"),
        ("hw_power_brake_slowdown", "HW Power Braking", "hw_power_brake"),
    )
}

# Since Ampere, by kind of memory: the XML tag, which is also the key, and the text and CSV names.
_ECC_OF_MEMORY = (
    ("sram_correctable", "SRAM Correctable", "corrected", "sram"),
    ("sram_uncorrectable", "SRAM Uncorrectable", "uncorrected", "sram"),
    ("sram_uncorrectable_parity", "SRAM Uncorrectable Parity", "uncorrected", "sram.parity"),
    ("sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", "uncorrected", "sram.secded"),
    ("dram_correctable", "DRAM Correctable", "corrected", "dram"),
    ("dram_uncorrectable", "DRAM Uncorrectable", "uncorrected", "dram"),
)
# Up to Volta, by place, with the text name.
_ECC_PLACES = {
    "device_memory": "Device Memory",
    "register_file": "Register File",
    "l1_cache": "L1 Cache",
    "l2_cache": "L2 Cache",
    "texture_memory": "Texture Memory",
    "texture_shm": "Texture Shared",
    "cbu": "CBU",
}
_SRAM_SOURCES = {"l2": "l2", "sm": "sm", "microcontroller": "mcu", "pcie": "pcie", "other": "other"}


def _ecc_counts() -> Iterator[tuple[str, Smi]]:
    """Yield each count, such as `ecc.counts.volatile.double_bit.l2_cache`, with its names."""
    for since in ("volatile", "aggregate"):
        xml, text = f"ecc_errors/{since}", f"ECC Errors/{since}"
        for tag, words, state, name in _ECC_OF_MEMORY:
            csv = f"ecc.errors.{state}.{since}.{name}"
            yield f"ecc.counts.{since}.{tag}", Smi("count", f"{xml}/{tag}", f"{text}/{words}", csv)
        for bits, state in (("single", "corrected"), ("double", "uncorrected")):
            for tag, words in _ECC_PLACES.items():
                yield (
                    f"ecc.counts.{since}.{bits}_bit.{tag}",
                    Smi(
                        "count",
                        f"{xml}/{bits}_bit/{tag}",
                        f"{text}/{bits} Bit/{words}",
                        f"ecc.errors.{state}.{since}.{tag}",
                    ),
                )
    yield (
        "ecc.counts.aggregate.sram_threshold_exceeded",
        Smi(
            "yes as 1",
            "ecc_errors/aggregate/sram_threshold_exceeded",
            "ECC Errors/Aggregate/SRAM Threshold Exceeded",
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
        ),
    )
    sources = "aggregate_uncorrectable_sram_sources"
    for tag, name in _SRAM_SOURCES.items():
        yield (
            f"ecc.counts.{sources}.sram_{tag}",
            Smi(
                "count",
                f"ecc_errors/{sources}/sram_{tag}",
                f"ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM {tag}",
                f"ecc.errors.uncorrected.aggregate.sram.{name}",
            ),
        )


ECC_COUNTS: Mapping[str, Smi] = dict(_ecc_counts())

FABRIC_HEALTH: Mapping[str, Smi] = {
    f"fabric.health.{tag}": Smi(
        "fabric", f"fabric/health/{tag}", f"Fabric/Health/{tag.replace('_', ' ')}", f"fabric.health.{tag}"
    )
    for tag in (
        "summary",
        "bandwidth",
        "route_recovery_in_progress",
        "route_unhealthy",
        "access_timeout_recovery",
        "incorrect_configuration",
        "partition_assigned",
    )
}

# What a GPU needs before it can be used again. Drivers since 570 report the action (`GPU Recovery Action`).
# Older drivers, since 530, answer two questions instead, which nvml.h deprecates in favor of the action.
RECOVERY = "recovery_action"
RESET_REQUIRED = "recovery_action.reset_required"
DRAIN_RECOMMENDED = "recovery_action.drain_and_reset_recommended"
RESET_STATUS: Mapping[str, Smi] = {
    RESET_REQUIRED: Smi(
        kind="yes",
        xml="gpu_reset_status/reset_required",
        text="GPU Reset Status/Reset Required",
        csv="reset_status.reset_required",
    ),
    DRAIN_RECOMMENDED: Smi(
        kind="yes",
        xml="gpu_reset_status/drain_and_reset_recommended",
        text="GPU Reset Status/Drain and Reset Recommended",
        csv="reset_status.drain_and_reset_recommended",
    ),
}

# Fields that are made of several of these names: dictionaries, the list of reasons, the recovery action.
COLLECTED = ("throttle.reasons", "violation_ns", "ecc.counts", "fabric.health", RECOVERY)
OF_KEYS = {**REASONS, **VIOLATION_TIMES, **ECC_COUNTS, **FABRIC_HEALTH, **RESET_STATUS}
