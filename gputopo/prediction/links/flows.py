"""Seconds for which each byte of a model's variables occupies each link, by candidate. Pure.

A resource is a tuple: ("up", gpu) and ("down", gpu), a GPU's link to and from the host; ("uplink up", n) and
("uplink down", n), the n-th shared one; ("socket", a, b), the link from NUMA node a to node b; ("nvlink",
a, b), the NVLinks of two GPUs; ("nvlink out", gpu) and ("nvlink in", gpu), those of a GPU to NVSwitches;
("pair", a, b), the path between two GPUs; ("memory",), the host memory that staged copies go through;
("host",), the cores that add gradients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from gputopo.prediction.links.paths import Cost, Paths, Resource

GB = 1e9
_EQUAL = 1 - 1e-12  # of two sums of the same numbers in another order
# The order in which resources that are as slow are named.
_KINDS = (
    *("uplink up", "uplink down", "socket", "memory", "up", "down", "nvlink out", "nvlink in", "nvlink"),
    "pair",
)
_REVERSE = {
    "up": "down",
    "down": "up",
    "uplink up": "uplink down",
    "uplink down": "uplink up",
    "nvlink out": "nvlink in",
    "nvlink in": "nvlink out",
}
# What all copies through host memory carry together, in and out once. Not measured; chosen because eight
# rings through it carry as much (`gputopo.prediction.links.rings`).
HOST_MEMORY_GB_PER_S = 64.0


class Load(NamedTuple):
    """What a resource carries: a share of the model's bytes, seconds for each byte of the model."""

    share: float
    seconds: float


def reverse(resource: Resource) -> Resource:
    """Return the other direction of a link."""
    kind, *ends = resource
    return (_REVERSE[str(kind)], *ends) if kind in _REVERSE else (kind, *ends[::-1])


def host_costs(paths: Paths, gpu: int, way: Literal["up", "down"]) -> Iterator[Cost]:
    """Iterate over what a copy from a GPU to its host (up), or from it (down), uses."""
    host = paths.hosts[gpu]
    yield (way, gpu), getattr(host, way), host.both
    for number, uplink in enumerate(paths.uplinks):
        if gpu in uplink.gpus:
            yield (f"uplink {way}", number), getattr(uplink, way), uplink.both


def pair_costs(paths: Paths, a: int, b: int) -> Sequence[Cost]:
    """Return what a copy from one GPU to another uses; found once."""
    found = paths.copies.get((a, b))
    if found is None:
        found = paths.copies[a, b] = tuple(_between(paths, a, b))
    return found


def _between(paths: Paths, a: int, b: int) -> Iterator[Cost]:
    path = paths.pair(a, b)
    if path.kind == "nvlink":
        if a in paths.ports and b in paths.ports:
            yield ("nvlink out", a), max(paths.ports[a], path.gb_per_s), paths.ports_both[a]
            yield ("nvlink in", b), max(paths.ports[b], path.gb_per_s), paths.ports_both[b]
        yield ("nvlink", a, b), path.gb_per_s, path.both
        return
    start, end = paths.hosts[a], paths.hosts[b]
    # Below a switch a direct copy may be faster than one to the host.
    yield ("up", a), max(start.up, path.gb_per_s), start.both
    yield ("down", b), max(end.down, path.gb_per_s), end.both
    yield ("pair", a, b), path.gb_per_s, path.both
    if path.kind == "staged":
        yield ("memory",), HOST_MEMORY_GB_PER_S, 1.0
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


def slowest_of(loads: Mapping[Resource, Load]) -> tuple[Resource | None, float]:
    """Return the resource that a byte occupies longest, and its seconds a byte; (None, 0) if nothing flows.

    Of those that are as slow the first by kind and GPU.
    """
    seconds = max((load.seconds for load in loads.values()), default=0.0)
    if not seconds:
        return None, 0.0
    slowest = (one for one, load in loads.items() if load.seconds >= seconds * _EQUAL)
    return min(slowest, key=lambda one: (_KINDS.index(str(one[0])), one[1:])), seconds


class Flows:
    """Bytes that flow at the same time: the seconds for which one byte of the model occupies each link."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.seconds: dict[Resource, float] = {}
        self.shares: dict[Resource, float] = {}  # of the model's bytes
        self.both: dict[Resource, float] = {}  # both directions at once, of their sum

    def to_host(self, gpu: int) -> None:
        """Send the model's bytes from a GPU to the host."""
        self._add(host_costs(self._paths, gpu, "up"), 1.0)

    def from_host(self, gpu: int) -> None:
        """Send the model's bytes from the host to a GPU."""
        self._add(host_costs(self._paths, gpu, "down"), 1.0)

    def between(self, a: int, b: int, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from one GPU to another."""
        if a != b:
            self._add(pair_costs(self._paths, a, b), share)

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
        return slowest_of(self.loads)

    def _add(self, costs: Iterable[Cost], share: float) -> None:
        for resource, gb_per_s, both in costs:
            self.seconds[resource] = self.seconds.get(resource, 0.0) + share / gb_per_s
            self.shares[resource] = self.shares.get(resource, 0.0) + share
            self.both[resource] = min(both, self.both.get(resource, both))
