"""The facts of a host under names that like hosts share: devices by place, addresses as the reference's."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gputopo.findings.difference import compared_facts, drivers, without_generation
from gputopo.findings.usage import under_load
from gputopo.fleet.alignment import gpu_places, same_addresses
from gputopo.values.fact_path import at_gpu, at_link, at_nic, at_pci, within
from gputopo.values.fields import Field
from gputopo.values.machine import Gpu, Machine, Nic, PciNode

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

# What differs between sound hosts: what the kernel numbers and names as it finds it, and repairs of memory.
_VARYING: dict[type[msgspec.Struct], frozenset[str]] = {
    Gpu: frozenset(
        {
            "cpu_affinity",  # cut by the CPUs of the job in which it was read
            "cuda_index",
            "pci_address",
            "remapped_rows.correctable",
            "remapped_rows.uncorrectable",
            "remapped_rows.banks.high",
            "remapped_rows.banks.low",
            "remapped_rows.banks.max",
            "remapped_rows.banks.none",
            "remapped_rows.banks.partial",
            "retired_pages.double_bit",
            "retired_pages.single_bit",
        }
    ),
    Nic: frozenset({"name", "pci_address", "ports[].interface", "ports[].rdma_device"}),
    PciNode: frozenset({"name", "parent", "root"}),
}
_OF_GPU_TOO = ("max_speed_gt_per_s", "max_width", "width", "numa_node")


class Device(NamedTuple):
    """What facts are about: `kind` (gpus, links, nics, pci, host, driver) and the place that hosts share."""

    kind: str
    place: str = ""


class Known(NamedTuple):
    """One fact of a host. `fact`: its path within the device."""

    device: Device
    fact: str
    field: Field
    value: Any


class HostFacts(NamedTuple):
    """All facts of a host by shared path, and its GPUs and network cards by place.

    `gpus_answer`: whether the driver was not found unable to read the GPUs.
    """

    facts: dict[str, Known]
    gpus: dict[str, Gpu]
    nics: dict[str, Nic]
    gpus_answer: bool


def facts_of_host(machine: Machine, reference: Machine) -> HostFacts:
    """Return the facts of a host to compare with those of like hosts, of which `reference` is one."""
    moved = same_addresses(machine, reference)
    places = gpu_places(machine, reference)
    gpus = dict(zip(places, machine.gpus, strict=True))
    nics: dict[str, Nic] = {}
    for nic in machine.nics:
        place = _nic_place(nic, moved)
        nics[f"{place} {nic.name}" if place in nics else place] = nic
    facts: dict[str, Known] = {}

    def add(path: str, device: Device, value: msgspec.Struct, left_out: tuple[str, ...] = ()) -> None:
        varying = _VARYING.get(type(value), frozenset())
        for fact, field, found in compared_facts(value):
            if not field.counter and field.is_known(found) and field.path not in varying | {*left_out}:
                facts[within(path, fact)] = Known(device, fact, field, _moved(found, moved))

    (driver,) = drivers(machine.driver)
    add("driver", Device("driver"), driver)
    add("host", Device("host"), machine.host)
    for place, gpu in gpus.items():
        if not gpu.lost:
            add(
                at_gpu(place),
                Device("gpus", place),
                gpu if under_load(gpu) else without_generation(gpu),
            )
    numbers = {gpu.index: place for place, gpu in gpus.items()}
    for link in machine.links:
        if link.a in numbers and link.b in numbers:
            a, b = sorted((numbers[link.a], numbers[link.b]))
            add(at_link(a, b), Device("links", f"{a} {b}"), link)
    for place, nic in nics.items():
        add(at_nic(place), Device("nics", place), nic)
    for node in machine.pci:
        place = moved.get(node.address, node.address)
        add(at_pci(place), Device("pci", place), node, _OF_GPU_TOO if place in gpus else ())
    return HostFacts(facts, gpus, nics, machine.driver.status in ("ok", "not_read"))


def _nic_place(nic: Nic, moved: Mapping[str, str]) -> str:
    if nic.pci_address is None:
        return nic.name or str(nic.index)
    return moved.get(nic.pci_address, nic.pci_address)


def _moved(value: Any, moved: Mapping[str, str]) -> Any:
    return moved.get(value, value) if isinstance(value, str) and _ADDRESS.fullmatch(value) else value
