"""NVML's numbers in words, from the enumerations of nvml.h (named above each table)."""

# nvmlClockType_t
CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}

# nvmlClocksEventReason*; up to driver 530 they were called nvmlClocksThrottleReason*.
THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

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

# nvmlNvLinkErrorCounter_t
NVLINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}

# nvmlNvlinkVersion_t to the generation that people name: 3 is NVLink 2.2, 5 is NVLink 3.1.
NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
NVLINK_REMOTES = {0: "gpu", 1: "ibmnpu", 2: "switch"}
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
PROCESS_KINDS = tuple(PROCESS_FUNCTIONS)


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Give the bits of a clock event mask in words, low bit first; one without a name is "unknown_0x800"."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(THROTTLE_REASONS.get(bit, f"unknown_{bit:#x}") for bit in bits)
