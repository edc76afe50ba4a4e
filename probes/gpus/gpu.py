"""Reads one GPU from NVML: every fact by itself, so that a refused one costs nothing else."""

import msgspec

from gputopo.probes.facts import FactReader, MissingFacts, absent_facts
from gputopo.probes.gpus import errors as gpu_errors
from gputopo.probes.gpus import links as gpu_links
from gputopo.probes.gpus import load as gpu_load
from gputopo.probes.host import cpu_list
from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml
from gputopo.values.fact_path import at_gpu, within
from gputopo.values.machine import Gpu, Mig


def read_gpu(nvml: Nvml, index: int, missing: MissingFacts) -> tuple[Gpu, Handle | None]:
    """Read the GPU at an index; return it and its handle.

    A GPU that was counted and has no handle has only its index; every fact of it has the same reason.
    """
    try:
        handle = nvml.handle(index)
    except NotReadError as error:
        gpu = Gpu(index=index, lost=error.reason == LOST)
        miss_all(gpu, error.reason, missing)
        return gpu, None
    reader = FactReader(nvml, missing, at_gpu(index), handle)
    gpu = _read(reader, index)
    return msgspec.structs.replace(gpu, lost=reader.lost), handle


def miss_all(gpu: Gpu, reason: str, missing: MissingFacts) -> None:
    """Note the reason for every fact of a GPU that is None."""
    missing.note(reason, *(at_gpu(gpu.index, path) for path in absent_facts(gpu)))


def _read(gpu: FactReader, index: int) -> Gpu:
    nvml, read = gpu.nvml, gpu.read
    cpus = read("cpu_affinity", nvml.cpu_affinity)
    return Gpu(
        index=index,
        uuid=read("uuid", nvml.uuid),
        name=read("name", nvml.name),
        brand=read("brand", nvml.brand),
        architecture=read("architecture", nvml.architecture),
        pci_address=read("pci_address", nvml.pci_address),
        pci_device_id=read("pci_device_id", nvml.pci_device_id),
        vbios_version=read("vbios_version", nvml.vbios_version),
        gsp_firmware_version=read("gsp_firmware_version", nvml.gsp_firmware_version),
        numa_node=read("numa_node", nvml.numa_node),
        cpu_affinity=None if cpus is None else cpu_list(cpus),
        clocks_mhz=gpu_load.clocks(gpu),
        pstate=read("pstate", nvml.pstate),
        throttle=gpu_load.throttle(gpu),
        violation_ns=gpu_load.violations(gpu),
        power_w=gpu_load.power(gpu),
        temperature_c=gpu_load.temperature(gpu),
        pcie=gpu_links.pcie(gpu),
        memory_mib=gpu_load.memory(gpu),
        bar1_mib=gpu_load.bar1(gpu),
        fan_percent=read("fan_percent", nvml.fan_percent),
        display_active=read("display_active", nvml.display_active),
        virtualization=read("virtualization", nvml.virtualization),
        utilization_percent=gpu_load.utilization(gpu),
        ecc=gpu_errors.ecc(gpu),
        remapped_rows=gpu_errors.remapped_rows(gpu),
        retired_pages=gpu_errors.retired_pages(gpu),
        mig=_mig(gpu),
        compute_mode=read("compute_mode", nvml.compute_mode),
        persistence_mode=read("persistence_mode", nvml.persistence_mode),
        processes=gpu_load.processes(gpu),
        nvlinks=gpu_links.nvlinks(gpu),
        fabric=gpu_links.fabric(gpu),
        recovery_action=read("recovery_action", nvml.recovery_action),
    )


def _mig(gpu: FactReader) -> Mig:
    """Read the MIG mode, and the instances of a GPU that is split."""
    modes = gpu.read_parts("mig", ("mode", "mode_pending"), gpu.nvml.mig_mode)
    if not modes:
        gpu.note(gpu.missing.reasons[within(gpu.path, "mig.mode")], "mig.instances")
        return Mig()
    instances = gpu.read("mig.instances", gpu.nvml.mig_instances) if modes["mode"] else 0
    return Mig(mode=modes["mode"], mode_pending=modes["mode_pending"], instances=instances)
