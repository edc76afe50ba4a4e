"""One GPU as frozen values: identity, settings, state and health.

Each field is declared once, next to its type: words, unit, stability, names in `nvidia-smi`, metric.
"""

from typing import Annotated

from gputopo.values.fields import Fact, Metric, Smi, Value, same_address, same_product
from gputopo.values.gpu_clocks import ClocksMhz, PowerW, TemperatureC, Throttle, UtilizationPercent
from gputopo.values.gpu_links import Fabric, NvLink, Pcie
from gputopo.values.gpu_memory import Bar1Mib, Ecc, MemoryMib, RemappedRows, RetiredPages
from gputopo.values.index_ranges import same_cpus


class Mig(Value, frozen=True):
    """Multi-Instance GPU: whether the GPU is split now and after a reset, and the number of instances."""

    mode: Annotated[
        bool | None,
        Fact(
            peers=True,
            smi=Smi(
                kind="switch", xml="mig_mode/current_mig", text="MIG Mode/Current", csv="mig.mode.current"
            ),
            metric=Metric("gpu_mig_enabled", "whether a GPU is split"),
        ),
    ] = None
    mode_pending: Annotated[
        bool | None,
        Fact(
            smi=Smi(
                kind="switch", xml="mig_mode/pending_mig", text="MIG Mode/Pending", csv="mig.mode.pending"
            ),
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
                kind="count",
                xml="processes/process_info/pid",
                text=("Processes/Process ID", "Compute Processes/Process ID"),
            )
        ),
    ]
    # compute, graphics or mps
    kind: Annotated[
        str | None,
        Fact(smi=Smi(kind="process", xml="processes/process_info/type", text="Processes/Process ID/Type")),
    ] = None
    name: Annotated[
        str | None,
        Fact(
            smi=Smi(
                kind="program",
                xml="processes/process_info/process_name",
                text=("Processes/Process ID/Name", "Compute Processes/Process ID/Name"),
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
                xml="processes/process_info/used_memory",
                text=("Processes/Process ID/Used GPU Memory", "Compute Processes/Process ID/Used GPU Memory"),
            ),
        ),
    ] = None


class Gpu(Value, frozen=True):
    """One GPU. `index`: its number in PCI order, as in NVML; `cuda_index`: in CUDA's default order."""

    index: int
    cuda_index: Annotated[int | None, Fact("CUDA index", info=True)] = None
    uuid: Annotated[
        str | None,
        Fact(
            "UUID",
            stability="fixed",
            info=True,
            smi=Smi(kind="uuid", xml="uuid", text="GPU UUID", csv=("uuid", "gpu_uuid")),
        ),
    ] = None
    name: Annotated[
        str | None,
        Fact(
            stability="fixed",
            smi=Smi(kind="words", xml="product_name", text="Product Name", csv=("name", "gpu_name")),
            same=same_product,
        ),
    ] = None
    brand: Annotated[
        str | None,
        Fact(
            stability="fixed",
            peers=True,
            info=True,
            smi=Smi(kind="words", xml="product_brand", text="Product Brand"),
        ),
    ] = None
    architecture: Annotated[
        str | None,
        Fact(
            stability="fixed",
            peers=True,
            info=True,
            smi=Smi(kind="words", xml="product_architecture", text="Product Architecture"),
        ),
    ] = None
    pci_address: Annotated[
        str | None,
        Fact(
            "PCI address",
            stability="fixed",
            smi=Smi(
                kind="address", xml="pci/pci_bus_id", text="PCI/Bus Id", csv=("pci.bus_id", "gpu_bus_id")
            ),
            same=same_address,
        ),
    ] = None
    pci_device_id: Annotated[
        str | None,
        Fact(
            "PCI device id",
            stability="fixed",
            peers=True,
            info=True,
            smi=Smi(kind="device", xml="pci/pci_device_id", text="PCI/Device Id", csv="pci.device_id"),
        ),
    ] = None
    # device and vendor id, as nvidia-smi writes them
    pci_subsystem_id: Annotated[
        str | None,
        Fact(
            "PCI subsystem id",
            stability="fixed",
            peers=True,
            info=True,
            smi=Smi(
                kind="subsystem",
                xml="pci/pci_sub_system_id",
                text="PCI/Sub System Id",
                csv="pci.sub_device_id",
            ),
        ),
    ] = None
    board_part_number: Annotated[
        str | None,
        Fact(
            stability="fixed",
            peers=True,
            info=True,
            smi=Smi(kind="words", xml="board_part_number", text="Board Part Number"),
        ),
    ] = None
    vbios_version: Annotated[
        str | None,
        Fact(
            "VBIOS version",
            peers=True,
            info=True,
            smi=Smi(kind="words", xml="vbios_version", text="VBIOS Version", csv="vbios_version"),
        ),
    ] = None
    inforom_version: Annotated[
        str | None,
        Fact(
            "InfoROM version",
            peers=True,
            info=True,
            smi=Smi(
                kind="words",
                xml="inforom_version/img_version",
                text="Inforom Version/Image Version",
                csv="inforom.img",
            ),
        ),
    ] = None
    gsp_firmware_version: Annotated[
        str | None,
        Fact(
            "GSP firmware version",
            peers=True,
            info=True,
            smi=Smi(kind="words", xml="gsp_firmware_version", text="GSP Firmware Version"),
        ),
    ] = None
    numa_node: Annotated[int | None, Fact("NUMA node", info=True)] = None
    cpu_affinity: Annotated[str | None, Fact("CPU affinity", info=True, same=same_cpus)] = None
    clocks_mhz: Annotated[ClocksMhz, Fact("clocks", unit="MHz", within="")] = ClocksMhz()
    pstate: Annotated[
        str | None,
        Fact(
            "P-state",
            stability="volatile",
            smi=Smi(kind="pstate", xml="performance_state", text="Performance State", csv="pstate"),
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
    power_w: Annotated[PowerW, Fact("power", unit="W")] = PowerW()
    temperature_c: Annotated[TemperatureC, Fact("temperature", unit="C")] = TemperatureC()
    pcie: Annotated[Pcie, Fact("PCIe")] = Pcie()
    memory_mib: Annotated[MemoryMib, Fact("memory", unit="MiB")] = MemoryMib()
    bar1_mib: Annotated[Bar1Mib, Fact("BAR1", unit="MiB")] = Bar1Mib()
    fan_percent: Annotated[
        int | None,
        Fact(
            "fan",
            unit="%",
            stability="volatile",
            smi=Smi(xml="fan_speed", text="Fan Speed", csv="fan.speed"),
            metric=Metric("gpu_fan_speed_ratio", "fan speed, 1 is full"),
        ),
    ] = None
    display_active: Annotated[
        bool | None,
        Fact(
            stability="volatile",
            smi=Smi(kind="switch", xml="display_active", text="Display Active", csv="display_active"),
            metric=Metric("gpu_display_active", "whether a GPU drives a display"),
        ),
    ] = None
    # none, pass-through, vgpu, ...
    virtualization: Annotated[
        str | None,
        Fact(
            peers=True,
            info=True,
            smi=Smi(
                kind="lower",
                xml="gpu_virtualization_mode/virtualization_mode",
                text="GPU Virtualization Mode/Virtualization Mode",
            ),
        ),
    ] = None
    utilization_percent: Annotated[
        UtilizationPercent, Fact("utilization", unit="%", stability="volatile")
    ] = UtilizationPercent()
    ecc: Annotated[Ecc, Fact("ECC")] = Ecc()
    remapped_rows: Annotated[RemappedRows, Fact(stability="state")] = RemappedRows()
    retired_pages: Annotated[RetiredPages, Fact(stability="state")] = RetiredPages()
    mig: Annotated[Mig, Fact("MIG")] = Mig()
    compute_mode: Annotated[
        str | None,
        Fact(
            peers=True,
            info=True,
            smi=Smi(kind="mode", xml="compute_mode", text="Compute Mode", csv="compute_mode"),
        ),
    ] = None
    persistence_mode: Annotated[
        bool | None,
        Fact(
            peers=True,
            smi=Smi(kind="switch", xml="persistence_mode", text="Persistence Mode", csv="persistence_mode"),
            metric=Metric("gpu_persistence_mode", "whether the driver stays loaded without use"),
        ),
    ] = None
    processes: Annotated[tuple[GpuProcess, ...] | None, Fact(stability="volatile")] = None
    nvlinks: Annotated[tuple[NvLink, ...] | None, Fact("NVLinks", stability="state")] = None
    # NVLink-C2C to the CPU
    c2c_mode: Annotated[
        bool | None,
        Fact(
            "C2C mode",
            peers=True,
            smi=Smi(kind="switch", xml="c2c_mode", text="GPU C2C Mode", csv="c2c.mode"),
            metric=Metric("gpu_c2c_enabled", "whether NVLink-C2C to the CPU is on"),
        ),
    ] = None
    fabric: Annotated[Fabric, Fact(stability="state")] = Fabric()
    # it was listed, and then did not answer
    lost: Annotated[
        bool,
        Fact(
            stability="state", metric=Metric("gpu_lost", "whether a GPU was counted and then did not answer")
        ),
    ] = False
    # none, reset, reboot, drain p2p, drain and reset
    recovery_action: Annotated[
        str | None,
        Fact(
            stability="state",
            smi=Smi(
                kind="action",
                xml="gpu_recovery_action",
                text="GPU Recovery Action",
                csv="gpu_recovery_action",
            ),
        ),
    ] = None
