"""How fast the network between hosts is: measured, else from the rates of their cards.

What TensorFlow's copies between hosts (gRPC) reach of a network, and the maximum:

| figure | source |
|---|---|
| 0.8 of 1.25 GB/s of a 10 Gbit/s card | tensorflow/tensorflow issue 6116, August 2017 |
| 0.5 and 0.57 GB/s between processes, without a network as the limit | issues 6116 and 6256, 2017 |
| 0.67 GB/s in both directions at once, on a core each, loopback, TensorFlow 2.21 | gputopo |
| 9.3 of 10 Gbit/s by iperf | tensorflow/benchmarks issue 29 |

No figure for TensorFlow 2 between hosts with many cores was found. The maximum in one direction is therefore
not measured.

What NCCL's rings reach of all cards near the GPUs (busbw of all_reduce_perf):

| figure | by | source |
|---|---|---|
| 46 to 48 of 50 GB/s; 12.2 of 12.5; 85 to 96 of 100 | GPUDirect RDMA | NVIDIA/nccl-tests 290, 29, 119 |
| 217 of 400 GB/s | GPUDirect RDMA over RoCE | NVIDIA/nccl 2409 |
| 6 of 12.5; 15 to 16 of 25 GB/s | RDMA by way of host memory | NVIDIA/nccl 465, 412 |
| 4 to 6 of 12.5 GB/s | sockets | NVIDIA/nccl 450 |
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gputopo.topology import near_rdma_ports
from gputopo.values.bandwidth import (
    ALL_HOSTS_AT_ONCE,
    NCCL_TESTS,
    TCP,
    Bandwidth,
    CollectiveRate,
    TransferRate,
)
from gputopo.values.index_ranges import host_set
from gputopo.values.machine import Hop, Machine, NicPort
from gputopo.values.option import listed

MEASURE = "measure it with gputopo bandwidth --network --save, started in the same way as the training"

GBIT = 1 / 8  # GB/s
GRPC_OF_CARD = 0.64  # share of the card's rate
GRPC_OF_TCP = 0.69  # share of the measured TCP rate: 0.8 of 9.3/8 GB/s
GRPC_GB_PER_S = 1.0  # maximum in one direction, on any network
NCCL_OF_CARDS = 0.8  # share of the cards' rate, if the cards are near the GPUs
NCCL_BY_HOST = 0.55  # the same through host memory
NCCL_BY_SOCKETS = 0.7
NCCL_SOCKETS_GB_PER_S = 5.0  # maximum


class HostNetwork(NamedTuple):
    """A host's network: the machine, the interface with the host's address, and its rate."""

    host: str
    machine: Machine
    interface: str | None = None
    gbit_per_s: float | None = None


class SavedNetwork(NamedTuple):
    """A measurement that includes these hosts, and when it was taken: `on 2026-11-20 16:02 UTC`."""

    bandwidth: Bandwidth
    when: str


class NetworkRate(NamedTuple):
    """The expected rate of a host in each direction, by TensorFlow or by NCCL. `says`: the source."""

    host: str
    gb_per_s: float
    says: str


def network_rate(
    hosts: Sequence[HostNetwork], gpus: Sequence[Sequence[int]], saved: SavedNetwork | None, *, nccl: bool
) -> NetworkRate | str:
    """Return the rate of the slowest host's network path, or a text if a rate is not known.

    `gpus`: of each host. `nccl`: the rate of NCCL's rings over these GPUs, else of TensorFlow's copies.
    """
    if nccl and saved is not None and (busbw := _all_reduced(hosts, gpus, saved.bandwidth)):
        return NetworkRate(hosts[0].host, busbw, f"{busbw:.3g} GB/s of {NCCL_TESTS} measured {saved.when}")
    rates = list(map(_nccl_rate, hosts, gpus)) if nccl else [_rate(host, saved) for host in hosts]
    unknown = [host.host for host, rate in zip(hosts, rates, strict=True) if rate is None]
    if unknown:
        return f"the rate of the network of {hosts_in_words(unknown)} is not known: {MEASURE}"
    return min((rate for rate in rates if rate is not None), key=lambda rate: rate.gb_per_s)


def _all_reduced(
    hosts: Sequence[HostNetwork], gpus: Sequence[Sequence[int]], measured: Bandwidth
) -> float | None:
    """Return the GB/s of an all-reduce that nccl-tests measured on the same numbers of GPUs and hosts."""
    sizes_and_rates = [
        (sample.bytes or 0, sample.bus_gb_per_s)
        for sample in measured.samples.of(CollectiveRate)
        if sample.kind == "allreduce" and sample.bus_gb_per_s
        if (sample.ranks, sample.hosts) == (sum(map(len, gpus)), len({host.host for host in hosts}))
    ]
    return max(sizes_and_rates)[1] if sizes_and_rates else None


_NAMED = 3  # hosts in one sentence; more are written as a set of nodes


def hosts_in_words(names: Sequence[str]) -> str:
    """Return the names of hosts in a sentence."""
    return listed(names, "and") if len(names) <= _NAMED else host_set(names)


def grpc_gb_per_s(card_gbit_per_s: float) -> float:
    """Return the GB/s that TensorFlow's copies reach over a card of this rate in Gbit/s."""
    return min(GRPC_OF_CARD * card_gbit_per_s * GBIT, GRPC_GB_PER_S)


def rate_in_words(rate: NetworkRate, *, nccl: bool) -> str:
    """Return the rate of the slowest network path in words."""
    who = "NCCL reaches" if nccl else "TensorFlow's copies reach"
    return f"slowest network, of {rate.host}: {rate.says}; {who} {rate.gb_per_s:.3g} GB/s in each direction"


def _nccl_rate(host: HostNetwork, gpus: Sequence[int]) -> NetworkRate | None:
    """Return the rate of rings over these GPUs: by the RDMA cards near them, else by sockets."""
    near: Sequence[tuple[NicPort, Hop | None]] = near_rdma_ports(host.machine, gpus)
    near = near or [
        (port, None) for nic in host.machine.nics for port in nic.ports or () if port.is_active_rdma
    ]
    rates = [port.rate_gbit_per_s or 0.0 for port, _ in near]
    if near and all(rates):
        far = any(hop is not None and hop > Hop.PXB for _, hop in near)
        cards = f"{len(near)} RDMA card{'' if len(near) == 1 else 's'}, {sum(rates):g} Gbit/s"
        share, how = (NCCL_BY_HOST, ", through host memory") if far else (NCCL_OF_CARDS, "")
        return NetworkRate(host.host, share * sum(rates) * GBIT, f"{cards}{how}")
    card = _card(host)
    if near or card is None:
        return None
    rate, name = card
    reached = min(NCCL_BY_SOCKETS * rate * GBIT, NCCL_SOCKETS_GB_PER_S)
    return NetworkRate(host.host, reached, f"sockets over {name}, {rate:g} Gbit/s")


def _rate(host: HostNetwork, saved: SavedNetwork | None) -> NetworkRate | None:
    if saved is not None and (measured := _measured(host.host, saved.bandwidth)) is not None:
        reached = min(GRPC_OF_TCP * measured, GRPC_GB_PER_S)
        return NetworkRate(host.host, reached, f"{measured:.3g} GB/s of TCP measured {saved.when}")
    if (card := _card(host)) is None:
        return None
    rate, name = card
    return NetworkRate(host.host, grpc_gb_per_s(rate), f"{name}, {rate:g} Gbit/s")


def _card(host: HostNetwork) -> tuple[float, str] | None:
    """Return the rate (Gbit/s) and the name of a host's card on the network, else of its fastest card."""
    if host.gbit_per_s:
        return host.gbit_per_s, host.interface or "its card"
    ports = [port for nic in host.machine.nics for port in nic.ports or () if port.rate_gbit_per_s]
    if host.interface is not None:
        ports = [port for port in ports if port.interface == host.interface]
    port = max((port for port in ports if port.up is not False), key=_gbit, default=None)
    which = "" if host.interface else "the fastest card, "
    return None if port is None else (_gbit(port), f"{which}{port.name}")


def _gbit(port: NicPort) -> float:
    return port.rate_gbit_per_s or 0.0


def _measured(host: str, bandwidth: Bandwidth) -> float | None:
    """Return the TCP rate of a host: while all hosts sent at once, else in pairs."""
    rates = [
        sample
        for sample in bandwidth.samples.of(TransferRate)
        if sample.kind == "network" and sample.median_gb_per_s and sample.transport in (None, TCP)
    ]
    rates = [sample for sample in rates if sample.group == ALL_HOSTS_AT_ONCE] or rates
    sent = [sample.rate for sample in rates if sample.source.host == host]
    received = [sample.rate for sample in rates if sample.destination.host == host]
    return min(median(sent), median(received)) if sent and received else None
