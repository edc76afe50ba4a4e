"""Facts of a machine in words, by the parts of their paths: `clocks_mhz.memory` is the memory clock."""

import re

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values: immutable, fields by name."""


# The last words of paths as a person says them; what is not here is shown with its underscores as spaces.
_WORDS = {
    "clocks_mhz": "clocks",
    "clocks_mhz.graphics": "graphics clock",
    "clocks_mhz.sm": "SM clock",
    "clocks_mhz.memory": "memory clock",
    "clocks_mhz.video": "video clock",
    "violation_ns": "violation times",
    "throttle": "throttling",
    "power_w": "power",
    "temperature_c": "temperature",
    "pcie": "PCIe",
    "memory_mib": "memory",
    "bar1_mib": "BAR1",
    "utilization_percent": "utilization",
    "fan_percent": "fan",
    "ecc": "ECC",
    "mig": "MIG",
    "aer": "AER errors",
    "pstate": "P-state",
    "pci_address": "PCI address",
    "pci_device_id": "PCI device id",
    "cuda_index": "CUDA index",
    "numa_node": "NUMA node",
    "numa_nodes": "NUMA nodes",
    "cpu_affinity": "CPU affinity",
    "cpu_model": "CPU model",
    "logical_cpus": "logical CPUs",
    "uuid": "UUID",
    "nvlinks": "NVLinks",
    "hop": "PCIe hop",
    "iommu": "IOMMU",
    "acs": "ACS",
    "cuda_version": "CUDA version",
    "nvml_version": "NVML version",
    "p2p_read": "peer read",
    "p2p_write": "peer write",
    "p2p_reason": "peer access reason",
    "host.memory_mib": "memory",
    "cpus": "CPUs",
    "gb_per_s": "speed",
    "max_speed_gt_per_s": "max speed",
}
# What a number of a path is counted in, by the first part that names it.
_UNITS = (
    ("_mhz", " MHz"),
    ("power_w", " W"),
    ("temperature_c", " C"),
    ("_mib", " MiB"),
    ("percent", " %"),
    ("gb_per_s", " GB/s"),
    ("gt_per_s", " GT/s"),
)
_NUMBERED = re.compile(r"([a-z_]+)\[([0-9]+)\]")  # a part of which there are several: numa_nodes[1]


def fact_in_words(fact: str) -> str:
    """Give `clocks_mhz.memory` as `memory clock`; a path that has no words keeps its own."""
    part = _NUMBERED.fullmatch(fact)
    if part is not None:
        return f"{_WORDS.get(part[1], part[1]).removesuffix('s')} {part[2]}"
    return _WORDS.get(fact, fact.replace("_", " "))


def path_in_words(path: str) -> str:
    """Give a whole path within a device, `clocks_mhz.memory.max`, as `memory clock max`."""
    base, _, last = path.rpartition(".")
    if path in _WORDS or not base:
        return fact_in_words(path)
    return f"{path_in_words(base)} {fact_in_words(last)}"


def value_in_words(path: str, value: object) -> str:
    """Give a value with its unit: `3200 MHz`, `x16`, `on`; one that is not there reads `not told`."""
    if value is None:
        return "not told"
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, int | float):
        return str(value)
    if path.rpartition(".")[2] in ("width", "max_width", "width_now", "width_max"):
        return f"x{value}"
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return number + next((unit for word, unit in _UNITS if word in path), "")
