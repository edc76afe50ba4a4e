"""Seconds for which each byte of a model's variables occupies each link.

A resource is a tuple:

- ("up", gpu) and ("down", gpu): a GPU's link to and from the host;
- ("uplink up", n) and ("uplink down", n): the n-th shared uplink;
- ("nvlink", a, b): the NVLinks of two GPUs;
- ("nvlink out", gpu) and ("nvlink in", gpu): the NVLinks of a GPU to NVSwitches;
- ("pair", a, b): the path between two GPUs;
- ("memory",): the host memory that staged copies use;
- ("host",): the CPU cores that add gradients.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gputopo.copies import BIDIRECTIONAL_SHARE
from gputopo.prediction.links.paths import Cost, Limit, Paths, Resource
from gputopo.values.index_ranges import index_ranges

GB = 1e9
_EQUAL = 1 - 1e-12  # for two sums of the same numbers in another order
# The order of resources that are equally slow.
_KINDS = (
    "uplink up",
    "uplink down",
    "memory",
    "up",
    "down",
    "nvlink out",
    "nvlink in",
    "nvlink",
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
# The total rate of all copies through host memory, each counted in and out once. Not measured; chosen because
# eight rings through host memory reach it (`gputopo.prediction.links.rings`).
HOST_MEMORY_GB_PER_S = 64.0
# The rate of both directions at once, as a share of the sum of each direction by itself. NVLink: 0.87 of 0.92
# (nvlinks.csv). Copies through host memory: 0.56 (RTX 5090), 0.69 (RTX 4090), 0.70 (RTX 6000 Ada),
# p2pBandwidthLatencyTest.
NVLINK_BOTH_SHARE = 0.95
STAGED_BOTH_SHARE = 0.69


_IN_WORDS = {
    "up": "link of GPU {}, sending",
    "down": "link of GPU {}, receiving",
    "nvlink out": "NVLinks of GPU {}, sending",
    "nvlink in": "NVLinks of GPU {}, receiving",
    "nvlink": "NVLink {} to {}",
    "pair": "path from GPU {} to {}",
    "memory": "copies through host memory",
    "host": "gradients added on the CPU",
}
_TO_HOST = {"up": "GPU {} to the host", "down": "the host to GPU {}"}


class Load(NamedTuple):
    """What a resource carries: a share of the model's bytes, and seconds for each byte of the model."""

    share: float
    seconds: float


def reverse(resource: Resource) -> Resource:
    """Return the other direction of a link."""
    kind, *ends = resource
    return (_REVERSE[str(kind)], *ends) if kind in _REVERSE else (kind, *ends[::-1])


def in_words(resource: Resource, paths: Paths, *, on_host: bool) -> str:
    """Return a link in words: `GPU 3 to the host`. `on_host`: whether the host stores the variables."""
    kind, *ends = resource
    if kind in ("uplink up", "uplink down"):
        return f"uplink of GPUs {index_ranges(paths.uplinks[int(ends[0])].gpus)}"
    words = _IN_WORDS | (_TO_HOST if on_host else {})
    return words[str(kind)].format(*ends)


Place = int | None
"""A GPU; None: the host."""


def copy_costs(paths: Paths, source: Place, destination: Place) -> Sequence[Cost]:
    """Return the resources of a copy between two GPUs, or a GPU and its host; the result is cached."""
    key = source, destination
    if key not in paths.copies:
        paths.copies[key] = tuple(_costs(paths, source, destination))
    return paths.copies[key]


def _costs(paths: Paths, a: Place, b: Place) -> Iterator[Cost]:
    through_host, least, shared = True, 0.0, list[Cost]()
    if a is not None and b is not None:
        path = paths.pair(a, b)
        if path.kind == "nvlink":
            if a in paths.ports and b in paths.ports:
                yield ("nvlink out", a), max(paths.ports[a], path.gb_per_s)
                yield ("nvlink in", b), max(paths.ports[b], path.gb_per_s)
            yield ("nvlink", a, b), path.gb_per_s
            return
        through_host = path.through_host
        least = path.gb_per_s  # below one switch a direct copy may be faster than a copy to the host
        shared = [(("pair", a, b), path.gb_per_s)]
        if path.kind == "staged":
            shared.append((("memory",), HOST_MEMORY_GB_PER_S))
    if a is not None:
        yield ("up", a), max(paths.hosts[a].up, least)
    if b is not None:
        yield ("down", b), max(paths.hosts[b].down, least)
    yield from shared
    for number, uplink in enumerate(paths.uplinks):
        leaves, enters = a in uplink.gpus, b in uplink.gpus
        if leaves and (not enters or through_host):
            yield ("uplink up", number), uplink.gb_per_s
        if enters and (not leaves or through_host):
            yield ("uplink down", number), uplink.gb_per_s


def slowest_of(loads: Mapping[Resource, Load]) -> Limit:
    """Return the resource that a byte occupies longest; of equally slow ones the first by kind and GPU."""
    seconds = max((load.seconds for load in loads.values()), default=0.0)
    if not seconds:
        return Limit(None, 0.0)
    slowest = (resource for resource, load in loads.items() if load.seconds >= seconds * _EQUAL)
    return Limit(min(slowest, key=lambda resource: (_KINDS.index(str(resource[0])), resource[1:])), seconds)


class Flows:
    """Copies that run at the same time: the seconds for which one byte of the model occupies each link."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.seconds: dict[Resource, float] = {}
        self.shares: dict[Resource, float] = {}  # of the model's bytes

    def between(self, source: Place, destination: Place, share: float = 1.0) -> None:
        """Send `share` of the model's bytes from one place to another."""
        if source == destination:
            return
        for resource, gb_per_s in copy_costs(self._paths, source, destination):
            self.seconds[resource] = self.seconds.get(resource, 0.0) + share / gb_per_s
            self.shares[resource] = self.shares.get(resource, 0.0) + share

    @property
    def loads(self) -> dict[Resource, Load]:
        """The load of each resource, with both directions at once."""
        loads = {}
        for resource, seconds in self.seconds.items():
            busy = self.seconds.get(reverse(resource), 0.0)
            # Two directions at once reach a share of the sum of their rates, while both have bytes to send.
            at_once = seconds + (1 / self._both(resource) - 1) * min(seconds, busy)
            loads[resource] = Load(self.shares[resource], at_once / GB)
        return loads

    def _both(self, resource: Resource) -> float:
        kind, *ends = map(str, resource)
        if kind == "memory":
            return 1.0
        if kind.startswith("nvlink"):
            return NVLINK_BOTH_SHARE
        is_staged = kind == "pair" and self._paths.pair(*map(int, ends)).kind == "staged"
        return STAGED_BOTH_SHARE if is_staged else BIDIRECTIONAL_SHARE
