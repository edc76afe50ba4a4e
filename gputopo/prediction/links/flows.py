"""Seconds for which each byte of a model's variables occupies each link, by candidate. Pure.

A resource is a tuple: ("up", gpu) and ("down", gpu), a GPU's link to and from the host; ("uplink up", n) and
("uplink down", n), the n-th shared one; ("socket", a, b), the link from NUMA node a to node b; ("nvlink",
a, b), the NVLinks of two GPUs; ("nvlink out", gpu) and ("nvlink in", gpu), those of a GPU to NVSwitches;
("pair", a, b), the path between two GPUs; ("host",), the cores that add gradients; ("network out", n) and
("network in", n), the network path of the n-th of several hosts.

`Flows` counts every copy by itself; `gputopo.prediction.links.rates` finds the same by looking up.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gputopo.prediction.links.paths import Paths

Resource = tuple[str | int, ...]
GB = 1e9
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


class Flows:
    """Bytes that flow at the same time: the seconds for which one byte of the model occupies each link.

    `shares`: what each link carries, of the model's bytes; `both`: both directions at once, of their sum.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.seconds: dict[Resource, float] = {}
        self.shares: dict[Resource, float] = {}
        self.both: dict[Resource, float] = {}

    def to_host(self, gpu: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from a GPU to the host, of several to the one with variables."""
        self._up(gpu, share)
        self._over_network(self._paths.host_of(gpu), self._paths.home, share)

    def from_host(self, gpu: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from the host, of several from that one, to a GPU."""
        self._over_network(self._paths.home, self._paths.host_of(gpu), share)
        self._down(gpu, share)

    def _up(self, gpu: int, share: float) -> None:
        host = self._paths.hosts[gpu]
        self._add(("up", gpu), share, host.up, host.both)
        for number, uplink in enumerate(self._paths.uplinks):
            if gpu in uplink.gpus:
                self._add(("uplink up", number), share, uplink.up, uplink.both)

    def _down(self, gpu: int, share: float) -> None:
        host = self._paths.hosts[gpu]
        self._add(("down", gpu), share, host.down, host.both)
        for number, uplink in enumerate(self._paths.uplinks):
            if gpu in uplink.gpus:
                self._add(("uplink down", number), share, uplink.down, uplink.both)

    def _over_network(self, here: int, there: int, share: float) -> None:
        if here != there:
            networks = self._paths.networks
            self._add(("network out", here), share, networks[here].gb_per_s, 1.0)
            self._add(("network in", there), share, networks[there].gb_per_s, 1.0)

    def between(self, a: int, b: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from one GPU to another."""
        if a == b:
            return
        paths = self._paths
        if paths.host_of(a) != paths.host_of(b):  # by way of both hosts' memories, as TensorFlow copies
            self._up(a, share)
            self._over_network(paths.host_of(a), paths.host_of(b), share)
            self._down(b, share)
            return
        path = paths.pair(a, b)
        if path.kind == "nvlink":
            if a in paths.ports and b in paths.ports:
                self._add(("nvlink out", a), share, max(paths.ports[a], path.gb_per_s), paths.port_both(a))
                self._add(("nvlink in", b), share, max(paths.ports[b], path.gb_per_s), paths.port_both(b))
            self._add(("nvlink", a, b), share, path.gb_per_s, path.both)
            return
        start, end = paths.hosts[a], paths.hosts[b]
        # Below a switch a direct copy may be faster than one to the host.
        self._add(("up", a), share, max(start.up, path.gb_per_s), start.both)
        self._add(("down", b), share, max(end.down, path.gb_per_s), end.both)
        self._add(("pair", a, b), share, path.gb_per_s, path.both)
        for number, uplink in enumerate(paths.uplinks):
            leaves, enters = a in uplink.gpus, b in uplink.gpus
            if leaves and (not enters or path.through_host):
                self._add(("uplink up", number), share, uplink.up, uplink.both)
            if enters and (not leaves or path.through_host):
                self._add(("uplink down", number), share, uplink.down, uplink.both)
        for socket in paths.sockets:
            here, there = socket.gpus
            one, other = socket.nodes
            if a in here and b in there:
                self._add(("socket", one, other), share, socket.gb_per_s, socket.both)
            if a in there and b in here:
                self._add(("socket", other, one), share, socket.gb_per_s, socket.both)

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
        """The resource that a byte occupies longest, and its seconds a byte; (None, 0) if nothing flows."""
        loads = self.loads
        worst = max(loads, key=lambda one: loads[one].seconds, default=None)
        return (worst, loads[worst].seconds) if worst and loads[worst].seconds else (None, 0.0)

    def _add(self, resource: Resource, share: float, gb_per_s: float, both: float) -> None:
        self.seconds[resource] = self.seconds.get(resource, 0.0) + share / gb_per_s
        self.shares[resource] = self.shares.get(resource, 0.0) + share
        self.both[resource] = min(both, self.both.get(resource, both))


class FlowTable:
    """What copies of many sets of GPUs occupy: as `Flows`, with that of each pair looked up."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._of_pair: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        self._numbers: dict[Resource, int] = {}
        # By number of a resource: that of its other direction, and how much longer both at once take.
        self._both: dict[int, tuple[int, float]] = {}

    def slowest_s(self, copies: Iterable[tuple[int, int, float]]) -> float:
        """Return the seconds a byte of the slowest resource of copies: sender, receiver, share of bytes."""
        busy: dict[int, float] = {}
        for a, b, share in copies:
            for number, seconds in self._of_pair.get((a, b)) or self._new_pair(a, b):
                busy[number] = busy.get(number, 0.0) + share * seconds
        slowest = 0.0
        for number, seconds in busy.items():
            reverse_number, more = self._both[number]
            at_once = seconds + more * min(seconds, busy.get(reverse_number, 0.0))
            if at_once > slowest:
                slowest = at_once
        return slowest

    def _new_pair(self, a: int, b: int) -> tuple[tuple[int, float], ...]:
        flows = Flows(self._paths)
        flows.between(a, b)
        for resource, share in flows.both.items():
            self._both[self._number(resource)] = self._number(reverse(resource)), 1 / share - 1
        found = tuple((self._number(one), seconds / GB) for one, seconds in flows.seconds.items())
        self._of_pair[a, b] = found
        return found

    def _number(self, resource: Resource) -> int:
        return self._numbers.setdefault(resource, len(self._numbers))
