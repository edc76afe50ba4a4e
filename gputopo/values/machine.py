"""The machine as frozen values, and their JSON form (`gputopo.machine/1`).

A fact that is absent is None, and `Machine.missing` holds the reason under the fact's path
(`gpus[0].clocks_mhz.memory.now`). Units are in the names. Building a value never asks the machine anything.
"""

from typing import Literal

import msgspec

from gputopo.values.bandwidth import Bandwidth
from gputopo.values.fields import Value
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


class NumaNode(Value, frozen=True):
    """One memory node: its CPUs as a list ("0-9,20-29"), its memory, its distances to nodes 0, 1, ..."""

    index: int
    cpus: str | None = None
    memory_mib: int | None = None
    distances: tuple[int, ...] | None = None


class Host(Value, frozen=True):
    """The computer around the GPUs. No host name: it identifies a person's machine."""

    cpu_model: str | None = None
    sockets: int | None = None
    physical_cores: int | None = None
    logical_cpus: int | None = None
    memory_mib: int | None = None
    numa_nodes: tuple[NumaNode, ...] | None = None
    kernel: str | None = None
    iommu: str | None = None  # off, passthrough, translated
    acs: str | None = None  # off, on
    container: str | None = None  # docker, podman, kubernetes, lxc, ...
    virtual_machine: str | None = None  # kvm, vmware, ...; "none" on bare metal


DriverStatus = Literal[
    "ok",  # NVML answers
    "no_device",  # no NVIDIA device on this machine
    "not_loaded",  # a device, but the kernel module is not loaded
    "library_missing",  # a device, but no libnvidia-ml.so.1
    "version_mismatch",  # library and kernel module are of different versions
    "no_permission",  # /dev/nvidia* may not be opened, or is not there (a container)
    "other_driver",  # a device that another kernel driver holds (nouveau, vfio-pci)
    "failed",  # NVML failed in a way that fits none of these
    "not_read",  # a capture that says nothing about it
]


class Driver(Value, frozen=True):
    """The NVIDIA driver: its state, and its versions as NVML gives them."""

    status: DriverStatus = "not_read"
    version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    kernel_module_version: str | None = None
    detail: str | None = None  # the driver's own words where it failed


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
        """Give the link between two GPUs by index, in either order, or None if it is not known."""
        low, high = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (low, high)), None)
