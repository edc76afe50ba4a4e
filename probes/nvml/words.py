"""NVML's numbers in words, from the enumerations of nvml.h (named above each table)."""

# nvmlClockType_t
CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}

# nvmlPerfPolicyType_t
VIOLATIONS = {
    "power": 0,
    "thermal": 1,
    "sync_boost": 2,
    "board_limit": 3,
    "low_utilization": 4,
    "reliability": 5,
    "total_app_clocks": 10,
    "total_base_clocks": 11,
}

# NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN and _HW_POWER_BRAKE_SLOWDOWN: their numbers up to driver
# 580.65 and from 580.82, by the names of `nvidia-smi -q -x`. Up to 570 and from 580.82, the first numbers are
# about power smoothing. Sources: nvml.h of CUDA 12.8 (driver 570: without them), 12.9 and 12.9.1
# (575.51, 575.57), 13.0 (580.65), 13.0.1 (580.82) and later; nvidia-ml-py 12.575.51, 13.580.65, 13.580.82.
SLOWDOWNS = {"hw_thermal_slowdown": (252, 270), "hw_power_brake_slowdown": (253, 271)}

# nvmlBrandType_t, in the words of nvidia-smi
BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NVIDIA Virtual Applications",
    8: "NVIDIA Virtual PC",
    9: "NVIDIA Virtual Compute Server",
    10: "NVIDIA RTX Virtual Workstation",
    11: "NVIDIA Cloud Gaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
}

# NVML_DEVICE_ARCH_*, in the words of nvidia-smi
ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

# nvmlGpuVirtualizationMode_t
VIRTUALIZATIONS = {0: "none", 1: "pass-through", 2: "vgpu", 3: "host vgpu", 4: "host vsga"}

# nvmlTemperatureThresholds_t; the target is the acoustic threshold in force.
THRESHOLDS = {
    "shutdown": 0,
    "slowdown": 1,
    "memory_max_operating": 2,
    "max_operating": 3,
    "target": 5,
}

# NVML_FI_DEV_TEMPERATURE_*_TLIMIT
MARGINS = {"margin_shutdown": 193, "margin_slowdown": 194, "margin_max_operating": 196}

# nvmlMemoryLocation_t: the chip's own memories by name up to Volta, together as `sram` since Turing.
MEMORY_LOCATIONS = {
    "l1_cache": 0,
    "l2_cache": 1,
    "device_memory": 2,
    "register_file": 3,
    "texture_memory": 4,
    "texture_shm": 5,
    "cbu": 6,
    "sram": 7,
}

# gputopo's names for the fields of nvmlEccSramErrorStatus_t, based on the elements of `nvidia-smi -q -x`.
SRAM_COUNTS = {
    "volatile.sram_correctable": "volatileCor",
    "volatile.sram_uncorrectable_parity": "volatileUncParity",
    "volatile.sram_uncorrectable_secded": "volatileUncSecDed",
    "aggregate.sram_correctable": "aggregateCor",
    "aggregate.sram_uncorrectable_parity": "aggregateUncParity",
    "aggregate.sram_uncorrectable_secded": "aggregateUncSecDed",
    "aggregate.sram_threshold_exceeded": "bThresholdExceeded",
    "aggregate_uncorrectable_sram_sources.sram_l2": "aggregateUncBucketL2",
    "aggregate_uncorrectable_sram_sources.sram_sm": "aggregateUncBucketSm",
    "aggregate_uncorrectable_sram_sources.sram_microcontroller": "aggregateUncBucketMcu",
    "aggregate_uncorrectable_sram_sources.sram_pcie": "aggregateUncBucketPcie",
    "aggregate_uncorrectable_sram_sources.sram_other": "aggregateUncBucketOther",
}

# nvmlNvLinkErrorCounter_t
NVLINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}

# nvmlNvlinkVersion_t to the marketed generation: 3 is NVLink 2.2, 5 is NVLink 3.1.
NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
NVLINK_REMOTES = {0: "gpu", 1: "ibmnpu", 2: "switch"}
# Counters that are field values of one link: NVML_FI_DEV_NVLINK_ERROR_DL_* (since NVLink 3) and
# NVML_FI_DEV_NVLINK_COUNT_* (since NVLink 5). Symbol errors are omitted: healthy links correct many of them.
NVLINK_DL_ERRORS = {"replay": 161, "recovery": 162, "crc": 163}
NVLINK_COUNT_ERRORS = {
    "malformed_packets": 206,
    "buffer_overruns": 207,
    "receive_errors": 208,
    "receive_remote_errors": 209,
    "receive_general_errors": 210,
    "local_link_integrity": 211,
    "transmit_discards": 212,
    "link_recovery_failed": 214,
    "effective_errors": 219,
}

# nvmlDeviceGpuRecoveryAction_t, in nvidia-smi's words if it has any.
RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain p2p",
    4: "drain and reset",
    5: "recover imex domain",
    6: "bus reset",
    7: "system reboot",
}

# nvmlGpuFabricState_t; 0 is NOT_SUPPORTED.
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}

# NVML_GPU_FABRIC_HEALTH_SUMMARY_*
FABRIC_SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}

# NVML_GPU_FABRIC_HEALTH_MASK_*, by the names of `nvidia-smi -q -x`: shift, mask, words; 0 is NOT_SUPPORTED.
_YES_NO = {1: "true", 2: "false"}
FABRIC_HEALTH = {
    "bandwidth": (0, 0x3, {1: "degraded", 2: "full"}),
    "route_recovery_in_progress": (2, 0x3, _YES_NO),
    "route_unhealthy": (4, 0x3, _YES_NO),
    "access_timeout_recovery": (6, 0x3, _YES_NO),
    "incorrect_configuration": (
        8,
        0xF,
        {
            1: "none",
            2: "incorrect sysguid",
            3: "incorrect chassis sn",
            4: "no partition",
            5: "insufficient nvlinks",
            6: "incompatible gpu fw",
            7: "invalid location",
            8: "gpu state invalid",
        },
    ),
    "partition_assigned": (12, 0x3, _YES_NO),
}

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}

# nvmlGpuP2PStatus_t
P2P_STATUS = {
    0: "OK",
    1: "CHIPSET_NOT_SUPPORTED",
    2: "GPU_NOT_SUPPORTED",
    3: "TOPOLOGY_NOT_SUPPORTED",
    4: "DISABLED_BY_REGKEY",
    5: "NOT_SUPPORTED",
    6: "UNKNOWN",
}

PROCESS_FUNCTIONS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
