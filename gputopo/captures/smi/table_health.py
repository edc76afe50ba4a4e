"""What `nvidia-smi` calls the facts about a card's health: clock event reasons, memory errors."""

from collections.abc import Iterable

from gputopo.captures.smi import recovery
from gputopo.captures.smi.rows import Row

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
# What is told in every era: without these the list of reasons in force is not whole.
BASE_REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown")


def _reasons() -> Iterable[Row]:
    yield Row("throttle.mask", "mask", "", "", "clocks_event_reasons.active|clocks_throttle_reasons.active")
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
    yield Row("ecc.mode", "switch", "ecc_mode/current_ecc", "ECC Mode/Current", "ecc.mode.current")
    yield Row("ecc.mode_pending", "switch", "ecc_mode/pending_ecc", "ECC Mode/Pending", "ecc.mode.pending")
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
            yield Row(f"ecc.{word}_{since}", "count", *(f"{part}total" for part in section))
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


_R = "retired_pages/"
_MEMORY_FAULTS = (
    Row(
        "retired_pages.single_bit",
        "count",
        _R + "multiple_single_bit_retirement/retired_count",
        "Retired Pages/Single Bit ECC",
        "retired_pages.single_bit_ecc.count|retired_pages.sbe",
    ),
    Row(
        "retired_pages.double_bit",
        "count",
        _R + "double_bit_retirement/retired_count",
        "Retired Pages/Double Bit ECC",
        "retired_pages.double_bit.count|retired_pages.dbe",
    ),
    Row(
        "retired_pages.pending",
        "yes",
        _R + "pending_retirement|retired_pages/pending_blacklist",
        "Retired Pages/Pending Page Blacklist|Retired Pages/Pending",
        "retired_pages.pending",
    ),
    Row(
        "remapped_rows.correctable",
        "count",
        "remapped_rows/remapped_row_corr",
        "Remapped Rows/Correctable Error",
        "remapped_rows.correctable",
    ),
    Row(
        "remapped_rows.uncorrectable",
        "count",
        "remapped_rows/remapped_row_unc",
        "Remapped Rows/Uncorrectable Error",
        "remapped_rows.uncorrectable",
    ),
    Row(
        "remapped_rows.pending",
        "yes",
        "remapped_rows/remapped_row_pending",
        "Remapped Rows/Pending",
        "remapped_rows.pending",
    ),
    Row(
        "remapped_rows.failure",
        "yes",
        "remapped_rows/remapped_row_failure",
        "Remapped Rows/Remapping Failure Occurred",
        "remapped_rows.failure",
    ),
)

_RECOVERY = (
    Row(recovery.ACTION, "action", "gpu_recovery_action", "GPU Recovery Action", "gpu_recovery_action"),
    Row(
        recovery.REQUIRED,
        "yes",
        "gpu_reset_status/reset_required",
        "GPU Reset Status/Reset Required",
        "reset_status.reset_required",
    ),
    Row(
        recovery.RECOMMENDED,
        "yes",
        "gpu_reset_status/drain_and_reset_recommended",
        "GPU Reset Status/Drain and Reset Recommended",
        "reset_status.drain_and_reset_recommended",
    ),
)

HEALTH = (*_reasons(), *_counters(), *_ecc(), *_MEMORY_FAULTS, *_RECOVERY)
