"""How fast the network between hosts is: measured, else by the rates of their cards. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies.network import AT_ONCE
from gputopo.prediction.links.hosts import NetworkRate, rate_of_card, rate_of_tcp
from gputopo.values.bandwidth import TCP, Bandwidth, Sample, host_of
from gputopo.values.machine import Machine, Nic, NicPort
from gputopo.values.option import listed

MEASURE = "gputopo bandwidth --network --save, started as the training, measures it"


class HostNetwork(NamedTuple):
    """What is known of a host's network: its machine, the interface with its address, the rate of that."""

    host: str
    machine: Machine
    interface: str | None = None
    gbit_per_s: float | None = None


class SavedNetwork(NamedTuple):
    """A measurement between these hosts and others, and when it was made: `on 2026-11-20 16:02 UTC`."""

    bandwidth: Bandwidth
    when: str


def rates_of(hosts: Sequence[HostNetwork], saved: SavedNetwork | None) -> tuple[NetworkRate, ...] | str:
    """Return the rate of each host's network path, or what is not known."""
    found = [_rate(host, saved) for host in hosts]
    unknown = [host.host for host, rate in zip(hosts, found, strict=True) if rate is None]
    if unknown:
        return f"the rate of the network of {listed(unknown, 'and')} is not known: {MEASURE}"
    return tuple(rate for rate in found if rate is not None)


def rates_in_words(names: Sequence[str], rates: Sequence[NetworkRate]) -> list[str]:
    """Return the rates in words, of hosts with the same together."""
    alike: dict[NetworkRate, list[str]] = {}
    for name, rate in zip(names, rates, strict=True):
        alike.setdefault(rate, []).append(name)
    return [
        f"network of {listed(of, 'and')}: {rate.says}; copies of TensorFlow reach {rate.gb_per_s:.2g} GB/s "
        f"({rate.low:.2g} to {rate.high:.2g}) in each direction"
        for rate, of in alike.items()
    ]


def _rate(host: HostNetwork, saved: SavedNetwork | None) -> NetworkRate | None:
    if saved is not None and (measured := _measured(host.host, saved.bandwidth)) is not None:
        return rate_of_tcp(measured, saved.when)
    named = None if host.interface is None else port_of(host.machine, host.interface)
    if host.gbit_per_s:
        return rate_of_card(host.gbit_per_s, host.interface or "its card")
    if named is not None and named[1].rate_gbit_per_s:
        return rate_of_card(named[1].rate_gbit_per_s, named[1].name)
    if host.interface is None and (port := fastest_port(host.machine)) is not None:
        name = port[1].name if port[1].rdma_device or port[1].interface else nic_words(port[0])
        return rate_of_card(port[1].rate_gbit_per_s or 0.0, f"the fastest card, {name}")
    return None


def _measured(host: str, bandwidth: Bandwidth) -> float | None:
    """Return what a host sends and receives by TCP: while all did, else both ways of pairs, else one way."""
    rates = [one for one in bandwidth.samples if one.kind == "network" and one.median_gb_per_s]
    own = [one for one in rates if one.transport in (None, TCP)]
    for is_of_kind in (_at_once, _both_ways, _one_way):
        sent = [one.median_gb_per_s or 0.0 for one in own if is_of_kind(one) and host_of(one.source) == host]
        received = [
            one.median_gb_per_s or 0.0 for one in own if is_of_kind(one) and host_of(one.destination) == host
        ]
        if sent and received:
            return min(median(sent), median(received))
    return None


def _at_once(sample: Sample) -> bool:
    return sample.group == AT_ONCE


def _both_ways(sample: Sample) -> bool:
    return sample.group is None and sample.with_reverse


def _one_way(sample: Sample) -> bool:
    return sample.group is None and not sample.with_reverse


def port_of(machine: Machine, interface: str) -> tuple[Nic, NicPort] | None:
    """Return the card and the port of an interface; None where no card of the machine has it."""
    return next(
        ((nic, port) for nic in machine.nics for port in nic.ports or () if port.interface == interface), None
    )


def fastest_port(machine: Machine) -> tuple[Nic, NicPort] | None:
    """Return the port with a link and the highest rate, of the first card that has one."""
    there = [
        (nic, port)
        for nic in machine.nics
        for port in nic.ports or ()
        if port.rate_gbit_per_s and port.up is not False
    ]
    return max(there, key=lambda one: one[1].rate_gbit_per_s or 0.0, default=None)


def nic_words(nic: Nic) -> str:
    """Return what a card is called: `mlx5_1`, its interface, else its number."""
    port = next(iter(nic.ports or ()), None)
    name = nic.name if nic.name and " " not in nic.name else None
    return (port.name if port else None) or name or f"NIC{nic.index}"
