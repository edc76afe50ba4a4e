"""GPUs bound to another kernel driver than NVIDIA's: CUDA and nvidia-smi do not list them.

The same: `lspci -k`, the line "Kernel driver in use".
"""

from collections.abc import Sequence

from gputopo.values.machine import Machine, PciNode

NVIDIA_DRIVER = "nvidia"
# Reason of a GPU that NVIDIA's kernel module has and NVML does not count, in `Machine.missing`.
UNCOUNTED = f"NOT_COUNTED_BY_NVML (kernel driver {NVIDIA_DRIVER})"
# Drivers to which a device is bound to reserve it for a virtual machine.
SET_ASIDE = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback"})


def gpu_nodes(machine: Machine) -> list[PciNode]:
    """Return the NVIDIA GPUs on the PCI bus."""
    return [node for node in machine.pci if node.kind == "gpu"]


def gpus_of_other_drivers(machines: Sequence[Machine]) -> dict[str, str]:
    """Return the other kernel driver of each GPU that has one, by PCI address; of several readings the first.

    Not of a GPU with a name: only NVIDIA's driver reports it. Where there are more names than GPUs without
    another driver, the bus was read at another time, and none is returned. A GPU whose driver is not reported
    may have any.
    """
    drivers: dict[str, str | None] = {}
    for node in (node for machine in machines for node in gpu_nodes(machine)):
        drivers[node.address] = drivers.get(node.address) or node.driver
    named = [[gpu for gpu in machine.gpus if gpu.name is not None] for machine in machines]
    worked = {gpu.pci_address for gpus in named for gpu in gpus}
    bound = {
        address: driver
        for address, driver in drivers.items()
        if driver not in (None, NVIDIA_DRIVER) and address not in worked
    }
    return bound if max(map(len, named), default=0) <= len(drivers) - len(bound) else {}
