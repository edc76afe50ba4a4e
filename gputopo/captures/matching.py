"""Matches the GPUs of one capture to the GPUs of another, and renumbers a capture to fit the first.

Ends (`gpu:3`) identify the GPUs of a bandwidth. Captures of the PCI bus list every GPU, NVIDIA's driver only
the GPUs bound to it. The driver's numbering is used: if some GPUs are bound to vfio-pci or nouveau, they have
no number, as in a live reading. If no GPU is bound to NVIDIA's driver, all keep a number.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gputopo.reference import address_order
from gputopo.topology import gpus_of_other_drivers
from gputopo.values.bandwidth import Bandwidth, NotMeasured, with_new_indices
from gputopo.values.ends import gpus_in, renumbered
from gputopo.values.facts import FactPath, item
from gputopo.values.fields import kernel_address, short_address
from gputopo.values.machine import Contradiction, Gpu, Hop, Link, Machine, Nic


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A device in the list of a CUDA program. `address`: domain, bus and device as in the list."""

    name: str | None = None
    address: str | None = None


def gpus_in_pci_order(devices: Mapping[int, ListedGpu]) -> tuple[tuple[Gpu, ...], dict[int, int]]:
    """Return the GPUs of a CUDA program's list, and their indices by CUDA number.

    GPUs are numbered by PCI address, as in NVML, if the list has an address for every GPU; CUDA's default
    order has the fastest GPU first. Without all addresses, CUDA's numbers are kept.
    """

    addresses = {number: kernel_address(device.address or "") for number, device in devices.items()}
    known = [address for address in addresses.values() if address is not None]
    if len(known) == len(devices) == len(set(known)):
        in_order = sorted(devices, key=lambda number: address_order(addresses[number] or ""))
        index_of = dict(zip(in_order, sorted(devices), strict=True))
    else:
        index_of = {number: number for number in devices}
    reordered = any(index != number for number, index in index_of.items())
    gpus = [
        Gpu(
            index=index_of[number],
            cuda_index=number if reordered else None,  # the program may have been told to use PCI order
            name=device.name,
            pci_address=addresses[number],
        )
        for number, device in devices.items()
    ]
    return tuple(sorted(gpus, key=lambda one: one.index)), index_of


def renumbered_bandwidth(bandwidth: Bandwidth, gpus: Mapping[int, int]) -> Bandwidth:
    """Return the same measurement with other GPU indices, without values of GPUs that are not in `gpus`."""
    known = gpus.keys()
    return msgspec.structs.replace(
        bandwidth,
        samples=tuple(with_new_indices(one, gpus) for one in bandwidth.samples if known >= {*one.gpus}),
        failures=tuple(with_new_indices(one, gpus) for one in bandwidth.failures if known >= {*one.gpus}),
        not_measured=tuple(
            NotMeasured(what=renumbered(one.what, gpus), reason=one.reason)
            for one in bandwidth.not_measured
            if known >= gpus_in(one.what)
        ),
        uplink_groups=tuple(
            msgspec.structs.replace(group, gpus=tuple(sorted(gpus[g] for g in group.gpus)))
            for group in bandwidth.uplink_groups
            if known >= {*group.gpus}
        ),
    )


T = TypeVar("T", Gpu, Nic)

SINGLE_DEVICE = "bandwidthTest"  # sees one device of a machine and calls it 0

# Programs that use CUDA's numbers and may print no address.
_COUNT_AS_CUDA = (SINGLE_DEVICE, "nvbandwidth", "p2pBandwidthLatencyTest")
# Captures that show only some GPUs, or find GPUs by known names.
_PARTS = ("lspci -tv", "/sys", "error text", "nccl log", "nvidia-smi nvlink")
_COUNTED = ("ok", "no_device")  # driver states in which an empty list of GPUs means no GPU


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A fact on which two captures disagree: the first one's value and the other's value."""

    fact: str
    first: str
    other: str


def aligned(
    first: Machine, other: Machine, cuda: Mapping[int, int] | None = None
) -> tuple[Machine, list[Disagreement]]:
    """Renumber the GPUs and NICs of `other` as in `first`, without devices that `first` does not have.

    Devices are matched by UUID or PCI address (NICs also by name) if both captures have one, else by index.
    If `other` is from a program that uses CUDA's numbers, `cuda` gives the index in `first` of each CUDA
    number. The list has the disagreements about which devices exist.
    """
    order = (cuda or {}) if other.source in _COUNT_AS_CUDA else {}
    gpus, found = _matched("gpus", "GPU", first.gpus, other.gpus, _gpu_identities, order)
    if _is_part(other) or other.source in _PARTS:
        found = [said for said in found if said.fact != "gpus"]
    nics, more = _matched("nics", "NIC", first.nics, other.nics, _nic_identities)
    if first.source != other.source:  # nvidia-smi lists cards capable of RDMA, NCCL used cards, lspci all
        more = []
    renumbered = msgspec.structs.replace(
        other,
        gpus=tuple(msgspec.structs.replace(g, index=gpus[g.index]) for g in other.gpus if g.index in gpus),
        links=tuple(_link(link, gpus) for link in other.links if link.a in gpus and link.b in gpus),
        bandwidth=other.bandwidth and renumbered_bandwidth(other.bandwidth, gpus),
        nics=tuple(_nic(nic, gpus, nics) for nic in other.nics if nic.index in nics),
        series=tuple(
            msgspec.structs.replace(one, gpu=gpus[one.gpu]) for one in other.series if one.gpu in gpus
        ),
        missing={new: why for fact, why in other.missing.items() if (new := _fact(fact, gpus, nics))},
        contradictions=tuple(
            Contradiction(fact=new, said=c.said)
            for c in other.contradictions
            if (new := _fact(c.fact, gpus, nics))
        ),
    )
    return renumbered, found + more


def cuda_order(first: Machine, machines: Iterable[Machine]) -> dict[int, int]:
    """Return the index in `first` of each CUDA number that any capture reports."""
    renumbered = [machine if machine is first else aligned(first, machine)[0] for machine in machines]
    gpus = [gpu for machine in renumbered for gpu in machine.gpus]
    return {gpu.cuda_index: gpu.index for gpu in reversed(gpus) if gpu.cuda_index is not None}


def _gpu_identities(gpu: Gpu) -> dict[str, str]:
    known = {"uuid": gpu.uuid, "pci_address": gpu.pci_address and short_address(gpu.pci_address)}
    return {kind: value for kind, value in known.items() if value}


def _nic_identities(nic: Nic) -> dict[str, str]:
    known = {"pci_address": nic.pci_address and short_address(nic.pci_address), "name": nic.name}
    return {kind: value for kind, value in known.items() if value}


def _matched(
    fact: str,
    word: str,
    first: Sequence[T],
    other: Sequence[T],
    identities: Callable[[T], dict[str, str]],
    order: Mapping[int, int] = MappingProxyType({}),
) -> tuple[dict[int, int], list[Disagreement]]:
    """Return the first's indices by the other's indices, for devices in both, and the disagreements."""
    if not first and fact == "nics":  # most captures have no NICs
        return {device.index: device.index for device in other}, []
    found: list[Disagreement] = []
    if other and len(first) != len(other):
        found.append(Disagreement(fact, _counted(first, word), _counted(other, word)))
    numbers: dict[int, int] = {}
    known = [(mine.index, identities(mine)) for mine in first]
    for device in other:
        theirs = identities(device)
        for index, mine in known:
            shared = theirs.keys() & mine.keys()
            if shared and theirs[kind := min(shared)] == mine[kind]:
                numbers[device.index] = index
    if fact == "nics" and len(first) != len(other):
        return numbers, found  # one lists more cards: their order does not help
    by_index = {device.index: device for device in first}
    for device in other:
        there = by_index.get(order.get(device.index, device.index))
        if device.index in numbers or there is None or there.index in numbers.values():
            continue
        shared = identities(device).keys() & identities(there).keys()
        if not shared:
            numbers[device.index] = there.index
        else:
            kind = min(shared)
            place = item(fact, there.index, kind)
            found.append(Disagreement(place, str(getattr(there, kind)), str(getattr(device, kind))))
    return numbers, found


def _counted(devices: Sequence[object], word: str) -> str:
    return f"{len(devices)} {word}{'' if len(devices) == 1 else 's'}"


def _link(link: Link, gpus: dict[int, int]) -> Link:
    low, high = sorted((gpus[link.a], gpus[link.b]))
    return msgspec.structs.replace(link, a=low, b=high)


def _nic(nic: Nic, gpus: dict[int, int], nics: dict[int, int]) -> Nic:
    hops: dict[str, Hop] = {}
    for key, hop in nic.hops.items():
        kind, _, index = key.partition(":")
        new = (gpus if kind == "gpu" else nics).get(int(index)) if index.isdigit() else None
        if new is not None:
            hops[f"{kind}:{new}"] = hop
    return msgspec.structs.replace(nic, index=nics[nic.index], hops=hops)


def _fact(fact: str, gpus: dict[int, int], nics: dict[int, int]) -> str | None:
    """Return a fact's path with new device numbers, or None if a device in it was removed."""
    renumbered = FactPath.parse(fact).renumbered(gpus, nics)
    return None if renumbered is None else renumbered.text


def first_with_gpus(machines: Iterable[Machine]) -> Machine | None:
    """Return the first capture that shows the machine's GPUs, or that there are none."""
    whole = [m for m in machines if not _is_part(m)]
    return next((m for m in whole if m.gpus or m.driver.status in _COUNTED), None)


def _is_part(machine: Machine) -> bool:
    """Return whether a capture shows only some GPUs of a machine, without their numbers."""
    return machine.source == SINGLE_DEVICE


def without_gpus_of_other_drivers(machines: Sequence[Machine]) -> list[Machine]:
    """Return the captures of one machine without GPUs that any capture shows bound to another driver."""
    bound = gpus_of_other_drivers(machines)
    return [_without(machine, bound) for machine in machines]


def _without(machine: Machine, bound: Collection[str]) -> Machine:
    numbered = [gpu for gpu in machine.gpus if gpu.name is not None or gpu.pci_address not in bound]
    if not numbered or len(numbered) == len(machine.gpus) or machine.driver.status != "not_read":
        return machine
    renumbered = (msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(numbered))
    fewer, _ = aligned(Machine(source=machine.source, gpus=tuple(renumbered)), machine)
    return fewer
