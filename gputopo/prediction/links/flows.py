"""Seconds for which each byte of a model's variables occupies each link, by candidate. Pure.

A resource is a tuple: ("up", gpu) and ("down", gpu), a GPU's link to and from the host; ("uplink up", n) and
("uplink down", n), the n-th shared one; ("nvlink", a, b), the NVLinks of two GPUs; ("nvlink out", gpu) and
("nvlink in", gpu), those of a GPU to NVSwitches; ("pair", a, b), the path between two GPUs; ("memory",), the
host memory that staged copies go through; ("host",), the cores that add gradients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from gputopo.copies.expected import BIDIRECTIONAL_SHARE
from gputopo.prediction.links.paths import Cost, Paths, Resource

GB = 1e9
_EQUAL = 1 - 1e-12  # of two sums of the same numbers in another order
# The order in which resources that are as slow are named.
_KINDS = (
    *("uplink up", "uplink down", "memory", "up", "down", "nvlink out", "nvlink in", "nvlink"),
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
# What both directions at once carry, of the sum of each alone. NVLink: 0.87 of 0.92 (nvlinks.csv); copies
# through host memory: 0.56 (RTX 5090), 0.69 (RTX 4090), 0.70 (RTX 6000 Ada), p2pBandwidthLatencyTest.
NVLINK_BOTH_SHARE = 0.95
STAGED_BOTH_SHARE = 0.69


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
    yield (way, gpu), getattr(paths.hosts[gpu], way)
    for number, uplink in enumerate(paths.uplinks):
        if gpu in uplink.gpus:
            yield (f"uplink {way}", number), uplink.gb_per_s


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
            yield ("nvlink out", a), max(paths.ports[a], path.gb_per_s)
            yield ("nvlink in", b), max(paths.ports[b], path.gb_per_s)
        yield ("nvlink", a, b), path.gb_per_s
        return
    start, end = paths.hosts[a], paths.hosts[b]
    # Below a switch a direct copy may be faster than one to the host.
    yield ("up", a), max(start.up, path.gb_per_s)
    yield ("down", b), max(end.down, path.gb_per_s)
    yield ("pair", a, b), path.gb_per_s
    if path.kind == "staged":
        yield ("memory",), HOST_MEMORY_GB_PER_S
    for number, uplink in enumerate(paths.uplinks):
        leaves, enters = a in uplink.gpus, b in uplink.gpus
        if leaves and (not enters or path.through_host):
            yield ("uplink up", number), uplink.gb_per_s
        if enters and (not leaves or path.through_host):
            yield ("uplink down", number), uplink.gb_per_s


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
            # Two directions at once carry a share of their sum, as long as both have bytes.
            at_once = seconds + (1 / self._both(resource) - 1) * min(seconds, busy)
            found[resource] = Load(self.shares[resource], at_once / GB)
        return found

    @property
    def slowest(self) -> tuple[Resource | None, float]:
        """The resource that a byte occupies longest, and its seconds a byte; (None, 0) if nothing flows."""
        return slowest_of(self.loads)

    def _both(self, resource: Resource) -> float:
        kind, *ends = map(str, resource)
        if kind == "memory":
            return 1.0
        if kind.startswith("nvlink"):
            return NVLINK_BOTH_SHARE
        is_staged = kind == "pair" and self._paths.pair(*map(int, ends)).kind == "staged"
        return STAGED_BOTH_SHARE if is_staged else BIDIRECTIONAL_SHARE

    def _add(self, costs: Iterable[Cost], share: float) -> None:
        for resource, gb_per_s in costs:
            self.seconds[resource] = self.seconds.get(resource, 0.0) + share / gb_per_s
            self.shares[resource] = self.shares.get(resource, 0.0) + share
