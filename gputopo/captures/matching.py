"""Matches the GPUs of one capture to the GPUs of another, and renumbers a capture to fit the first.

Ends (`gpu:3`) identify the GPUs of a bandwidth. Captures of the PCI bus list every GPU, NVIDIA's driver only
the GPUs bound to it. The driver's numbering is used: if some GPUs are bound to vfio-pci or nouveau, they have
no number, as in a live reading. If no GPU is bound to NVIDIA's driver, all keep a number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from msgspec.structs import replace

from gputopo.reference import address_order
from gputopo.topology import gpus_of_other_drivers
from gputopo.values.bandwidth import Bandwidth, NotMeasured, with_new_indices
from gputopo.values.ends import gpus_in, renumbered
from gputopo.values.facts import FactPath, item
from gputopo.values.fields import kernel_address, short_address
from gputopo.values.machine import Contradiction, Gpu, Hop, Machine, Nic


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
    return tuple(sorted(gpus, key=lambda gpu: gpu.index)), index_of


def renumbered_bandwidth(bandwidth: Bandwidth, gpus: Mapping[int, int]) -> Bandwidth:
    """Return the same measurement with other GPU indices, without values of GPUs that are not in `gpus`."""
    known = gpus.keys()
    return replace(
        bandwidth,
        samples=tuple(
            with_new_indices(sample, gpus) for sample in bandwidth.samples if known >= {*sample.gpus}
        ),
        failures=tuple(
            with_new_indices(failure, gpus) for failure in bandwidth.failures if known >= {*failure.gpus}
        ),
        not_measured=tuple(
            NotMeasured(what=renumbered(lacking.what, gpus), reason=lacking.reason)
            for lacking in bandwidth.not_measured
            if known >= gpus_in(lacking.what)
        ),
        uplink_groups=tuple(
            replace(group, gpus=tuple(sorted(gpus[g] for g in group.gpus)))
            for group in bandwidth.uplink_groups
            if known >= {*group.gpus}
        ),
    )


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
    gpus, differing = _matched("gpus", first.gpus, other.gpus, order)
    if other.source in (SINGLE_DEVICE, *_PARTS):
        differing = [said for said in differing if said.fact != "gpus"]
    nics, more = _matched("nics", first.nics, other.nics)
    if first.source != other.source:  # nvidia-smi lists cards capable of RDMA, NCCL used cards, lspci all
        more = []
    renumbered = replace(
        other,
        gpus=tuple(replace(g, index=gpus[g.index]) for g in other.gpus if g.index in gpus),
        links=tuple(
            replace(link, a=min(gpus[link.a], gpus[link.b]), b=max(gpus[link.a], gpus[link.b]))
            for link in other.links
            if link.a in gpus and link.b in gpus
        ),
        bandwidth=other.bandwidth and renumbered_bandwidth(other.bandwidth, gpus),
        nics=tuple(_nic(nic, gpus, nics) for nic in other.nics if nic.index in nics),
        series=tuple(
            replace(history, gpu=gpus[history.gpu]) for history in other.series if history.gpu in gpus
        ),
        missing={new: why for fact, why in other.missing.items() if (new := _fact(fact, gpus, nics))},
        contradictions=tuple(
            Contradiction(fact=new, said=c.said)
            for c in other.contradictions
            if (new := _fact(c.fact, gpus, nics))
        ),
    )
    return renumbered, differing + more


def cuda_order(first: Machine, machines: Iterable[Machine]) -> dict[int, int]:
    """Return the index in `first` of each CUDA number that any capture reports."""
    renumbered = [machine if machine is first else aligned(first, machine)[0] for machine in machines]
    gpus = [gpu for machine in renumbered for gpu in machine.gpus]
    return {gpu.cuda_index: gpu.index for gpu in reversed(gpus) if gpu.cuda_index is not None}


def _identities(device: Gpu | Nic) -> dict[str, str]:
    known = {"pci_address": device.pci_address and short_address(device.pci_address)}
    known |= {"uuid": device.uuid} if isinstance(device, Gpu) else {"name": device.name}
    return {kind: value for kind, value in known.items() if value}


def _matched(
    fact: Literal["gpus", "nics"],
    first: Sequence[Gpu | Nic],
    other: Sequence[Gpu | Nic],
    order: Mapping[int, int] = MappingProxyType({}),
) -> tuple[dict[int, int], list[Disagreement]]:
    """Return the first's indices by the other's indices, for devices in both, and the disagreements."""
    if not first and fact == "nics":  # most captures have no NICs
        return {device.index: device.index for device in other}, []
    differing: list[Disagreement] = []
    if other and len(first) != len(other):
        said = [f"{len(each)} {fact[:3].upper()}{'s' * (len(each) != 1)}" for each in (first, other)]
        differing.append(Disagreement(fact, *said))
    numbers: dict[int, int] = {}
    known = [(mine.index, _identities(mine)) for mine in first]
    for device in other:
        theirs = _identities(device)
        for index, mine in known:
            shared = theirs.keys() & mine.keys()
            if shared and theirs[kind := min(shared)] == mine[kind]:
                numbers[device.index] = index
    if fact == "nics" and len(first) != len(other):
        return numbers, differing  # one lists more cards: their order does not help
    by_index = {device.index: device for device in first}
    for device in other:
        there = by_index.get(order.get(device.index, device.index))
        if device.index in numbers or there is None or there.index in numbers.values():
            continue
        shared = _identities(device).keys() & _identities(there).keys()
        if not shared:
            numbers[device.index] = there.index
        else:
            kind = min(shared)
            place = item(fact, there.index, kind)
            differing.append(Disagreement(place, str(getattr(there, kind)), str(getattr(device, kind))))
    return numbers, differing


def _nic(nic: Nic, gpus: dict[int, int], nics: dict[int, int]) -> Nic:
    hops: dict[str, Hop] = {}
    for key, hop in nic.hops.items():
        kind, _, index = key.partition(":")
        new = (gpus if kind == "gpu" else nics).get(int(index)) if index.isdigit() else None
        if new is not None:
            hops[f"{kind}:{new}"] = hop
    return replace(nic, index=nics[nic.index], hops=hops)


def _fact(fact: str, gpus: dict[int, int], nics: dict[int, int]) -> str | None:
    """Return a fact's path with new device numbers, or None if a device in it was removed."""
    renumbered = FactPath.parse(fact).renumbered(gpus, nics)
    return None if renumbered is None else renumbered.text


def first_with_gpus(machines: Iterable[Machine]) -> Machine | None:
    """Return the first capture that shows the machine's GPUs, or that it has none."""
    whole = (machine for machine in machines if machine.source != SINGLE_DEVICE)
    return next((m for m in whole if m.gpus or m.driver.status in _COUNTED), None)


def without_gpus_of_other_drivers(machines: Sequence[Machine]) -> list[Machine]:
    """Return the captures of one machine without GPUs that any capture shows bound to another driver."""
    bound = gpus_of_other_drivers(machines)
    fewer: list[Machine] = []
    for machine in machines:
        numbered = [gpu for gpu in machine.gpus if gpu.name is not None or gpu.pci_address not in bound]
        if numbered and len(numbered) < len(machine.gpus) and machine.driver.status == "not_read":
            gpus = tuple(replace(gpu, index=index) for index, gpu in enumerate(numbered))
            machine, _ = aligned(Machine(source=machine.source, gpus=gpus), machine)
        fewer.append(machine)
    return fewer
