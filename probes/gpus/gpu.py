"""Reads one GPU from NVML: every fact by itself, so that a refused one costs nothing else."""

from collections.abc import Iterator

from gputopo.probes.facts import FactReader
from gputopo.probes.gpus import errors as gpu_errors
from gputopo.probes.gpus import links as gpu_links
from gputopo.probes.gpus import load as gpu_load
from gputopo.probes.host import cpu_list
from gputopo.values.machine import Mig
from gputopo.values.subject import within


def facts_of_gpu(gpu: FactReader) -> Iterator[tuple[str, object]]:
    """Read the fields of a Gpu one by one, all but `lost`, and those that identify it first."""
    nvml, read = gpu.nvml, gpu.read
    yield "uuid", read("uuid", nvml.uuid)
    yield "name", read("name", nvml.name)
    yield "brand", read("brand", nvml.brand)
    yield "architecture", read("architecture", nvml.architecture)
    yield "pci_address", read("pci_address", nvml.pci_address)
    yield "pci_device_id", read("pci_device_id", nvml.pci_device_id)
    yield "vbios_version", read("vbios_version", nvml.vbios_version)
    yield "gsp_firmware_version", read("gsp_firmware_version", nvml.gsp_firmware_version)
    yield "numa_node", read("numa_node", nvml.numa_node)
    cpus = read("cpu_affinity", nvml.cpu_affinity)
    yield "cpu_affinity", None if cpus is None else cpu_list(cpus)
    yield "clocks_mhz", gpu_load.clocks(gpu)
    yield "pstate", read("pstate", nvml.pstate)
    yield "throttle", gpu_load.throttle(gpu)
    yield "violation_ns", gpu_load.violations(gpu)
    yield "power_w", gpu_load.power(gpu)
    yield "temperature_c", gpu_load.temperature(gpu)
    yield "pcie", gpu_links.pcie(gpu)
    yield "memory_mib", gpu_load.memory(gpu)
    yield "bar1_mib", gpu_load.bar1(gpu)
    yield "fan_percent", read("fan_percent", nvml.fan_percent)
    yield "display_active", read("display_active", nvml.display_active)
    yield "virtualization", read("virtualization", nvml.virtualization)
    yield "utilization_percent", gpu_load.utilization(gpu)
    yield "ecc", gpu_errors.ecc(gpu)
    yield "remapped_rows", gpu_errors.remapped_rows(gpu)
    yield "retired_pages", gpu_errors.retired_pages(gpu)
    yield "mig", _mig(gpu)
    yield "compute_mode", read("compute_mode", nvml.compute_mode)
    yield "persistence_mode", read("persistence_mode", nvml.persistence_mode)
    yield "processes", gpu_load.processes(gpu)
    yield "nvlinks", gpu_links.nvlinks(gpu)
    yield "fabric", gpu_links.fabric(gpu)
    yield "recovery_action", read("recovery_action", nvml.recovery_action)


def _mig(gpu: FactReader) -> Mig:
    """Read the MIG mode, and the instances of a GPU that is split."""
    modes = gpu.read_parts("mig", ("mode", "mode_pending"), gpu.nvml.mig_mode)
    if not modes:
        gpu.note(gpu.missing.reasons[within(gpu.path, "mig.mode")], "mig.instances")
        return Mig()
    instances = gpu.read("mig.instances", gpu.nvml.mig_instances) if modes["mode"] else 0
    return Mig(mode=modes["mode"], mode_pending=modes["mode_pending"], instances=instances)
