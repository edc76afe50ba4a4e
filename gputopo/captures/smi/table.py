"""What `nvidia-smi` calls each fact, in its three ways to print: XML, text and CSV. One row a fact.

A name is a path of tags (`pci/pci_bus_id`) or of headings (`PCI/Bus Id`), in any letter case. Where a driver
era has another name for the same thing both stand in the row, the better one first: it wins if it has a
value.
Names: `nvidia-smi -q -x` and `-q` of drivers 319 to 610, `nvidia-smi --help-query-gpu` of driver 590.
"""

from collections.abc import Iterable

from gputopo.captures.smi.rows import Row
from gputopo.captures.smi.table_fabric import FABRIC
from gputopo.captures.smi.table_health import HEALTH

DRIVER = (
    Row(
        "version",
        "version",
        "kmd_version|driver_version",
        "KMD Version|Driver Version",
        "kmd_version|driver_version",
    ),
    Row("cuda_version", "version", "cuda_umd_version|cuda_version", "CUDA UMD Version|CUDA Version"),
    Row("nvml_version", "version", "nvml_version", "NVML Version"),
)

_IDENTITY = (
    Row("name", "words", "product_name", "Product Name", "name|gpu_name"),
    Row("brand", "words", "product_brand", "Product Brand"),
    Row("architecture", "words", "product_architecture", "Product Architecture"),
    Row("uuid", "uuid", "uuid", "GPU UUID", "uuid|gpu_uuid"),
    Row("pci_address", "address", "pci/pci_bus_id", "PCI/Bus Id", "pci.bus_id|gpu_bus_id"),
    Row("pci_device_id", "device", "pci/pci_device_id", "PCI/Device Id", "pci.device_id"),
)

_MODES = (
    Row("display_active", "switch", "display_active", "Display Active", "display_active"),
    Row("persistence_mode", "switch", "persistence_mode", "Persistence Mode", "persistence_mode"),
    Row("compute_mode", "mode", "compute_mode", "Compute Mode", "compute_mode"),
    Row(
        "virtualization",
        "lower",
        "gpu_virtualization_mode/virtualization_mode",
        "GPU Virtualization Mode/Virtualization Mode",
    ),
    Row("mig.mode", "switch", "mig_mode/current_mig", "MIG Mode/Current", "mig.mode.current"),
    Row("mig.mode_pending", "switch", "mig_mode/pending_mig", "MIG Mode/Pending", "mig.mode.pending"),
    Row("pstate", "pstate", "performance_state", "Performance State", "pstate"),
)

_GEN, _WIDTH = "pci/pci_gpu_link_info/pcie_gen/", "pci/pci_gpu_link_info/link_widths/"
_GEN_TEXT, _WIDTH_TEXT = "PCI/GPU Link Info/PCIe Generation/", "PCI/GPU Link Info/Link Width/"
_PCIE = (
    Row("pcie.gen_now", "step", _GEN + "current_link_gen", _GEN_TEXT + "Current", "pcie.link.gen.current"),
    Row("pcie.gen_max", "step", _GEN + "max_link_gen", _GEN_TEXT + "Max", "pcie.link.gen.max"),
    Row(
        "pcie.gen_max_device",
        "step",
        _GEN + "max_device_link_gen",
        _GEN_TEXT + "Device Max",
        "pcie.link.gen.gpumax",
    ),
    Row(
        "pcie.gen_max_host",
        "step",
        _GEN + "max_host_link_gen",
        _GEN_TEXT + "Host Max",
        "pcie.link.gen.hostmax",
    ),
    Row(
        "pcie.width_now",
        "width",
        _WIDTH + "current_link_width",
        _WIDTH_TEXT + "Current",
        "pcie.link.width.current",
    ),
    Row("pcie.width_max", "width", _WIDTH + "max_link_width", _WIDTH_TEXT + "Max", "pcie.link.width.max"),
    Row("pcie.replay_counter", "count", "pci/replay_counter", "PCI/Replays Since Reset"),
)


def _memory() -> Iterable[Row]:
    for part in ("total", "used", "free"):
        yield Row(
            f"memory_mib.{part}",
            "MiB",
            f"fb_memory_usage/{part}",
            f"FB Memory Usage/{part}",
            f"memory.{part}",
        )
    for part in ("total", "used", "free"):
        yield Row(f"bar1_mib.{part}", "MiB", f"bar1_memory_usage/{part}", f"BAR1 Memory Usage/{part}")


_LOAD = (
    Row("fan_percent", "%", "fan_speed", "Fan Speed", "fan.speed"),
    Row("utilization_percent.gpu", "%", "utilization/gpu_util", "Utilization/GPU", "utilization.gpu"),
    Row(
        "utilization_percent.memory",
        "%",
        "utilization/memory_util",
        "Utilization/Memory",
        "utilization.memory",
    ),
)

_T = "temperature/"
_TEMPERATURE = (
    Row(
        "temperature_c.gpu", "C", _T + "gpu_temp", _T + "GPU Current Temp|Temperature/Gpu", "temperature.gpu"
    ),
    Row("temperature_c.memory", "C", _T + "memory_temp", _T + "Memory Current Temp", "temperature.memory"),
    Row("temperature_c.slowdown", "C", _T + "gpu_temp_slow_threshold", _T + "GPU Slowdown Temp"),
    Row("temperature_c.shutdown", "C", _T + "gpu_temp_max_threshold", _T + "GPU Shutdown Temp"),
    Row("temperature_c.max_operating", "C", _T + "gpu_temp_max_gpu_threshold", _T + "GPU Max Operating Temp"),
    Row(
        "temperature_c.memory_max_operating",
        "C",
        _T + "gpu_temp_max_mem_threshold",
        _T + "Memory Max Operating Temp",
    ),
    Row(
        "temperature_c.target",
        "C",
        _T + "gpu_target_temperature",
        _T + "GPU Target Temperature|Temperature/GPU Target Temperature Specification",
    ),
    Row(
        "temperature_c.margin",
        "C",
        _T + "gpu_temp_tlimit",
        _T + "GPU T.Limit Temp|Temperature/GPU Current T.Limit Temp",
        "temperature.gpu.tlimit",
    ),
    Row(
        "temperature_c.margin_slowdown",
        "C",
        _T + "gpu_temp_slow_tlimit_threshold",
        _T + "GPU Slowdown T.Limit Temp",
    ),
    Row(
        "temperature_c.margin_shutdown",
        "C",
        _T + "gpu_temp_max_tlimit_threshold",
        _T + "GPU Shutdown T.Limit Temp",
    ),
    Row(
        "temperature_c.margin_max_operating",
        "C",
        _T + "gpu_temp_max_gpu_tlimit_threshold",
        _T + "GPU Max Operating T.Limit Temp",
    ),
)


def _in(sections: Iterable[str], *names: str) -> str:
    """Give each name in each section, all of the first section first."""
    return "|".join(f"{section}/{name}" for section in sections for name in names)


# The software limit is called "requested" since driver 530, and the one in force "current". Driver 610 has
# them, and the default, in a section of their own.
_PX = ("gpu_power_readings", "power_readings")
_PT = ("GPU Power Readings", "Power Readings")
_CX = ("gpu_power_readings/gpu_ceiling_power_limit", *_PX)
_CT = ("GPU Power Readings/GPU Ceiling Power Limit", *_PT)
_POWER = (
    Row(
        "power_w.draw",
        "W",
        _in(_PX, "average_power_draw", "power_draw", "instant_power_draw"),
        _in(_PT, "Average Power Draw", "Power Draw", "Instantaneous Power Draw"),
        "power.draw|power.draw.average|power.draw.instant",
    ),
    Row(
        "power_w.limit",
        "W",
        _in(_CX, "requested_power_limit", "power_limit"),
        _in(_CT, "Requested Power Limit", "Power Limit"),
        "power.limit",
    ),
    Row(
        "power_w.default_limit",
        "W",
        _in(_CX, "default_power_limit"),
        _in(_CT, "Default Power Limit"),
        "power.default_limit",
    ),
    Row(
        "power_w.enforced_limit",
        "W",
        _in(_CX, "current_power_limit", "enforced_power_limit"),
        _in(_CT, "Current Power Limit", "Enforced Power Limit"),
        "enforced.power.limit",
    ),
    Row("power_w.min", "W", _in(_PX, "min_power_limit"), _in(_PT, "Min Power Limit"), "power.min_limit"),
    Row("power_w.max", "W", _in(_PX, "max_power_limit"), _in(_PT, "Max Power Limit"), "power.max_limit"),
)


def _clocks() -> Iterable[Row]:
    sections = (
        ("now", "clocks", "clocks", "current"),
        ("max", "max_clocks", "max clocks", "max"),
        ("application", "applications_clocks", "applications clocks", "applications"),
        ("boost", "max_customer_boost_clocks", "max customer boost clocks", ""),
    )
    domains = (
        ("graphics", "graphics", "gr"),
        ("sm", "sm", "sm"),
        ("memory", "mem", "mem"),
        ("video", "video", "video"),
    )
    for when, tag, heading, query in sections:
        for domain, xml, short in domains:
            csv = f"clocks.{query}.{domain}|clocks.{query}.{short}" if query else ""
            if when == "now":
                csv += f"|clocks.{short}|clocks.{domain}"
            yield Row(f"clocks_mhz.{domain}.{when}", "MHz", f"{tag}/{xml}_clock", f"{heading}/{domain}", csv)


PROCESS = (
    Row("pid", "count", "processes/process_info/pid", "Processes/Process ID|Compute Processes/Process ID"),
    Row("kind", "process", "processes/process_info/type", "Processes/Process ID/Type"),
    Row(
        "name",
        "program",
        "processes/process_info/process_name",
        "Processes/Process ID/Name|Compute Processes/Process ID/Name",
    ),
    Row(
        "memory_mib",
        "MiB",
        "processes/process_info/used_memory",
        "Processes/Process ID/Used GPU Memory|Compute Processes/Process ID/Used GPU Memory",
    ),
)

GPU = (
    *_IDENTITY,
    *_MODES,
    *_PCIE,
    *_memory(),
    *_LOAD,
    *_TEMPERATURE,
    *_POWER,
    *_clocks(),
    *HEALTH,
    *FABRIC,
)
