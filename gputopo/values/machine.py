"""The machine as frozen values, and their JSON form (`gputopo.machine/1`).

A fact that is absent is None, and `Machine.missing` holds the reason under the fact's path
(`gpus[0].clocks_mhz.memory.now`). Units are in the names. Building a value never asks the machine anything.
"""

from typing import Annotated, Literal

import msgspec

from gputopo.values.bandwidth import Bandwidth
from gputopo.values.fields import Fact, Metric, Smi, Value
from gputopo.values.gpu import (
    JOINING,
    ClockMhz,
    ClocksMhz,
    Ecc,
    Fabric,
    Gpu,
    GpuProcess,
    MemoryMib,
    Mig,
    NvLink,
    Pcie,
    PowerW,
    RemappedRows,
    RetiredPages,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)
from gputopo.values.index_ranges import same_cpus
from gputopo.values.links import Hop, Link, Nic, PciNode

__all__ = [
    "JOINING",
    "ClockMhz",
    "ClocksMhz",
    "Contradiction",
    "Driver",
    "DriverStatus",
    "Ecc",
    "Fabric",
    "Gpu",
    "GpuProcess",
    "Hop",
    "Host",
    "Link",
    "Machine",
    "MemoryMib",
    "Mig",
    "Nic",
    "NumaNode",
    "NvLink",
    "PciNode",
    "Pcie",
    "PowerW",
    "RemappedRows",
    "RetiredPages",
    "TemperatureC",
    "Throttle",
    "Unread",
    "UtilizationPercent",
]


_KERNEL_SHARE = 0.01  # of memory: what the kernel keeps for itself differs from version to version


class NumaNode(Value, frozen=True):
    """One NUMA node: its CPUs as a list ("0-9,20-29"), its memory, its distances to nodes 0, 1, ..."""

    index: int
    cpus: Annotated[str | None, Fact("CPUs", same=same_cpus)] = None
    memory_mib: Annotated[
        int | None,
        Fact(
            "memory",
            unit="MiB",
            tolerance=_KERNEL_SHARE,
            metric=Metric("numa_node_memory_bytes", "memory of a NUMA node"),
        ),
    ] = None
    distances: tuple[int, ...] | None = None


class Host(Value, frozen=True):
    """The computer around the GPUs. No host name: it identifies a person's machine."""

    cpu_model: Annotated[str | None, Fact("CPU model", info=True)] = None
    sockets: Annotated[int | None, Fact(metric=Metric("host_sockets", "CPU sockets"))] = None
    physical_cores: Annotated[int | None, Fact(metric=Metric("host_physical_cores", "CPU cores"))] = None
    logical_cpus: Annotated[
        int | None, Fact("logical CPUs", metric=Metric("host_logical_cpus", "logical CPUs"))
    ] = None
    memory_mib: Annotated[
        int | None,
        Fact(
            "memory",
            unit="MiB",
            tolerance=_KERNEL_SHARE,
            metric=Metric("host_memory_bytes", "memory of the host"),
        ),
    ] = None
    numa_nodes: Annotated[tuple[NumaNode, ...] | None, Fact("NUMA nodes")] = None
    kernel: Annotated[str | None, Fact(info=True)] = None
    iommu: Annotated[str | None, Fact("IOMMU", info=True)] = None  # off, passthrough, translated
    acs: Annotated[str | None, Fact("ACS", info=True)] = None  # off, on
    container: Annotated[str | None, Fact(info=True)] = None  # docker, podman, kubernetes, lxc, ...
    virtual_machine: Annotated[str | None, Fact(info=True)] = None  # kvm, vmware, ...; "none" on bare metal


DriverStatus = Literal[
    "ok",  # NVML answers
    "no_device",  # no NVIDIA device on this machine
    "not_loaded",  # a device, but the kernel module is not loaded
    "library_missing",  # a device, but no libnvidia-ml.so.1
    "version_mismatch",  # library and kernel module are of different versions
    "no_permission",  # /dev/nvidia* may not be opened, or is not there (a container)
    "other_driver",  # a device that is bound to another kernel driver (nouveau, vfio-pci)
    "failed",  # NVML failed otherwise
    "not_read",  # a capture without it
]


class Driver(Value, frozen=True):
    """The NVIDIA driver: its state, and its versions as NVML reports them."""

    status: Annotated[DriverStatus, Fact(info=True)] = "not_read"
    version: Annotated[
        str | None,
        Fact(
            info=True,
            smi=Smi(
                "kmd_version|driver_version",
                "KMD Version|Driver Version",
                "kmd_version|driver_version",
                kind="version",
            ),
        ),
    ] = None
    cuda_version: Annotated[
        str | None,
        Fact(
            "CUDA version",
            info=True,
            smi=Smi("cuda_umd_version|cuda_version", "CUDA UMD Version|CUDA Version", kind="version"),
        ),
    ] = None
    nvml_version: Annotated[
        str | None,
        Fact("NVML version", info=True, smi=Smi("nvml_version", "NVML Version", kind="version")),
    ] = None
    kernel_module_version: Annotated[str | None, Fact(info=True)] = None
    detail: Annotated[str | None, Fact(stability="volatile")] = None  # driver message where it failed


class Contradiction(Value, frozen=True):
    """Two sources that say different things of one fact; the first one given stands in the machine."""

    fact: str  # "links[0-1].hop"
    said: dict[str, str]  # source: what it said


class Unread(Value, frozen=True):
    """A line of a capture that was not understood."""

    source: str
    line: int
    text: str


class Machine(Value, frozen=True, tag_field="schema", tag="gputopo.machine/1"):
    """All that is known of one machine, and where it came from."""

    source: str  # live, recording, nvidia-smi topo, ...; several are joined by " + "
    host: Host = Host()
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    pci: tuple[PciNode, ...] = ()
    bandwidth: Bandwidth | None = None
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()
    unread: tuple[Unread, ...] = ()

    def link(self, a: int, b: int) -> Link | None:
        """Return the link between two GPUs by index, in either order, or None if it is not known."""
        low, high = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (low, high)), None)
