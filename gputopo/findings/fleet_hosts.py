"""Like hosts of a fleet, their devices matched by place on PCIe, and their facts under shared names.

Bus numbers depend on what was found when the host started; devices and functions are wired.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from gputopo.findings.compare import grouped
from gputopo.findings.difference import compared_facts, drivers, without_generation
from gputopo.findings.usage import under_load
from gputopo.values.fields import Field, field_at
from gputopo.values.machine import Gpu, Link, Machine, Nic, PciNode
from gputopo.values.subject import at_gpu, at_link, at_nic, at_pci, within

Place = tuple[int, tuple[str, ...]]  # the root complex by rank, device and function at each step down


def same_addresses(machine: Machine, reference: Machine) -> Mapping[str, str]:
    """Return the reference's address of each PCI device of a machine that is elsewhere there.

    Empty where the addresses are the same for as many GPUs as the places, and where nothing shows places.
    """
    own, theirs = _addresses(machine), _addresses(reference)
    if own <= theirs or own >= theirs:
        return {}
    places = {place: address for address, place in _places(reference.pci).items()}
    found = {address: places[place] for address, place in _places(machine.pci).items() if place in places}
    matched = len({found.get(address) for address in own} & theirs)
    if matched > len(own & theirs):
        return found
    half_is_there = 2 * len(own & theirs) >= min(len(own), len(theirs))
    if half_is_there or not len(own) == len(theirs) == len(machine.gpus) == len(reference.gpus):
        return {}
    # Another tree, or none: the GPUs in their order.
    return {
        gpu.pci_address: other.pci_address
        for gpu, other in zip(machine.gpus, reference.gpus, strict=True)
        if gpu.pci_address and other.pci_address
    }


def gpu_places(machine: Machine, reference: Machine) -> list[str]:
    """Return the place of each GPU: its address in the reference, else its own; its number without any."""
    moved = same_addresses(machine, reference)
    return [
        moved.get(gpu.pci_address, gpu.pci_address) if gpu.pci_address else str(gpu.index)
        for gpu in machine.gpus
    ]


def _addresses(machine: Machine) -> set[str]:
    return {gpu.pci_address for gpu in machine.gpus if gpu.pci_address}


def _places(nodes: Iterable[PciNode]) -> dict[str, Place]:
    """Return the place of each PCI device. Roots are ranked among those with a device on them."""
    tree = {node.address: node for node in nodes}
    ranks = {root: rank for rank, root in enumerate(sorted({node.root for node in tree.values()}))}
    return {address: (ranks[node.root], tuple(_path(tree, node))) for address, node in tree.items()}


def _path(tree: Mapping[str, PciNode], node: PciNode) -> list[str]:
    path: list[str] = []
    seen: set[str] = set()
    step: PciNode | None = node
    while step is not None and step.address not in seen:
        seen.add(step.address)
        path.append(step.address.rpartition(":")[2])
        step = tree.get(step.parent or "")
    return path[::-1]


T = TypeVar("T", bound=Hashable)


class HostReading(NamedTuple):
    """A host by name, and its machine."""

    name: str
    machine: Machine


class HostKind(NamedTuple):
    """Hosts to compare with one another.

    With the CPU, where only that tells two kinds apart.
    """

    name: str  # what most of them have, `8 x Tesla V100-SXM2-16GB`
    hosts: tuple[HostReading, ...]


def kinds(hosts: Sequence[HostReading]) -> list[HostKind]:
    """Return the kinds of hosts, the largest first; within a kind in the order of the hosts.

    A host belongs to the kind of its most frequent GPU model. Where it has fewer GPUs than the other hosts
    of that model, it is one of them with GPUs missing if more than half are there, or if it is alone with
    its count among several that agree, and its GPUs are where theirs are. Two hosts or more with another
    CPU are a kind of their own.
    """
    gpus = [gpu for host in hosts for gpu in host.machine.gpus]
    models = {gpu.pci_device_id: _short(gpu.name) for gpu in gpus if gpu.pci_device_id and gpu.name}
    by_model = grouped((_most(_names(host.machine, models)), host) for host in hosts)
    bare = by_model.pop(None, [])
    groups = [
        same_cpu
        for same_model in by_model.values()
        for same_count in _by_count(same_model)
        for same_cpu in _by_cpu(same_count)
    ]
    for host in bare:
        cpu = _cpu(host) if host.machine.driver.status != "not_read" and host.machine.host.cpu_model else None
        alike = [group for group in groups if cpu and cpu == _most(map(_cpu, group))]
        if alike:
            max(alike, key=len).append(host)
        else:
            _without_gpus(groups).append(host)
    order = {host.name: place for place, host in enumerate(hosts)}
    names = [_kind_name(group, models) for group in groups]
    found = [
        HostKind(
            name if names.count(name) == 1 else f"{name}, {_cpu_name(group)}",
            tuple(sorted(group, key=lambda host: order[host.name])),
        )
        for name, group in zip(names, groups, strict=True)
    ]
    return sorted(found, key=lambda kind: (-len(kind.hosts), order[kind.hosts[0].name]))


def _by_count(hosts: Sequence[HostReading]) -> Iterator[list[HostReading]]:
    """Group hosts of one model by the number of their GPUs; those with GPUs missing join their peers."""
    counts = grouped((len(host.machine.gpus), host) for host in hosts)
    groups = [counts[count] for count in sorted(counts, key=lambda count: (-len(counts[count]), -count))]
    kept: list[list[HostReading]] = []
    for group in groups:
        home = next((other for other in kept if _is_part(group, other)), None)
        if home is None:
            kept.append(list(group))
        else:
            home += group
    yield from kept


def _is_part(few: Sequence[HostReading], many: Sequence[HostReading]) -> bool:
    """Return whether hosts are like others but for some GPUs: fewer, or more."""
    reference = many[0].machine
    low, high = sorted((len(few[0].machine.gpus), len(reference.gpus)))
    if 2 * low <= high and (len(few) > 1 or len(many) == 1):
        return False
    places = [gpu_places(host.machine, reference) for host in few]
    theirs = set(gpu_places(reference, reference))
    nested = all(set(mine) <= theirs or set(mine) >= theirs for mine in places)
    return nested and (2 * low > high or _cpu(few[0]) == _cpu(many[0]))


def _by_cpu(hosts: Sequence[HostReading]) -> list[list[HostReading]]:
    """Group hosts by CPU, if two or more have another one; a single one stays with the most."""
    by_cpu = grouped((_cpu(host), host) for host in hosts)
    several = [group for group in by_cpu.values() if len(group) > 1]
    if not several:
        return [list(hosts)]
    most = max(several, key=len)
    for group in by_cpu.values():
        if len(group) == 1:
            most += group
    return several


def _cpu(host: HostReading) -> tuple[str | None, int | None]:
    return host.machine.host.cpu_model, host.machine.host.sockets


def _without_gpus(groups: list[list[HostReading]]) -> list[HostReading]:
    found = next((group for group in groups if not group[0].machine.gpus), None)
    if found is None:
        groups.append(found := [])
    return found


def _names(machine: Machine, models: Mapping[str, str]) -> list[str]:
    """Return the models of a machine's GPUs; of one that no driver names by its PCI device id."""
    return [
        _short(gpu.name) if gpu.name else models.get(gpu.pci_device_id or "", gpu.pci_device_id or "GPU")
        for gpu in machine.gpus
    ]


def _short(name: str) -> str:
    return name.removeprefix("NVIDIA ")


def _most(values: Iterable[T]) -> T | None:
    counts = Counter(values)
    return max(counts, key=lambda one: (counts[one], str(one))) if counts else None


def _kind_name(hosts: Sequence[HostReading], models: Mapping[str, str]) -> str:
    names = Counter(tuple(sorted(Counter(_names(host.machine, models)).items())) for host in hosts)
    most = max(names, key=lambda one: (names[one], one))
    return " + ".join(f"{count} x {name}" for name, count in most) or "no GPU"


def _cpu_name(hosts: Sequence[HostReading]) -> str:
    """Return the CPUs that most of the hosts have."""
    model, sockets = Counter(map(_cpu, hosts)).most_common(1)[0][0]
    return f"{sockets or '?'} x {model or 'unknown CPU'}"


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
_HOP = field_at(Link, "hop")
_OF_GPU_TOO = ("max_speed_gt_per_s", "max_width", "width", "numa_node")


class HostDevice(NamedTuple):
    """What facts are about: `kind` (gpus, links, nics, pci, host, driver) and the place that hosts share.

    Links are between two GPUs, or a GPU and a network card.
    """

    kind: str
    place: str = ""


class HostFact(NamedTuple):
    """One fact of a host. `fact`: its path within the device."""

    device: HostDevice
    fact: str
    field: Field
    value: Any


class HostFacts(NamedTuple):
    """All facts of a host by shared path, and its GPUs and network cards by place."""

    facts: dict[str, HostFact]
    gpus: dict[str, Gpu]
    nics: dict[str, Nic]
    gpus_answer: bool  # whether the driver was not found unable to read the GPUs


def facts_of_host(machine: Machine, reference: Machine) -> HostFacts:
    """Return the facts of a host to compare with those of like hosts, of which `reference` is one."""
    moved = same_addresses(machine, reference)
    places = gpu_places(machine, reference)
    gpus = dict(zip(places, machine.gpus, strict=True))
    nics: dict[str, Nic] = {}
    for nic in machine.nics:
        place = _nic_place(nic, moved)
        nics[f"{place} {nic.name}" if place in nics else place] = nic
    facts: dict[str, HostFact] = {}

    def add(path: str, device: HostDevice, value: msgspec.Struct, left_out: tuple[str, ...] = ()) -> None:
        varying = _VARYING.get(type(value), frozenset())
        for fact, field, found in compared_facts(value):
            if not field.counter and field.is_known(found) and field.path not in varying | {*left_out}:
                facts[within(path, fact)] = HostFact(device, fact, field, _moved(found, moved))

    (driver,) = drivers(machine.driver)
    add("driver", HostDevice("driver"), driver)
    add("host", HostDevice("host"), machine.host)
    for place, gpu in gpus.items():
        if not gpu.lost:
            add(at_gpu(place), HostDevice("gpus", place), gpu if under_load(gpu) else without_generation(gpu))
    numbers = {gpu.index: place for place, gpu in gpus.items()}
    for link in machine.links:
        if link.a in numbers and link.b in numbers:
            a, b = sorted((numbers[link.a], numbers[link.b]))
            add(at_link(a, b), HostDevice("links", f"{a} {b}"), link)
    for place, nic in nics.items():
        add(at_nic(place), HostDevice("nics", place), nic)
        for key, hop in nic.hops.items():
            if (end := numbers.get(int(key[4:])) if key.startswith("gpu:") else None) is not None:
                device = HostDevice("links", f"{end} {place}")
                facts[f"{at_nic(place)}.hops.{end}"] = HostFact(device, "hop", _HOP, hop.value)
    for node in machine.pci:
        place = moved.get(node.address, node.address)
        add(at_pci(place), HostDevice("pci", place), node, _OF_GPU_TOO if place in gpus else ())
    return HostFacts(facts, gpus, nics, machine.driver.status in ("ok", "not_read"))


def _nic_place(nic: Nic, moved: Mapping[str, str]) -> str:
    if nic.pci_address is None:
        return nic.name or str(nic.index)
    return moved.get(nic.pci_address, nic.pci_address)


def _moved(value: Any, moved: Mapping[str, str]) -> Any:
    return moved.get(value, value) if isinstance(value, str) and _ADDRESS.fullmatch(value) else value
