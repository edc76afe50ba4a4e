"""Devices of similar hosts of a fleet, matched by their position on PCIe, and their facts under common names.

Bus numbers depend on the devices that were found when the host started. The order of devices depends on the
wiring.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gputopo.findings.difference import compared_facts, drivers, without_generation
from gputopo.reference import under_load
from gputopo.values.machine import Gpu, Link, Machine, Nic, PciNode
from gputopo.values.subject import DRIVER, MACHINE, Subject

# Facts that differ between healthy hosts: numbers and names in the kernel's order of detection, and memory
# repairs.
_REPAIRS = (
    "correctable",
    "uncorrectable",
    *(f"banks.{name}" for name in ["high", "low", "max", "none", "partial"]),
)
_VARYING: dict[type[msgspec.Struct], frozenset[str]] = {
    Gpu: frozenset(
        {
            "cpu_affinity",  # limited to the CPUs of the job in which it was read
            "cuda_index",
            "pci_address",
            *(f"remapped_rows.{name}" for name in _REPAIRS),
            "retired_pages.double_bit",
            "retired_pages.single_bit",
        }
    ),
    Nic: frozenset({"name", "pci_address", "ports[].interface", "ports[].rdma_device"}),
    PciNode: frozenset({"name", "parent", "root"}),
}
# Facts of a PCI device that a GPU also has.
_OF_GPU_TOO: dict[str, Any] = dict.fromkeys(("max_speed_gt_per_s", "max_width", "width", "numa_node"))


def same_addresses(machine: Machine, reference: Machine) -> Mapping[str, str]:
    """Return the reference's address of each PCI device, for a machine with other bus numbers.

    Empty if nearly all GPUs have the same addresses as in the reference. The order of the devices does not
    depend on the bus numbers.
    """
    addresses, reference_addresses = _addresses(machine), _addresses(reference)
    gpus = {gpu.pci_address for gpu in machine.gpus}
    elsewhere = len(gpus.difference(gpu.pci_address for gpu in reference.gpus))
    # Not measured; chosen because each of two hosts may have one or two missing GPUs.
    is_moved = elsewhere > min(2, len(gpus) / 2)
    return (
        dict(zip(addresses, reference_addresses, strict=True))
        if is_moved and len(addresses) == len(reference_addresses)
        else {}
    )


def _addresses(machine: Machine) -> list[str]:
    """Return the addresses of all PCI devices, in order."""
    listed = {gpu.pci_address for gpu in machine.gpus} | {nic.pci_address for nic in machine.nics}
    return sorted(filter(None, listed.union(node.address for node in machine.pci)))


class HostDevice(NamedTuple):
    """A device that hosts share: its `group` (gpus, links, nics, pci, host, driver) and its position.

    Links are between two GPUs, or between a GPU and a network card.
    """

    group: str
    place: str = ""


class HostFacts(NamedTuple):
    """The facts of a host by device and path, and the host's own numbers and names of its devices."""

    facts: dict[HostDevice, dict[str, Any]]  # a lost GPU has none
    devices: dict[HostDevice, tuple[Subject, str]]


def facts_of_host(
    machine: Machine, reference: Machine, seen: dict[HostDevice, tuple[msgspec.Struct, dict[str, Any]]]
) -> HostFacts:
    """Return the facts of a host to compare with similar hosts. `reference` is one of these hosts.

    `seen`: the last value of each device and its facts, for the next host, which usually has the same.
    """
    moved = same_addresses(machine, reference)
    host = HostFacts({}, {})
    for device, called, value in _devices(machine, moved):
        host.devices[device] = called
        if value is None:
            continue
        if device not in seen or seen[device][0] != value:
            varying = _VARYING.get(type(value), frozenset())
            facts = {
                fact: moved.get(fact_value, fact_value) if isinstance(fact_value, str) else fact_value
                for fact, field, fact_value in compared_facts(value)
                if not field.counter and field.is_known(fact_value) and field.path not in varying
            }
            seen[device] = value, facts
        host.facts[device] = seen[device][1]
    return host


def _devices(
    machine: Machine, moved: Mapping[str, str]
) -> Iterator[tuple[HostDevice, tuple[Subject, str], msgspec.Struct | None]]:
    """Yield each device, the host's name of the device, and its value."""
    (driver,) = drivers(machine.driver)
    yield HostDevice("driver"), (DRIVER, "driver"), driver
    yield HostDevice("host"), (MACHINE, "host"), machine.host
    places: dict[int, str] = {}
    for gpu in machine.gpus:
        at = moved.get(gpu.pci_address, gpu.pci_address) if gpu.pci_address else str(gpu.index)
        compared = gpu if under_load(gpu) else without_generation(gpu)
        called = (Subject.of_gpus([gpu.index]), f"GPU {gpu.index}")
        yield HostDevice("gpus", at), called, None if gpu.lost else compared
        if not gpu.lost:
            places[gpu.index] = at
    for link in machine.links:
        if link.a in places and link.b in places:
            device = HostDevice("links", " ".join(sorted((places[link.a], places[link.b]))))
            yield device, (Subject.of_link(link.a, link.b), f"GPUs {link.a} and {link.b}"), link
    seen: set[str] = set()
    for nic in machine.nics:
        at = moved.get(nic.pci_address, nic.pci_address) if nic.pci_address else nic.name or str(nic.index)
        at = f"{at} {nic.name}" if at in seen else at
        seen.add(at)
        name = f"network card {nic.name or nic.pci_address or nic.index}"
        subject = Subject.of_nics([nic.index])
        yield HostDevice("nics", at), (subject, name), nic
        for key, hop in nic.hops.items():
            index = key.removeprefix("gpu:")
            if index.isdecimal() and int(index) in places:
                pair = HostDevice("links", f"{places[int(index)]} {at}")
                yield pair, (subject, f"{name} and GPU {index}"), Link(a=0, b=1, hop=hop)
    for node in machine.pci:
        at = moved.get(node.address, node.address)
        compared_node = msgspec.structs.replace(node, **_OF_GPU_TOO) if at in places.values() else node
        yield HostDevice("pci", at), (MACHINE, f"PCI device {node.address}"), compared_node
