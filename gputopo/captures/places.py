"""Places (`gpu:3`) of a capture's numbers: the GPUs they are of, and the same numbers under other indices."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gputopo.values.bandwidth import Bandwidth, Failure, NotMeasured, Sample, gpus_of
from gputopo.values.machine import Gpu

HOST = "host"
ALL_GPUS = "gpus"  # all the others at once, where a tool gives one number for them

_GPUS = re.compile(r"\bgpu:(\d+(?:,\d+)*)\b")  # one, or all of a collective operation


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a CUDA program lists it. `address`: domain, bus and device as it has them."""

    name: str | None = None
    address: str | None = None


def gpu(index: int) -> str:
    """Return the place of a GPU."""
    return f"gpu:{index}"


def group(indices: Iterable[int]) -> str:
    """Return the place of GPUs that work together: `gpu:0,1,2`."""
    return f"gpu:{','.join(map(str, sorted(indices)))}"


def gpus_in_pci_order(devices: Mapping[int, Device]) -> tuple[tuple[Gpu, ...], dict[int, int]]:
    """Return the GPUs of a CUDA program's list, and the index of each by its CUDA number.

    GPUs are numbered by PCI address, as NVML does, where the list has the address of every one; CUDA's own
    order is the fastest first. Without addresses CUDA's numbers stand.
    """
    from gputopo.captures.pci import pci_tree  # a merge needs the places only

    addresses = {number: pci_tree.address(device.address or "") for number, device in devices.items()}
    known = [address for address in addresses.values() if address is not None]
    if len(known) == len(devices) == len(set(known)):
        in_order = sorted(devices, key=lambda number: _sortable(addresses[number] or ""))
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


def renumbered(bandwidth: Bandwidth, gpus: Mapping[int, int]) -> Bandwidth:
    """Return the same measurement with other GPU indices; what is of a GPU that `gpus` lacks is left out."""
    return msgspec.structs.replace(
        bandwidth,
        samples=tuple(s for old in bandwidth.samples if (s := _sample(old, gpus)) is not None),
        failures=tuple(f for old in bandwidth.failures if (f := _failure(old, gpus)) is not None),
        not_measured=tuple(
            NotMeasured(what=what, reason=one.reason)
            for one in bandwidth.not_measured
            if (what := in_text(one.what, gpus)) is not None
        ),
        uplink_groups=tuple(
            msgspec.structs.replace(group, gpus=tuple(sorted(gpus[g] for g in group.gpus)))
            for group in bandwidth.uplink_groups
            if all(g in gpus for g in group.gpus)
        ),
    )


def gpus_named(bandwidth: Bandwidth) -> set[int]:
    """Return the GPUs whose copies were measured or failed, and those of uplink groups."""
    measured: tuple[Sample | Failure, ...] = (*bandwidth.samples, *bandwidth.failures)
    named = {index for one in measured for place in (one.source, one.destination) for index in gpus_of(place)}
    return named.union(*(group.gpus for group in bandwidth.uplink_groups))


def in_text(text: str, gpus: Mapping[int, int]) -> str | None:
    """Renumber the places in a text; None where it names a GPU that `gpus` lacks."""
    if any(int(one) not in gpus for numbers in _GPUS.findall(text) for one in numbers.split(",")):
        return None
    return _GPUS.sub(lambda found: group(gpus[int(one)] for one in found[1].split(",")), text)


def _sample(sample: Sample, gpus: Mapping[int, int]) -> Sample | None:
    moved = _ends(sample, gpus)
    if moved is None:
        return None
    conditions = tuple(
        msgspec.structs.replace(one, gpu=gpus[one.gpu]) for one in sample.conditions if one.gpu in gpus
    )
    return msgspec.structs.replace(sample, **moved, conditions=conditions)


def _failure(failure: Failure, gpus: Mapping[int, int]) -> Failure | None:
    moved = _ends(failure, gpus)
    return None if moved is None else msgspec.structs.replace(failure, **moved)


def _ends(value: Sample | Failure, gpus: Mapping[int, int]) -> dict[str, str | None] | None:
    """Return the ends and the group of a copy under the new indices; None if a GPU of it is gone."""
    source, destination = in_text(value.source, gpus), in_text(value.destination, gpus)
    if source is None or destination is None:
        return None
    at_once = value.group and (in_text(value.group, gpus) or value.group)
    return {"source": source, "destination": destination, "group": at_once}


def _sortable(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))
