"""The kernel driver of each GPU."""

from collections.abc import Sequence

from gputopo.values.machine import Machine

NVIDIA_DRIVER = "nvidia"
# Reason in `Machine.missing` for a GPU that NVIDIA's kernel module has but NVML does not count.
UNCOUNTED = f"NOT_COUNTED_BY_NVML (kernel driver {NVIDIA_DRIVER})"


def gpus_of_other_drivers(machines: Sequence[Machine]) -> dict[str, str]:
    """Return the other kernel driver of each GPU that has one, by PCI address; the first reading wins.

    GPUs with a name are not returned: only NVIDIA's driver reports names. If there are more names than GPUs
    without another driver, the bus was read at another time, and the result is empty. A GPU whose driver is
    not reported may have any driver.
    """
    drivers: dict[str, str | None] = {}
    for node in (node for machine in machines for node in machine.pci):
        if node.kind == "gpu":
            drivers[node.address] = drivers.get(node.address) or node.driver
    named = [[gpu for gpu in machine.gpus if gpu.name is not None] for machine in machines]
    worked = {gpu.pci_address for gpus in named for gpu in gpus}
    bound = {
        address: driver
        for address, driver in drivers.items()
        if driver not in (None, NVIDIA_DRIVER) and address not in worked
    }
    return bound if max(map(len, named), default=0) <= len(drivers) - len(bound) else {}
