"""Reads one GPU through the NVML door: every fact by itself, so that a refused one costs nothing else."""

import msgspec

from gputopo.probes.gpus import errors as gpu_errors
from gputopo.probes.gpus import links as gpu_links
from gputopo.probes.gpus import load as gpu_load
from gputopo.probes.gpus.notes import Asker, Notes, missing_everywhere
from gputopo.probes.host import cpu_list
from gputopo.probes.nvml.door import Handle, Nvml
from gputopo.values.machine import Gpu, Mig


def read_gpu(nvml: Nvml, index: int) -> tuple[Gpu, Handle | None, dict[str, str]]:
    """Give the GPU at an index, its handle, and why facts are missing, by path (`gpus[0].name`).

    A GPU that was counted and has no handle has only its index; every fact of it has the same reason.
    """
    notes = Notes()
    handle = notes.take(f"gpus[{index}]", nvml.handle, index)
    if handle is None:
        reason = notes.missing[f"gpus[{index}]"]
        gpu = Gpu(index=index, lost=notes.lost)
        return gpu, None, missing_everywhere(gpu, reason)
    gpu = _read(Asker(nvml, handle, index, notes), index)
    return msgspec.structs.replace(gpu, lost=notes.lost), handle, notes.missing


def _read(gpu: Asker, index: int) -> Gpu:
    nvml, take = gpu.nvml, gpu.take
    cpus = take("cpu_affinity", nvml.cpu_affinity)
    return Gpu(
        index=index,
        uuid=take("uuid", nvml.uuid),
        name=take("name", nvml.name),
        brand=take("brand", nvml.brand),
        architecture=take("architecture", nvml.architecture),
        pci_address=take("pci_address", nvml.pci_address),
        pci_device_id=take("pci_device_id", nvml.pci_device_id),
        numa_node=take("numa_node", nvml.numa_node),
        cpu_affinity=None if cpus is None else cpu_list(cpus),
        clocks_mhz=gpu_load.clocks(gpu),
        pstate=take("pstate", nvml.pstate),
        throttle=gpu_load.throttle(gpu),
        violation_ns=gpu_load.violations(gpu),
        power_w=gpu_load.power(gpu),
        temperature_c=gpu_load.temperature(gpu),
        pcie=gpu_links.pcie(gpu),
        memory_mib=gpu_load.memory(gpu),
        bar1_mib=gpu_load.bar1(gpu),
        fan_percent=take("fan_percent", nvml.fan_percent),
        display_active=take("display_active", nvml.display_active),
        virtualization=take("virtualization", nvml.virtualization),
        utilization_percent=gpu_load.utilization(gpu),
        ecc=gpu_errors.ecc(gpu),
        remapped_rows=gpu_errors.remapped_rows(gpu),
        retired_pages=gpu_errors.retired_pages(gpu),
        mig=_mig(gpu),
        compute_mode=take("compute_mode", nvml.compute_mode),
        persistence_mode=take("persistence_mode", nvml.persistence_mode),
        processes=gpu_load.processes(gpu),
        nvlinks=gpu_links.nvlinks(gpu),
        fabric=gpu_links.fabric(gpu),
        recovery_action=take("recovery_action", nvml.recovery_action),
    )


def _mig(gpu: Asker) -> Mig:
    """Give the instances too; a card that is not split has none, and is not asked for them."""
    modes = gpu.take_parts("mig", ("mode", "mode_pending"), gpu.nvml.mig_mode)
    if not modes:
        gpu.notes.missing[f"{gpu.path}mig.instances"] = gpu.notes.missing[f"{gpu.path}mig.mode"]
        return Mig()
    instances = gpu.take("mig.instances", gpu.nvml.mig_instances) if modes["mode"] else 0
    return Mig(mode=modes["mode"], mode_pending=modes["mode_pending"], instances=instances)
