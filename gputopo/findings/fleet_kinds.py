"""Kinds of hosts in a fleet: similar hosts are compared with one another."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.values.machine import Machine


class HostReading(NamedTuple):
    """The name of a host and its machine."""

    name: str
    machine: Machine


class HostKind(NamedTuple):
    """Hosts to compare with one another. `name`: the GPUs of most of them, `8 x Tesla V100-SXM2-16GB`."""

    name: str
    hosts: tuple[HostReading, ...]


class _Key(NamedTuple):
    """What hosts of a kind have in common."""

    model: str | None
    gpus: int
    cpu: str


def kinds(hosts: Sequence[HostReading]) -> list[HostKind]:
    """Return the kinds of hosts, the largest first. Within a kind, the order of the hosts is kept.

    A kind is a GPU model (the most frequent of the host), a number of GPUs and a CPU. A host that is the only
    one with its number or its CPU belongs to the largest kind of its model. So do hosts with more than half
    of the GPUs of that kind, or none. A host without GPUs gets the model of the hosts with its CPU.
    """
    gpus = [gpu for host in hosts for gpu in host.machine.gpus]
    of_id: dict[str | None, str] = {
        gpu.pci_device_id: _short(gpu.name) for gpu in gpus if gpu.pci_device_id and gpu.name
    }
    models = [_model(host, of_id) for host in hosts]
    of_cpu = {_cpu(host): model for host, model in zip(hosts, models, strict=True) if model is not None}
    groups: dict[_Key, list[HostReading]] = {}
    for host, model in zip(hosts, models, strict=True):
        is_read = host.machine.driver.status != "not_read" and host.machine.host.cpu_model
        like = model or (of_cpu.get(_cpu(host)) if is_read else None)
        groups.setdefault(_Key(like, len(host.machine.gpus), _cpu(host)), []).append(host)
    kept: dict[_Key, list[HostReading]] = {}
    for key, group in sorted(groups.items(), key=lambda item: (-len(item[1]), -item[0].gpus)):
        home = next((other for other in kept if _belongs(key, other, len(group), len(kept[other]))), key)
        kept[home] = kept.get(home, []) + group
    names = [f"{key.gpus} x {key.model}" if key.gpus else "no GPU" for key in kept]
    order = {host.name: place for place, host in enumerate(hosts)}
    host_kinds = [
        HostKind(
            name if names.count(name) == 1 else f"{name}, {key.cpu}",
            tuple(sorted(group, key=lambda host: order[host.name])),
        )
        for name, (key, group) in zip(names, kept.items(), strict=True)
    ]
    return sorted(host_kinds, key=lambda kind: (-len(kind.hosts), order[kind.hosts[0].name]))


def _belongs(key: _Key, other: _Key, hosts: int, others: int) -> bool:
    """Return whether hosts of a model differ from others only in some GPUs, or in the CPU of one host."""
    low, high = sorted((key.gpus, other.gpus))
    is_single = hosts == 1 < others
    if key.model != other.model or (key.cpu != other.cpu and not (is_single and low == high)):
        return False
    return is_single or 2 * low > high or low == 0 < others - 1


def _model(host: HostReading, of_id: Mapping[str | None, str]) -> str | None:
    """Return the most frequent GPU model of a host. `of_id`: names of GPUs without a name on the host."""
    gpus = host.machine.gpus
    names = Counter(
        _short(gpu.name) if gpu.name else of_id.get(gpu.pci_device_id, gpu.pci_device_id or "GPU")
        for gpu in gpus
    )
    return max(names, key=lambda name: (names[name], name)) if names else None


def _short(name: str) -> str:
    return name.removeprefix("NVIDIA ")


def _cpu(host: HostReading) -> str:
    """Return the CPUs of a host in words."""
    return f"{host.machine.host.sockets or '?'} x {host.machine.host.cpu_model or 'unknown CPU'}"
