"""The computer around the GPUs, and its NVIDIA driver, as frozen values."""

from typing import Literal

from gputopo.values.base import Value


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
