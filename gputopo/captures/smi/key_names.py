"""Names in `nvidia-smi` of facts without their own field in a Gpu: keys of its dictionaries, parts of a fact.

Reasons have the names of gputopo.reference.clock_events; violation times are other counters than NVML's.
"""

from collections.abc import Mapping

from gputopo.values.fields import Smi

REASONS: Mapping[str, Smi] = {
    "throttle.reasons.gpu_idle": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_gpu_idle",
            "clocks_throttle_reasons/clocks_throttle_reason_gpu_idle",
        ),
        text=("Clocks Event Reasons/Idle", "Clocks Throttle Reasons/Idle"),
        csv=("clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle"),
    ),
    "throttle.reasons.applications_clocks_setting": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_applications_clocks_setting",
            "clocks_throttle_reasons/clocks_throttle_reason_applications_clocks_setting",
        ),
        text=(
            "Clocks Event Reasons/Applications Clocks Setting",
            "Clocks Throttle Reasons/Applications Clocks Setting",
        ),
        csv=(
            "clocks_event_reasons.applications_clocks_setting",
            "clocks_throttle_reasons.applications_clocks_setting",
        ),
    ),
    "throttle.reasons.sw_power_cap": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_sw_power_cap",
            "clocks_throttle_reasons/clocks_throttle_reason_sw_power_cap",
        ),
        text=("Clocks Event Reasons/SW Power Cap", "Clocks Throttle Reasons/SW Power Cap"),
        csv=("clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap"),
    ),
    "throttle.reasons.hw_slowdown": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_hw_slowdown",
            "clocks_throttle_reasons/clocks_throttle_reason_hw_slowdown",
        ),
        text=("Clocks Event Reasons/HW Slowdown", "Clocks Throttle Reasons/HW Slowdown"),
        csv=("clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown"),
    ),
    "throttle.reasons.sync_boost": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_sync_boost",
            "clocks_throttle_reasons/clocks_throttle_reason_sync_boost",
        ),
        text=("Clocks Event Reasons/Sync Boost", "Clocks Throttle Reasons/Sync Boost"),
        csv=("clocks_event_reasons.sync_boost", "clocks_throttle_reasons.sync_boost"),
    ),
    "throttle.reasons.sw_thermal_slowdown": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_sw_thermal_slowdown",
            "clocks_throttle_reasons/clocks_throttle_reason_sw_thermal_slowdown",
        ),
        text=("Clocks Event Reasons/SW Thermal Slowdown", "Clocks Throttle Reasons/SW Thermal Slowdown"),
        csv=("clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown"),
    ),
    "throttle.reasons.hw_thermal_slowdown": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown",
            "clocks_throttle_reasons/clocks_throttle_reason_hw_thermal_slowdown",
        ),
        text=(
            "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown",
            "Clocks Event Reasons/HW Thermal Slowdown",
            "Clocks Throttle Reasons/HW Slowdown/HW Thermal Slowdown",
            "Clocks Throttle Reasons/HW Thermal Slowdown",
        ),
        csv=("clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown"),
    ),
    "throttle.reasons.hw_power_brake_slowdown": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_hw_power_brake_slowdown",
            "clocks_throttle_reasons/clocks_throttle_reason_hw_power_brake_slowdown",
        ),
        text=(
            "Clocks Event Reasons/HW Slowdown/HW Power Brake Slowdown",
            "Clocks Event Reasons/HW Power Brake Slowdown",
            "Clocks Throttle Reasons/HW Slowdown/HW Power Brake Slowdown",
            "Clocks Throttle Reasons/HW Power Brake Slowdown",
        ),
        csv=(
            "clocks_event_reasons.hw_power_brake_slowdown",
            "clocks_throttle_reasons.hw_power_brake_slowdown",
        ),
    ),
    "throttle.reasons.display_clock_setting": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_display_clocks_setting",
            "clocks_event_reasons/clocks_event_reason_display_clock_setting",
            "clocks_throttle_reasons/clocks_throttle_reason_display_clocks_setting",
            "clocks_throttle_reasons/clocks_throttle_reason_display_clock_setting",
        ),
        text=("Clocks Event Reasons/Display Clock Setting", "Clocks Throttle Reasons/Display Clock Setting"),
        csv=(
            "clocks_event_reasons.display_clocks_setting",
            "clocks_event_reasons.display_clock_setting",
            "clocks_throttle_reasons.display_clocks_setting",
            "clocks_throttle_reasons.display_clock_setting",
        ),
    ),
    "throttle.reasons.board_limit": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_board_limit",
            "clocks_throttle_reasons/clocks_throttle_reason_board_limit",
        ),
        text=("Clocks Event Reasons/Board Limit", "Clocks Throttle Reasons/Board Limit"),
        csv=("clocks_event_reasons.board_limit", "clocks_throttle_reasons.board_limit"),
    ),
    "throttle.reasons.reliability": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_reliability",
            "clocks_throttle_reasons/clocks_throttle_reason_reliability",
        ),
        text=("Clocks Event Reasons/Reliability", "Clocks Throttle Reasons/Reliability"),
        csv=("clocks_event_reasons.reliability", "clocks_throttle_reasons.reliability"),
    ),
    "throttle.reasons.user_defined_clocks": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_user_defined_clocks",
            "clocks_throttle_reasons/clocks_throttle_reason_user_defined_clocks",
        ),
        text=("Clocks Event Reasons/User Defined Clocks", "Clocks Throttle Reasons/User Defined Clocks"),
        csv=("clocks_event_reasons.user_defined_clocks", "clocks_throttle_reasons.user_defined_clocks"),
    ),
    "throttle.reasons.unknown": Smi(
        kind="active",
        xml=(
            "clocks_event_reasons/clocks_event_reason_unknown",
            "clocks_throttle_reasons/clocks_throttle_reason_unknown",
        ),
        text=("Clocks Event Reasons/Unknown", "Clocks Throttle Reasons/Unknown"),
        csv=("clocks_event_reasons.unknown", "clocks_throttle_reasons.unknown"),
    ),
}
# Reported by every driver version: without these the list of active reasons is incomplete.
BASE_REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown")

VIOLATION_TIMES: Mapping[str, Smi] = {
    "violation_ns.sw_power_cap": Smi(
        kind="us",
        xml="clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",
        text="Clocks Event Reasons Counters/SW Power Capping",
        csv="clocks_event_reasons_counters.sw_power_cap",
    ),
    "violation_ns.sync_boost": Smi(
        kind="us",
        xml="clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost",
        text="Clocks Event Reasons Counters/Sync Boost",
        csv="clocks_event_reasons_counters.sync_boost",
    ),
    "violation_ns.sw_thermal_slowdown": Smi(
        kind="us",
        xml="clocks_event_reasons_counters/clocks_event_reasons_counters_sw_therm_slowdown",
        text="Clocks Event Reasons Counters/SW Thermal Slowdown",
        csv="clocks_event_reasons_counters.sw_thermal_slowdown",
    ),
    "violation_ns.hw_thermal_slowdown": Smi(
        kind="us",
        xml="clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown",
        text="Clocks Event Reasons Counters/HW Thermal Slowdown",
        csv="clocks_event_reasons_counters.hw_thermal_slowdown",
    ),
    "violation_ns.hw_power_brake_slowdown": Smi(
        kind="us",
        xml="clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake",
        text="Clocks Event Reasons Counters/HW Power Braking",
        csv="clocks_event_reasons_counters.hw_power_brake_slowdown",
    ),
}

ECC_COUNTS: Mapping[str, Smi] = {
    "ecc.counts.volatile.sram_correctable": Smi(
        kind="count",
        xml="ecc_errors/volatile/sram_correctable",
        text="ECC Errors/volatile/SRAM Correctable",
        csv="ecc.errors.corrected.volatile.sram",
    ),
    "ecc.counts.volatile.sram_uncorrectable": Smi(
        kind="count",
        xml="ecc_errors/volatile/sram_uncorrectable",
        text="ECC Errors/volatile/SRAM Uncorrectable",
        csv="ecc.errors.uncorrected.volatile.sram",
    ),
    "ecc.counts.volatile.sram_uncorrectable_parity": Smi(
        kind="count",
        xml="ecc_errors/volatile/sram_uncorrectable_parity",
        text="ECC Errors/volatile/SRAM Uncorrectable Parity",
        csv="ecc.errors.uncorrected.volatile.sram.parity",
    ),
    "ecc.counts.volatile.sram_uncorrectable_secded": Smi(
        kind="count",
        xml="ecc_errors/volatile/sram_uncorrectable_secded",
        text="ECC Errors/volatile/SRAM Uncorrectable SEC-DED",
        csv="ecc.errors.uncorrected.volatile.sram.secded",
    ),
    "ecc.counts.volatile.dram_correctable": Smi(
        kind="count",
        xml="ecc_errors/volatile/dram_correctable",
        text="ECC Errors/volatile/DRAM Correctable",
        csv="ecc.errors.corrected.volatile.dram",
    ),
    "ecc.counts.volatile.dram_uncorrectable": Smi(
        kind="count",
        xml="ecc_errors/volatile/dram_uncorrectable",
        text="ECC Errors/volatile/DRAM Uncorrectable",
        csv="ecc.errors.uncorrected.volatile.dram",
    ),
    "ecc.counts.volatile.single_bit.device_memory": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/device_memory",
        text="ECC Errors/volatile/single Bit/Device Memory",
        csv="ecc.errors.corrected.volatile.device_memory",
    ),
    "ecc.counts.volatile.single_bit.register_file": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/register_file",
        text="ECC Errors/volatile/single Bit/Register File",
        csv="ecc.errors.corrected.volatile.register_file",
    ),
    "ecc.counts.volatile.single_bit.l1_cache": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/l1_cache",
        text="ECC Errors/volatile/single Bit/L1 Cache",
        csv="ecc.errors.corrected.volatile.l1_cache",
    ),
    "ecc.counts.volatile.single_bit.l2_cache": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/l2_cache",
        text="ECC Errors/volatile/single Bit/L2 Cache",
        csv="ecc.errors.corrected.volatile.l2_cache",
    ),
    "ecc.counts.volatile.single_bit.texture_memory": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/texture_memory",
        text="ECC Errors/volatile/single Bit/Texture Memory",
        csv="ecc.errors.corrected.volatile.texture_memory",
    ),
    "ecc.counts.volatile.single_bit.texture_shm": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/texture_shm",
        text="ECC Errors/volatile/single Bit/Texture Shared",
        csv="ecc.errors.corrected.volatile.texture_shm",
    ),
    "ecc.counts.volatile.single_bit.cbu": Smi(
        kind="count",
        xml="ecc_errors/volatile/single_bit/cbu",
        text="ECC Errors/volatile/single Bit/CBU",
        csv="ecc.errors.corrected.volatile.cbu",
    ),
    "ecc.counts.volatile.double_bit.device_memory": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/device_memory",
        text="ECC Errors/volatile/double Bit/Device Memory",
        csv="ecc.errors.uncorrected.volatile.device_memory",
    ),
    "ecc.counts.volatile.double_bit.register_file": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/register_file",
        text="ECC Errors/volatile/double Bit/Register File",
        csv="ecc.errors.uncorrected.volatile.register_file",
    ),
    "ecc.counts.volatile.double_bit.l1_cache": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/l1_cache",
        text="ECC Errors/volatile/double Bit/L1 Cache",
        csv="ecc.errors.uncorrected.volatile.l1_cache",
    ),
    "ecc.counts.volatile.double_bit.l2_cache": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/l2_cache",
        text="ECC Errors/volatile/double Bit/L2 Cache",
        csv="ecc.errors.uncorrected.volatile.l2_cache",
    ),
    "ecc.counts.volatile.double_bit.texture_memory": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/texture_memory",
        text="ECC Errors/volatile/double Bit/Texture Memory",
        csv="ecc.errors.uncorrected.volatile.texture_memory",
    ),
    "ecc.counts.volatile.double_bit.texture_shm": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/texture_shm",
        text="ECC Errors/volatile/double Bit/Texture Shared",
        csv="ecc.errors.uncorrected.volatile.texture_shm",
    ),
    "ecc.counts.volatile.double_bit.cbu": Smi(
        kind="count",
        xml="ecc_errors/volatile/double_bit/cbu",
        text="ECC Errors/volatile/double Bit/CBU",
        csv="ecc.errors.uncorrected.volatile.cbu",
    ),
    "ecc.counts.aggregate.sram_correctable": Smi(
        kind="count",
        xml="ecc_errors/aggregate/sram_correctable",
        text="ECC Errors/aggregate/SRAM Correctable",
        csv="ecc.errors.corrected.aggregate.sram",
    ),
    "ecc.counts.aggregate.sram_uncorrectable": Smi(
        kind="count",
        xml="ecc_errors/aggregate/sram_uncorrectable",
        text="ECC Errors/aggregate/SRAM Uncorrectable",
        csv="ecc.errors.uncorrected.aggregate.sram",
    ),
    "ecc.counts.aggregate.sram_uncorrectable_parity": Smi(
        kind="count",
        xml="ecc_errors/aggregate/sram_uncorrectable_parity",
        text="ECC Errors/aggregate/SRAM Uncorrectable Parity",
        csv="ecc.errors.uncorrected.aggregate.sram.parity",
    ),
    "ecc.counts.aggregate.sram_uncorrectable_secded": Smi(
        kind="count",
        xml="ecc_errors/aggregate/sram_uncorrectable_secded",
        text="ECC Errors/aggregate/SRAM Uncorrectable SEC-DED",
        csv="ecc.errors.uncorrected.aggregate.sram.secded",
    ),
    "ecc.counts.aggregate.dram_correctable": Smi(
        kind="count",
        xml="ecc_errors/aggregate/dram_correctable",
        text="ECC Errors/aggregate/DRAM Correctable",
        csv="ecc.errors.corrected.aggregate.dram",
    ),
    "ecc.counts.aggregate.dram_uncorrectable": Smi(
        kind="count",
        xml="ecc_errors/aggregate/dram_uncorrectable",
        text="ECC Errors/aggregate/DRAM Uncorrectable",
        csv="ecc.errors.uncorrected.aggregate.dram",
    ),
    "ecc.counts.aggregate.single_bit.device_memory": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/device_memory",
        text="ECC Errors/aggregate/single Bit/Device Memory",
        csv="ecc.errors.corrected.aggregate.device_memory",
    ),
    "ecc.counts.aggregate.single_bit.register_file": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/register_file",
        text="ECC Errors/aggregate/single Bit/Register File",
        csv="ecc.errors.corrected.aggregate.register_file",
    ),
    "ecc.counts.aggregate.single_bit.l1_cache": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/l1_cache",
        text="ECC Errors/aggregate/single Bit/L1 Cache",
        csv="ecc.errors.corrected.aggregate.l1_cache",
    ),
    "ecc.counts.aggregate.single_bit.l2_cache": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/l2_cache",
        text="ECC Errors/aggregate/single Bit/L2 Cache",
        csv="ecc.errors.corrected.aggregate.l2_cache",
    ),
    "ecc.counts.aggregate.single_bit.texture_memory": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/texture_memory",
        text="ECC Errors/aggregate/single Bit/Texture Memory",
        csv="ecc.errors.corrected.aggregate.texture_memory",
    ),
    "ecc.counts.aggregate.single_bit.texture_shm": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/texture_shm",
        text="ECC Errors/aggregate/single Bit/Texture Shared",
        csv="ecc.errors.corrected.aggregate.texture_shm",
    ),
    "ecc.counts.aggregate.single_bit.cbu": Smi(
        kind="count",
        xml="ecc_errors/aggregate/single_bit/cbu",
        text="ECC Errors/aggregate/single Bit/CBU",
        csv="ecc.errors.corrected.aggregate.cbu",
    ),
    "ecc.counts.aggregate.double_bit.device_memory": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/device_memory",
        text="ECC Errors/aggregate/double Bit/Device Memory",
        csv="ecc.errors.uncorrected.aggregate.device_memory",
    ),
    "ecc.counts.aggregate.double_bit.register_file": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/register_file",
        text="ECC Errors/aggregate/double Bit/Register File",
        csv="ecc.errors.uncorrected.aggregate.register_file",
    ),
    "ecc.counts.aggregate.double_bit.l1_cache": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/l1_cache",
        text="ECC Errors/aggregate/double Bit/L1 Cache",
        csv="ecc.errors.uncorrected.aggregate.l1_cache",
    ),
    "ecc.counts.aggregate.double_bit.l2_cache": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/l2_cache",
        text="ECC Errors/aggregate/double Bit/L2 Cache",
        csv="ecc.errors.uncorrected.aggregate.l2_cache",
    ),
    "ecc.counts.aggregate.double_bit.texture_memory": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/texture_memory",
        text="ECC Errors/aggregate/double Bit/Texture Memory",
        csv="ecc.errors.uncorrected.aggregate.texture_memory",
    ),
    "ecc.counts.aggregate.double_bit.texture_shm": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/texture_shm",
        text="ECC Errors/aggregate/double Bit/Texture Shared",
        csv="ecc.errors.uncorrected.aggregate.texture_shm",
    ),
    "ecc.counts.aggregate.double_bit.cbu": Smi(
        kind="count",
        xml="ecc_errors/aggregate/double_bit/cbu",
        text="ECC Errors/aggregate/double Bit/CBU",
        csv="ecc.errors.uncorrected.aggregate.cbu",
    ),
    "ecc.counts.aggregate.sram_threshold_exceeded": Smi(
        kind="yes as 1",
        xml="ecc_errors/aggregate/sram_threshold_exceeded",
        text="ECC Errors/Aggregate/SRAM Threshold Exceeded",
        csv="ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    ),
    "ecc.counts.aggregate_uncorrectable_sram_sources.sram_l2": Smi(
        kind="count",
        xml="ecc_errors/aggregate_uncorrectable_sram_sources/sram_l2",
        text="ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM L2",
        csv="ecc.errors.uncorrected.aggregate.sram.l2",
    ),
    "ecc.counts.aggregate_uncorrectable_sram_sources.sram_sm": Smi(
        kind="count",
        xml="ecc_errors/aggregate_uncorrectable_sram_sources/sram_sm",
        text="ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM SM",
        csv="ecc.errors.uncorrected.aggregate.sram.sm",
    ),
    "ecc.counts.aggregate_uncorrectable_sram_sources.sram_microcontroller": Smi(
        kind="count",
        xml="ecc_errors/aggregate_uncorrectable_sram_sources/sram_microcontroller",
        text="ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM Microcontroller",
        csv="ecc.errors.uncorrected.aggregate.sram.mcu",
    ),
    "ecc.counts.aggregate_uncorrectable_sram_sources.sram_pcie": Smi(
        kind="count",
        xml="ecc_errors/aggregate_uncorrectable_sram_sources/sram_pcie",
        text="ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM PCIE",
        csv="ecc.errors.uncorrected.aggregate.sram.pcie",
    ),
    "ecc.counts.aggregate_uncorrectable_sram_sources.sram_other": Smi(
        kind="count",
        xml="ecc_errors/aggregate_uncorrectable_sram_sources/sram_other",
        text="ECC Errors/Aggregate Uncorrectable SRAM Sources/SRAM Other",
        csv="ecc.errors.uncorrected.aggregate.sram.other",
    ),
}

FABRIC_HEALTH: Mapping[str, Smi] = {
    "fabric.health.summary": Smi(
        kind="fabric", xml="fabric/health/summary", text="Fabric/Health/Summary", csv="fabric.health.summary"
    ),
    "fabric.health.bandwidth": Smi(
        kind="fabric",
        xml="fabric/health/bandwidth",
        text="Fabric/Health/Bandwidth",
        csv="fabric.health.bandwidth",
    ),
    "fabric.health.route_recovery_in_progress": Smi(
        kind="fabric",
        xml="fabric/health/route_recovery_in_progress",
        text="Fabric/Health/Route Recovery in progress",
        csv="fabric.health.route_recovery_in_progress",
    ),
    "fabric.health.route_unhealthy": Smi(
        kind="fabric",
        xml="fabric/health/route_unhealthy",
        text="Fabric/Health/Route Unhealthy",
        csv="fabric.health.route_unhealthy",
    ),
    "fabric.health.access_timeout_recovery": Smi(
        kind="fabric",
        xml="fabric/health/access_timeout_recovery",
        text="Fabric/Health/Access Timeout Recovery",
        csv="fabric.health.access_timeout_recovery",
    ),
    "fabric.health.incorrect_configuration": Smi(
        kind="fabric",
        xml="fabric/health/incorrect_configuration",
        text="Fabric/Health/Incorrect Configuration",
        csv="fabric.health.incorrect_configuration",
    ),
    "fabric.health.partition_assigned": Smi(
        kind="fabric",
        xml="fabric/health/partition_assigned",
        text="Fabric/Health/Partition Assigned",
        csv="fabric.health.partition_assigned",
    ),
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
