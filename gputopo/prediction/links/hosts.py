"""The paths of several hosts as one, with the network between them, and how fast that is. Pure.

What TensorFlow's copies between hosts (gRPC) reach of a network, and at most:

| figure | source |
|---|---|
| 0.8 of 1.25 GB/s of a 10 Gbit/s card | tensorflow/tensorflow issue 6116, August 2017 |
| 0.5 and 0.57 GB/s between processes, without a network as the limit | issues 6116 and 6256, 2017 |
| 0.67 GB/s in both directions at once, on a core each, loopback, TensorFlow 2.21 | gputopo |
| 9.3 of 10 Gbit/s by iperf | tensorflow/benchmarks issue 29 |

No figure of TensorFlow 2 between hosts with many cores was found, so the most in one direction, 1 GB/s, is
ours and its range is wide.

What rings of NCCL reach of all cards that are near to its GPUs (busbw of all_reduce_perf):

| figure | by | source |
|---|---|---|
| 46 to 48 of 50 GB/s; 12.2 of 12.5; 85 to 96 of 100 | GPUDirect RDMA | NVIDIA/nccl-tests 290, 29, 119 |
| 217 of 400 GB/s | GPUDirect RDMA over RoCE | NVIDIA/nccl 2409 |
| 6 of 12.5; 15 to 16 of 25 GB/s | RDMA by way of host memory | NVIDIA/nccl 465, 412 |
| 4 to 6 of 12.5 GB/s | sockets | NVIDIA/nccl 450 |
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple

import msgspec

from gputopo.prediction.links.paths import PairPath, Paths
from gputopo.prediction.links.shared_links import Gpus, NetworkPath, SocketLink, Uplink

Range = tuple[float, float, float]
"""The lowest, the likely, the highest value."""

GRPC_OF_CARD: Range = (0.4, 0.64, 0.9)  # of the card's rate
GRPC_OF_TCP: Range = (0.5, 0.69, 1.0)  # of what TCP was measured to carry: 0.8 of 9.3/8 GB/s
GRPC_GB_PER_S: Range = (0.5, 1.0, 3.0)  # at most, in one direction, whatever the network carries
GBIT = 1 / 8  # GB/s
NCCL_BY_GPUDIRECT: Range = (0.54, 0.92, 0.98)  # of the cards' rate
NCCL_BY_HOST: Range = (0.3, 0.55, 0.92)  # the same, by way of host memory
NCCL_GPUDIRECT_UNKNOWN: Range = (0.3, 0.8, 0.98)
NCCL_BY_SOCKETS: Range = (0.32, 0.7, 0.95)
NCCL_SOCKETS_GB_PER_S: Range = (2.0, 5.0, 15.0)  # at most
NCCL_MEASURED: Range = (0.85, 1.0, 1.05)  # of busbw: gradients are smaller than its messages
_NODES = 1000  # NUMA nodes of hosts are numbered by host: below any number of nodes of one

RateBasis = Literal["measured", "card"]


class NetworkRate(NamedTuple):
    """What TensorFlow's copies, or NCCL, of one host are expected to carry each way; `says`: from what."""

    low: float
    gb_per_s: float
    high: float
    basis: RateBasis
    says: str


def rate_of_card(gbit_per_s: float, name: str) -> NetworkRate:
    """Return the rate behind a card of so many Gbit/s."""
    reached = _reached(gbit_per_s * GBIT, GRPC_OF_CARD, GRPC_GB_PER_S)
    return NetworkRate(*reached, "card", f"{name}, {gbit_per_s:g} Gbit/s")


def rate_of_tcp(gb_per_s: float, when: str) -> NetworkRate:
    """Return the rate where TCP was measured."""
    return NetworkRate(
        *_reached(gb_per_s, GRPC_OF_TCP, GRPC_GB_PER_S),
        "measured",
        f"{gb_per_s:.3g} GB/s of TCP measured {when}",
    )


def rate_of_nccl(gb_per_s: float, shares: Range, says: str, most: Range = (inf, inf, inf)) -> NetworkRate:
    """Return what NCCL reaches of a rate; `shares`: of which it is measured or expected to reach so much."""
    basis: RateBasis = "measured" if shares == NCCL_MEASURED else "card"
    return NetworkRate(*_reached(gb_per_s, shares, most), basis, says)


def _reached(gb_per_s: float, shares: Range, most: Range) -> Range:
    low, likely, high = (min(share * gb_per_s, top) for share, top in zip(shares, most, strict=True))
    return low, likely, high


class HostPaths(NamedTuple):
    """A host of a training: its name, the paths of its machine, the GPUs that it trains with."""

    name: str
    paths: Paths
    gpus: tuple[int, ...]


def joined(hosts: Sequence[HostPaths], gb_per_s: Sequence[float], home: int = 0) -> Paths:
    """Return the paths of all hosts, GPUs numbered through in the order of the towers.

    `gb_per_s`: of each host's network path, inf for none that limits. `home`: the host with the variables.
    """
    parts = []
    first = 0
    for number, host in enumerate(hosts):
        parts.append(_numbered(host, first, number))
        first += len(host.gpus)
    return Paths(
        hosts={gpu: link for part in parts for gpu, link in part.hosts.items()},
        pairs={pair: path for part in parts for pair, path in part.pairs.items()},
        uplinks=tuple(one for part in parts for one in part.uplinks),
        sockets=tuple(one for part in parts for one in part.sockets),
        ports={gpu: port for part in parts for gpu, port in part.ports.items()},
        cpus=hosts[home].paths.cpus,
        names={gpu: name for part in parts for gpu, name in part.names.items()},
        places={gpu: number for number, part in enumerate(parts) for gpu in part.names},
        networks=tuple(NetworkPath(host.name, rate) for host, rate in zip(hosts, gb_per_s, strict=True)),
        home=home,
    )


def with_rates(paths: Paths, gb_per_s: Sequence[float]) -> Paths:
    """Return the paths of several hosts with other rates between them."""
    networks = (one._replace(gb_per_s=rate) for one, rate in zip(paths.networks, gb_per_s, strict=True))
    found = msgspec.structs.replace(paths, networks=tuple(networks))
    found.rings.update(paths.rings)  # within hosts
    return found


def without_limit(paths: Paths) -> Paths:
    """Return the paths of several hosts as if their network took no time."""
    return with_rates(paths, [inf] * len(paths.networks))


def _numbered(host: HostPaths, first: int, number: int) -> Paths:
    to = {gpu: first + place for place, gpu in enumerate(host.gpus)}
    paths = host.paths

    def kept(gpus: Gpus) -> Gpus:
        return frozenset(to[gpu] for gpu in gpus if gpu in to)

    return Paths(
        hosts={to[gpu]: link for gpu, link in paths.hosts.items() if gpu in to},
        pairs=_pairs(paths.pairs, to),
        uplinks=tuple(
            Uplink(kept(one.gpus), one.up, one.down, one.both) for one in paths.uplinks if kept(one.gpus)
        ),
        sockets=tuple(
            SocketLink(
                (_NODES * number + one.nodes[0], _NODES * number + one.nodes[1]),
                (kept(one.gpus[0]), kept(one.gpus[1])),
                one.gb_per_s,
                one.both,
            )
            for one in paths.sockets
        ),
        ports={to[gpu]: port for gpu, port in paths.ports.items() if gpu in to},
        names={to[gpu]: f"{host.name} GPU {gpu}" for gpu in host.gpus},
    )


def _pairs(
    pairs: Mapping[tuple[int, int], PairPath], to: Mapping[int, int]
) -> dict[tuple[int, int], PairPath]:
    return {
        (min(to[a], to[b]), max(to[a], to[b])): path for (a, b), path in pairs.items() if a in to and b in to
    }


def host_of_node(node: int) -> tuple[int, int]:
    """Return the host of a NUMA node that was numbered by `joined`, and its number there."""
    return divmod(node, _NODES)
