"""Derives the box that the CUDA double imitates from a machine of the kit: rates, and which copies share
links.
"""

from collections.abc import Iterator

from gputopo.reference import expected_gpu, expected_link, expected_nvlink
from tests.kit.cuda.scenario import CudaGpu, CudaSpec, PathKind, Route, Settings
from tests.kit.specs import LinkSpec, Scenario

# All are invented, of the size that such machines have; bytes per second unless the name has another unit.
HOST_MEMORY = 60e9  # of one node
SOCKET_LINK = 17e9  # between two nodes, one direction
ROOT_PEERS = 10e9  # copies between cards that share only a host bridge
CARD_MEMORY = 700e9  # of a card without a published figure
L2_MIB = 4  # of a card without a published figure
CARD_MEMORY_SHARE = 0.85  # share of the published rate that a local copy reaches, both directions together
PAGEABLE_SHARE, PAGEABLE_MAX = 0.55, 6e9
KERNEL_READ_SHARE, KERNEL_WRITE_SHARE = 0.92, 0.96
FAR_SHARE = 0.9
CHASE_NS = {
    "own": 450.0,
    "host": 700.0,
    "far": 900.0,
    "nvlink": 900.0,
    10: 1100.0,
    20: 1300.0,
    30: 1500.0,
    40: 1700.0,
    50: 2300.0,
}

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# nvmlDeviceArchitecture_t to a compute capability of this family.
_CAPABILITY = {2: (3, 5), 3: (5, 2), 4: (6, 1), 5: (7, 0), 6: (7, 5), 7: (8, 0), 8: (8, 9), 9: (9, 0)}

_Steps = tuple[tuple[str, float], ...]


def from_scenario(scenario: Scenario, far: float = FAR_SHARE) -> CudaSpec:
    """Return the box of a scenario.

    `far`: the rate of host memory on another node, as a share of the near rate.
    """
    return _Deriving(scenario, far).box()


class _Deriving:
    """Collects the resources while it builds the routes."""

    def __init__(self, scenario: Scenario, far: float) -> None:
        self.scenario, self.far = scenario, far
        self.resources: dict[str, float] = {}
        self.routes: dict[tuple[PathKind, int, int], Route] = {}

    def box(self) -> CudaSpec:
        """Build all routes and return the box."""
        count = len(self.scenario.gpus)
        for gpu in range(count):
            memory = self._card_memory(gpu)
            self._lay("local", gpu, 0, ((memory, 2.0),), 1.2)
            self._lay("memory", gpu, 0, ((memory, 1.0),), 1.2, CHASE_NS["own"])
            for node in range(len(self.scenario.cpus)):
                self._lay_host(gpu, node)
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        for a, b in pairs:
            self._lay_pair(a, b)
        refused = {pair for pair, code in self.scenario.p2p.items() if code}
        return CudaSpec(
            gpus=tuple(self._gpu(gpu) for gpu in range(count)),
            resources=self.resources,
            routes=self.routes,
            peers=frozenset((a, b) for a, b in pairs if (min(a, b), max(a, b)) not in refused),
            cpus=tuple(tuple(cpus) for cpus in self.scenario.cpus),
            settings=Settings(driver=self.scenario.cuda_version, peer_limit=0 if self._switched() else 8),
        )

    def _gpu(self, index: int) -> CudaGpu:
        spec = self.scenario.gpus[index]
        known = expected_gpu(spec.name)
        return CudaGpu(
            name=spec.name,
            address=spec.address,
            memory_bytes=spec.memory_bytes[0],
            used_bytes=spec.memory_bytes[1],
            compute_capability=_CAPABILITY.get(spec.architecture, (7, 0)),
            lost_code=0 if spec.lost is None else 46,
            l2_bytes=int((known.l2_mib if known and known.l2_mib else L2_MIB) * 2**20),
        )

    def _has(self, name: str, rate: float) -> str:
        self.resources.setdefault(name, rate)
        return name

    def _lay(
        self, kind: PathKind, a: int, b: int, over: _Steps, latency_us: float, chase_ns: float = 0.0
    ) -> float:
        self.routes[kind, a, b] = Route(over, latency_us, chase_ns)
        return min(self.resources[name] / weight for name, weight in over)

    def _card_memory(self, gpu: int) -> str:
        known = expected_gpu(self.scenario.gpus[gpu].name)
        rate = CARD_MEMORY
        if known and known.memory_gb_per_s:
            rate = known.memory_gb_per_s * 1e9 * CARD_MEMORY_SHARE
        return self._has(f"memory of gpu {gpu}", rate)

    def _ports(self, gpu: int) -> Iterator[tuple[str, LinkSpec, LinkSpec]]:
        """Yield the links between a GPU and the root, the nearest first: the upper port, and both ends'
        links.
        """
        links = {bridge.address: bridge.link for bridge in self.scenario.bridges}
        above = self.scenario.bridges_above(gpu)
        lower = self.scenario.gpus[gpu].link
        # Ports and upstream bridges of switches alternate: each link has a port above it.
        for place in range(0, len(above), 2):
            yield above[place], lower, links[above[place]]
            lower = links[above[place + 1]] if place + 1 < len(above) else lower

    def _way(self, gpu: int, down: bool, below: str | None = None) -> _Steps:
        """Return one direction of the links from a GPU to the root, or to the switch with bridge `below`."""
        steps = []
        above = self.scenario.bridges_above(gpu)
        end = above.index(below) if below else len(above)
        for port, lower, upper in self._ports(gpu):
            if above.index(port) >= end:
                break
            rate = _rate(lower, upper, down, self._asleep(gpu))
            steps.append((self._has(f"{port} {'down' if down else 'up'}", rate), 1.0))
        return tuple(steps)

    def _switched(self) -> bool:
        """Return whether GPUs reach one another through NVSwitches, which have no limit of eight peers."""
        return any(isinstance(link.remote, str) for gpu in self.scenario.gpus for link in gpu.nvlinks)

    def _asleep(self, gpu: int) -> bool:
        """Return whether the link is slower than possible only because the card is idle."""
        return self.scenario.gpus[gpu].utilization[0] == 0

    def _node(self, gpu: int) -> int:
        return max(self.scenario.gpus[gpu].numa_node, 0)

    def _lay_host(self, gpu: int, node: int) -> None:
        own, memory = self._node(gpu), self._card_memory(gpu)
        kinds: tuple[tuple[PathKind, PathKind], ...] = (("h2d", "h2d_pageable"), ("d2h", "d2h_pageable"))
        for kind, pageable in kinds:
            down = kind == "h2d"
            way: _Steps = (*self._way(gpu, down), (memory, 1.0))
            host = self._has(f"host memory {node}", HOST_MEMORY)
            rate = min(self.resources[name] for name, _ in way)
            if node != own:
                first, last = (node, own) if down else (own, node)
                way += ((self._has(f"socket {first} to {last}", SOCKET_LINK), 1.0),)
                way += ((self._has(f"far {kind} {gpu} {node}", rate * self.far), 1.0),)
            chase = CHASE_NS["host" if node == own else "far"]
            rate = self._lay(kind, gpu, node, (*way, (host, 1.0)), 1.3, chase)
            slow = self._has(f"pageable {kind} {gpu} {node}", min(rate * PAGEABLE_SHARE, PAGEABLE_MAX))
            self._lay(pageable, gpu, node, (*way, (host, 3.0), (slow, 1.0)), 6.0)

    def _lay_pair(self, a: int, b: int) -> None:
        ends: _Steps = ((self._card_memory(a), 1.0), (self._card_memory(b), 1.0))
        way, chase = self._peer_way(a, b)
        rate = self._lay("p2p", a, b, (*way, *ends), 1.8, chase)
        self._lay("pull", a, b, (*way, *ends), 1.8, chase)
        reading = self._has(f"read {a} {b}", rate * KERNEL_READ_SHARE)
        writing = self._has(f"write {a} {b}", rate * KERNEL_WRITE_SHARE)
        self._lay("read", a, b, (*way, *ends, (reading, 1.0)), 1.8, chase)
        self._lay("write", a, b, (*way, *ends, (writing, 1.0)), 1.8, chase)
        host = self._has(f"host memory {self._node(a)}", HOST_MEMORY)
        through = (*self._way(a, False), *self._way(b, True), *self._between(a, b), (host, 2.0))
        self._lay("staged", a, b, (*through, *ends), 12.0)

    def _peer_way(self, a: int, b: int) -> tuple[_Steps, float]:
        nvlink = self._nvlink(a, b)
        if nvlink:
            return nvlink, CHASE_NS["nvlink"]
        ways = self.scenario.bridges_above(a), self.scenario.bridges_above(b)
        shared = next((bridge for bridge in ways[0] if bridge in ways[1]), None)
        links = (*self._way(a, False, shared), *self._way(b, True, shared))
        chase = CHASE_NS[self.scenario.level(a, b)]
        if shared:
            return links, chase
        root = self._has(f"peers in {self.scenario.gpus[a].root}", ROOT_PEERS)
        return (*links, (root, 1.0), *self._between(a, b)), chase

    def _between(self, a: int, b: int) -> _Steps:
        first, last = self._node(a), self._node(b)
        if first == last:
            return ()
        return ((self._has(f"socket {first} to {last}", SOCKET_LINK), 1.0),)

    def _nvlink(self, a: int, b: int) -> _Steps:
        ports = [link for link in self.scenario.gpus[a].nvlinks if link.remote is not None]
        others = [link for link in self.scenario.gpus[b].nvlinks if link.remote is not None]
        direct = [link for link in ports if link.remote == b]
        if direct:
            return (
                (self._has(f"nvlink {a} to {b}", sum(map(_nvlink_rate, (p.version for p in direct)))), 1.0),
            )
        switched = [p for p in ports if isinstance(p.remote, str)]
        back = [p for p in others if isinstance(p.remote, str)]
        if not switched or not back:
            return ()
        out = self._has(f"nvlinks out of {a}", sum(map(_nvlink_rate, (p.version for p in switched))))
        into = self._has(f"nvlinks into {b}", sum(map(_nvlink_rate, (p.version for p in back))))
        return ((out, 1.0), (into, 1.0))


def _nvlink_rate(version: int) -> float:
    known = expected_nvlink(version)
    return 20e9 if known is None else known.link_gb_per_s * known.copy_share * 1e9


def _rate(lower: LinkSpec, upper: LinkSpec, down: bool, asleep: bool) -> float:
    """Return the rate that copies reach over a link, from the table of links."""
    width = min(lower.width, upper.width)
    now = min(lower.speed, upper.speed)
    speed = min(lower.max_speed, upper.max_speed) if asleep else now
    known = expected_link(_GENERATIONS.get(speed), width)
    if known is None:
        return speed * width / 8 * 0.78e9  # share of the raw rate on a generation 3 link
    return 1e9 * (known.copy_to_device_gb_per_s if down else known.copy_to_host_gb_per_s)
