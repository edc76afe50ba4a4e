"""Which GPU of one capture is which of another, and a capture renumbered to fit the first.

Ends (`gpu:3`) name the GPUs of a bandwidth. Captures of the PCI bus count every GPU, NVIDIA's driver only
those bound to it: the latter counts, so a GPU that is bound to vfio-pci or nouveau beside others has no
number, as on a machine that is read live. Where no GPU is bound to NVIDIA's driver, all keep a number.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gputopo.reference.expectations import address_order
from gputopo.topology.kernel import gpus_of_other_drivers
from gputopo.values.bandwidth import Bandwidth, NotMeasured, with_new_indices
from gputopo.values.ends import gpus_in, renumbered
from gputopo.values.facts import FactPath, item
from gputopo.values.fields import kernel_address, short_address
from gputopo.values.machine import Contradiction, Gpu, Hop, Link, Machine, Nic


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A device as a CUDA program lists it. `address`: domain, bus and device as it has them."""

    name: str | None = None
    address: str | None = None


def gpus_in_pci_order(devices: Mapping[int, ListedGpu]) -> tuple[tuple[Gpu, ...], dict[int, int]]:
    """Return the GPUs of a CUDA program's list, and the index of each by its CUDA number.

    GPUs are numbered by PCI address, as NVML does, where the list has the address of every one; CUDA's own
    order is the fastest first. Without addresses CUDA's numbers stand.
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
            cuda_index=number if reordered else None,  # in PCI order it may have been asked for that order
            name=device.name,
            pci_address=addresses[number],
        )
        for number, device in devices.items()
    ]
    return tuple(sorted(gpus, key=lambda one: one.index)), index_of


def renumbered_bandwidth(bandwidth: Bandwidth, gpus: Mapping[int, int]) -> Bandwidth:
    """Return the same measurement with other GPU indices; what is of a GPU that `gpus` lacks is left out."""
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

# Programs whose numbers are CUDA's and which may show no address.
_COUNT_AS_CUDA = (SINGLE_DEVICE, "nvbandwidth", "p2pBandwidthLatencyTest")
# Captures that show some GPUs, or them by what is known of their names.
_PARTS = ("lspci -tv", "/sys", "error text", "nccl log", "nvidia-smi nvlink")
_COUNTED = ("ok", "no_device")  # the driver states in which an empty list of GPUs is a statement


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A fact on which two captures disagree: the value of the first and that of the other."""

    fact: str
    first: str
    other: str


def aligned(
    first: Machine, other: Machine, cuda: Mapping[int, int] | None = None
) -> tuple[Machine, list[Disagreement]]:
    """Renumber the GPUs and NICs of `other` as `first` numbers them, and leave out those it does not have.

    They are matched by UUID or PCI address (NICs: or name) where both have one, else by index; where `other`
    is of a program that counts as CUDA does, by `cuda`, the first's index of CUDA's numbers. The list has
    the disagreements on which devices there are.
    """
    order = (cuda or {}) if other.source in _COUNT_AS_CUDA else {}
    gpus, found = _matched("gpus", "GPU", first.gpus, other.gpus, _gpu_identities, order)
    if _is_part(other) or other.source in _PARTS:
        found = [said for said in found if said.fact != "gpus"]
    nics, more = _matched("nics", "NIC", first.nics, other.nics, _nic_identities)
    if first.source != other.source:  # nvidia-smi lists cards that can RDMA, NCCL those it uses, lspci all
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
    """Return the first's index of each of CUDA's numbers that any capture has."""
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
    """Return the first's index of each device of the other that it has, and the disagreements."""
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
        return numbers, found  # one lists cards that the other leaves out: their order is no help
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
    """Renumber the devices in a fact's address; None where it names one that is left out."""
    renumbered = FactPath.parse(fact).renumbered(gpus, nics)
    return None if renumbered is None else renumbered.text


def first_with_gpus(machines: Iterable[Machine]) -> Machine | None:
    """Return the first capture that shows which GPUs there are, if only that there are none."""
    whole = [m for m in machines if not _is_part(m)]
    return next((m for m in whole if m.gpus or m.driver.status in _COUNTED), None)


def _is_part(machine: Machine) -> bool:
    """Return whether a capture is of some GPUs of a machine only, without their number."""
    return machine.source == SINGLE_DEVICE


def without_gpus_of_other_drivers(machines: Sequence[Machine]) -> list[Machine]:
    """Return the captures of one machine without the GPUs that any of them shows bound to another driver."""
    bound = gpus_of_other_drivers(machines)
    return [_without(machine, bound) for machine in machines]


def _without(machine: Machine, bound: Collection[str]) -> Machine:
    numbered = [gpu for gpu in machine.gpus if gpu.name is not None or gpu.pci_address not in bound]
    if not numbered or len(numbered) == len(machine.gpus) or machine.driver.status != "not_read":
        return machine
    renumbered = (msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(numbered))
    fewer, _ = aligned(Machine(source=machine.source, gpus=tuple(renumbered)), machine)
    return fewer
