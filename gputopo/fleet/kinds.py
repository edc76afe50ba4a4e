"""Which hosts are alike: of one GPU model, as many GPUs and one CPU, unless a fault changes that."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gputopo.fleet.alignment import gpu_places
from gputopo.values.machine import Gpu, Machine

T = TypeVar("T", bound=Hashable)


class HostReading(NamedTuple):
    """A host by name, and its machine."""

    name: str
    machine: Machine


class Kind(NamedTuple):
    """Hosts to compare with one another. `name`: what most of them have, `8 x Tesla V100-SXM2-16GB`.

    With the CPU, where only that tells two kinds apart.
    """

    name: str
    hosts: tuple[HostReading, ...]


def kinds(hosts: Sequence[HostReading]) -> list[Kind]:
    """Return the kinds of hosts, the largest first; within a kind in the order of the hosts.

    A host belongs to the kind of its most frequent GPU model. Where it has fewer GPUs than the other hosts
    of that model, it is one of them with GPUs missing if more than half are there, or if it is alone with
    its count among several that agree, and its GPUs are where theirs are. Two hosts or more with another
    CPU are a kind of their own.
    """
    models = _models([gpu for host in hosts for gpu in host.machine.gpus])
    by_model: dict[str | None, list[HostReading]] = {}
    for host in hosts:
        by_model.setdefault(_most(_names(host.machine, models)), []).append(host)
    bare = by_model.pop(None, [])
    groups = [
        same_cpu
        for same_model in by_model.values()
        for same_count in _by_count(same_model)
        for same_cpu in _by_cpu(same_count)
    ]
    for host in bare:
        alike = [group for group in groups if _cpu(host) == _most(map(_cpu, group)) and _lost_its_gpus(host)]
        if alike:
            max(alike, key=len).append(host)
        else:
            _without_gpus(groups).append(host)
    order = {host.name: place for place, host in enumerate(hosts)}
    names = [_kind_name(group, models) for group in groups]
    found = [
        Kind(
            name if names.count(name) == 1 else f"{name}, {_cpu_name(group)}",
            tuple(sorted(group, key=lambda host: order[host.name])),
        )
        for name, group in zip(names, groups, strict=True)
    ]
    return sorted(found, key=lambda kind: (-len(kind.hosts), order[kind.hosts[0].name]))


def _by_count(hosts: Sequence[HostReading]) -> Iterator[list[HostReading]]:
    """Group hosts of one model by the number of their GPUs; those with GPUs missing join their peers."""
    counts: dict[int, list[HostReading]] = {}
    for host in hosts:
        counts.setdefault(len(host.machine.gpus), []).append(host)
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
    by_cpu: dict[tuple[str | None, int | None], list[HostReading]] = {}
    for host in hosts:
        by_cpu.setdefault(_cpu(host), []).append(host)
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


def _lost_its_gpus(host: HostReading) -> bool:
    """Return whether a host without GPUs was read, and its CPU is known to compare by."""
    return host.machine.driver.status != "not_read" and host.machine.host.cpu_model is not None


def _without_gpus(groups: list[list[HostReading]]) -> list[HostReading]:
    found = next((group for group in groups if not group[0].machine.gpus), None)
    if found is None:
        groups.append(found := [])
    return found


def _models(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the model of each PCI device id that any host's driver names."""
    return {gpu.pci_device_id: _short(gpu.name) for gpu in gpus if gpu.pci_device_id and gpu.name}


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
