"""Matches kernel log errors to GPUs: the GPU at the error's address, or the GPU below the bridge there."""

from collections.abc import Iterator

from gputopo.topology import bridges_above
from gputopo.values.fields import short_address
from gputopo.values.machine import Gpu, KernelEvent, KernelEventKind, Machine


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
    tree = machine.pci_by_address
    below: dict[str, list[Gpu]] = {}
    gpus = {short_address(gpu.pci_address): gpu for gpu in machine.gpus if gpu.pci_address is not None}
    for address in tree:
        if (gpu := gpus.get(short_address(address))) is not None:
            for bridge in bridges_above(tree, address)[0]:
                below.setdefault(short_address(bridge), []).append(gpu)
    owners = {where: those[0] for where, those in below.items() if len(those) == 1}
    return owners | gpus
