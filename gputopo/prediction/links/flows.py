"""Seconds for which each byte of a model's variables occupies each link, by candidate. Pure.

A resource is a tuple: ("up", gpu) and ("down", gpu), a GPU's link to and from the host; ("uplink up", n) and
("uplink down", n), the n-th shared one; ("socket", a, b), the link from NUMA node a to node b; ("nvlink",
a, b), the NVLinks of two GPUs; ("nvlink out", gpu) and ("nvlink in", gpu), those of a GPU to NVSwitches;
("pair", a, b), the path between two GPUs; ("host",), the cores that add gradients; ("network out", n) and
("network in", n), the network path of the n-th of several hosts.

`Flows` counts every copy by itself; `gputopo.prediction.links.rates` finds the same by looking up.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gputopo.prediction.links.paths import Paths

Resource = tuple[str | int, ...]
GB = 1e9
_EQUAL = 1 - 1e-12  # of two sums of the same numbers in another order
# The order in which resources that are as slow are named.
_KINDS = (
    *("uplink up", "uplink down", "socket", "up", "down", "nvlink out", "nvlink in", "nvlink", "pair"),
    *("network out", "network in"),
)
_REVERSE = {
    "up": "down",
    "down": "up",
    "uplink up": "uplink down",
    "uplink down": "uplink up",
    "nvlink out": "nvlink in",
    "nvlink in": "nvlink out",
    "network out": "network in",
    "network in": "network out",
}


class Load(NamedTuple):
    """What a resource carries: a share of the model's bytes, seconds for each byte of the model."""

    share: float
    seconds: float


def reverse(resource: Resource) -> Resource:
    """Return the other direction of a link."""
    kind, *ends = resource
    return (_REVERSE[str(kind)], *ends) if kind in _REVERSE else (kind, *ends[::-1])


def is_network(resource: Resource | None) -> bool:
    """Return whether a resource is the network path of a host."""
    return resource is not None and str(resource[0]).startswith("network")


Cost = tuple[Resource, float, float]
"""A resource that a copy uses, its GB/s, and what both directions at once carry as a share of their sum."""

PairCosts = dict[tuple[int, int], list[Cost]]


class Flows:
    """Bytes that flow at the same time: the seconds for which one byte of the model occupies each link.

    `pair_costs`: of pairs, found once for many flows of the same paths.
    """

    def __init__(self, paths: Paths, pair_costs: PairCosts | None = None) -> None:
        self._paths = paths
        self._pair_costs: PairCosts = {} if pair_costs is None else pair_costs
        self.seconds: dict[Resource, float] = {}
        self.shares: dict[Resource, float] = {}  # of the model's bytes
        self.both: dict[Resource, float] = {}  # both directions at once, of their sum

    def to_host(self, gpu: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from a GPU to the host, of several to the one with variables."""
        self._add((*self._up(gpu), *self._over_network(self._paths.host_of(gpu), self._paths.home)), share)

    def from_host(self, gpu: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from the host, of several from that one, to a GPU."""
        self._add((*self._over_network(self._paths.home, self._paths.host_of(gpu)), *self._down(gpu)), share)

    def between(self, a: int, b: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from one GPU to another."""
        if a == b:
            return
        costs = self._pair_costs.get((a, b))
        if costs is None:
            costs = self._pair_costs[a, b] = list(self._between(a, b))
        self._add(costs, share)

    def _up(self, gpu: int) -> Iterator[Cost]:
        host = self._paths.hosts[gpu]
        yield ("up", gpu), host.up, host.both
        for number, uplink in enumerate(self._paths.uplinks):
            if gpu in uplink.gpus:
                yield ("uplink up", number), uplink.up, uplink.both

    def _down(self, gpu: int) -> Iterator[Cost]:
        host = self._paths.hosts[gpu]
        yield ("down", gpu), host.down, host.both
        for number, uplink in enumerate(self._paths.uplinks):
            if gpu in uplink.gpus:
                yield ("uplink down", number), uplink.down, uplink.both

    def _over_network(self, here: int, there: int) -> Iterator[Cost]:
        if here != there:
            networks = self._paths.networks
            yield ("network out", here), networks[here].gb_per_s, 1.0
            yield ("network in", there), networks[there].gb_per_s, 1.0

    def _between(self, a: int, b: int) -> Iterator[Cost]:
        paths = self._paths
        if paths.host_of(a) != paths.host_of(b):  # by way of both hosts' memories, as TensorFlow copies
            yield from self._up(a)
            yield from self._over_network(paths.host_of(a), paths.host_of(b))
            yield from self._down(b)
            return
        path = paths.pair(a, b)
        if path.kind == "nvlink":
            if a in paths.ports and b in paths.ports:
                yield ("nvlink out", a), max(paths.ports[a], path.gb_per_s), paths.port_both(a)
                yield ("nvlink in", b), max(paths.ports[b], path.gb_per_s), paths.port_both(b)
            yield ("nvlink", a, b), path.gb_per_s, path.both
            return
        start, end = paths.hosts[a], paths.hosts[b]
        # Below a switch a direct copy may be faster than one to the host.
        yield ("up", a), max(start.up, path.gb_per_s), start.both
        yield ("down", b), max(end.down, path.gb_per_s), end.both
        yield ("pair", a, b), path.gb_per_s, path.both
        for number, uplink in enumerate(paths.uplinks):
            leaves, enters = a in uplink.gpus, b in uplink.gpus
            if leaves and (not enters or path.through_host):
                yield ("uplink up", number), uplink.up, uplink.both
            if enters and (not leaves or path.through_host):
                yield ("uplink down", number), uplink.down, uplink.both
        for socket in paths.sockets:
            (here, there), (one, other) = socket.gpus, socket.nodes
            if a in here and b in there:
                yield ("socket", one, other), socket.gb_per_s, socket.both
            if a in there and b in here:
                yield ("socket", other, one), socket.gb_per_s, socket.both

    @property
    def loads(self) -> dict[Resource, Load]:
        """What each resource carries, both directions at once."""
        found = {}
        for resource, seconds in self.seconds.items():
            busy = self.seconds.get(reverse(resource), 0.0)
            # Two directions at once carry `both` of their sum, as long as both have bytes.
            at_once = seconds + (1 / self.both[resource] - 1) * min(seconds, busy)
            found[resource] = Load(self.shares[resource], at_once / GB)
        return found

    @property
    def slowest(self) -> tuple[Resource | None, float]:
        """The resource that a byte occupies longest, and its seconds a byte; (None, 0) if nothing flows.

        Of those that are as slow the first by kind and GPU.
        """
        loads = self.loads
        seconds = max((load.seconds for load in loads.values()), default=0.0)
        if not seconds:
            return None, 0.0
        slowest = (one for one, load in loads.items() if load.seconds >= seconds * _EQUAL)
        return min(slowest, key=lambda one: (_KINDS.index(str(one[0])), one[1:])), seconds

    def _add(self, costs: Iterable[Cost], share: float) -> None:
        for resource, gb_per_s, both in costs:
            self.seconds[resource] = self.seconds.get(resource, 0.0) + share / gb_per_s
            self.shares[resource] = self.shares.get(resource, 0.0) + share
            self.both[resource] = min(both, self.both.get(resource, both))
