"""GPUs on the PCI bus that another kernel driver than NVIDIA's holds: CUDA and nvidia-smi do not see them.

The same: `lspci -k`, the line "Kernel driver in use".
"""

from collections.abc import Sequence

from gputopo.values.machine import Machine, PciNode

NVIDIA_DRIVER = "nvidia"
# Drivers that hold nothing by themselves: somebody set the device aside for a virtual machine.
SET_ASIDE = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback"})


def gpu_nodes(machine: Machine) -> list[PciNode]:
    """Give the NVIDIA GPUs on the PCI bus."""
    return [node for node in machine.pci if node.kind == "gpu"]


def held_by_others(machines: Sequence[Machine]) -> dict[str, str]:
    """Give the other kernel driver of each GPU that has one, by PCI address; of several readings the first.

    Not of a GPU whose own name is known: that is told by NVIDIA's driver alone. Where more such names are
    known than GPUs that no other driver holds, the bus was read at another time, and none is given. A GPU of
    which no driver is told may be held by any.
    """
    drivers: dict[str, str | None] = {}
    for node in (node for machine in machines for node in gpu_nodes(machine)):
        drivers[node.address] = drivers.get(node.address) or node.driver
    named = [[gpu for gpu in machine.gpus if gpu.name is not None] for machine in machines]
    worked = {gpu.pci_address for gpus in named for gpu in gpus}
    held = {
        address: driver
        for address, driver in drivers.items()
        if driver not in (None, NVIDIA_DRIVER) and address not in worked
    }
    return held if max(map(len, named), default=0) <= len(drivers) - len(held) else {}
