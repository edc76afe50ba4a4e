"""Matches kernel log errors to GPUs: the GPU at the error's address, or the GPU below the bridge there."""

from collections.abc import Iterator, Sequence

from gputopo.topology.hops import bridges_above, pci_tree
from gputopo.values.fields import short_address
from gputopo.values.machine import Gpu, KernelEvent, KernelEventKind, Machine, PciNode


def kernel_events(machine: Machine, *kinds: KernelEventKind) -> Iterator[tuple[Gpu | None, KernelEvent]]:
    """Return the events of these kinds, each with its GPU, or None if it has no GPU or the GPU is unknown.

    An event in two logs (dmesg and kern.log) counts once, with the higher number. An event that occurred
    again since the last boot counts only since then.
    """
    events: dict[tuple[object, ...], KernelEvent] = {}
    for event in machine.kernel_events:
        if event.kind in kinds:
            words = event.text if event.code is None and event.kind != "aer" else None
            key = event.kind, event.code, event.severity, event.pci_address, words
            if key not in events or (events[key].earlier, -events[key].count) > (event.earlier, -event.count):
                events[key] = event
    owners = _owners(machine) if events else {}
    for event in events.values():
        where = None if event.pci_address is None else short_address(event.pci_address)
        yield owners.get(where or ""), event


def _owners(machine: Machine) -> dict[str, Gpu]:
    """Return the GPU of each address: the GPU's own address, and bridges that lead to no other GPU."""
    tree = pci_tree(machine)
    below: dict[str, list[Gpu]] = {}
    gpus = {short_address(gpu.pci_address): gpu for gpu in machine.gpus if gpu.pci_address is not None}
    for address in tree:
        if (gpu := gpus.get(short_address(address))) is not None:
            for bridge in bridges_above(tree, address)[0]:
                below.setdefault(short_address(bridge), []).append(gpu)
    owners = {where: those[0] for where, those in below.items() if len(those) == 1}
    return owners | gpus


NVIDIA_DRIVER = "nvidia"
# Reason in `Machine.missing` for a GPU that NVIDIA's kernel module has but NVML does not count.
UNCOUNTED = f"NOT_COUNTED_BY_NVML (kernel driver {NVIDIA_DRIVER})"
# Drivers that reserve a device for a virtual machine.
SET_ASIDE = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback"})


def gpu_nodes(machine: Machine) -> list[PciNode]:
    """Return the NVIDIA GPUs on the PCI bus."""
    return [node for node in machine.pci if node.kind == "gpu"]


def gpus_of_other_drivers(machines: Sequence[Machine]) -> dict[str, str]:
    """Return the other kernel driver of each GPU that has one, by PCI address; the first reading wins.

    GPUs with a name are not returned: only NVIDIA's driver reports names. If there are more names than GPUs
    without another driver, the bus was read at another time, and the result is empty. A GPU whose driver is
    not reported may have any driver.
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
