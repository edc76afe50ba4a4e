"""An engine in Python: rates of single copies, uplinks that are shared fairly, faults, its own clock."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gputopo.copies import fair_rates
from gputopo.probes import (
    Copy,
    CopyJob,
    CopyTime,
    CopyWindow,
    SessionProgress,
    SessionRequest,
    failure_of,
)
from gputopo.probes.session import Doors, HostMemoryRates, Measuring, Results, bandwidth_of, check
from gputopo.values.bandwidth import Bandwidth, Failure
from gputopo.values.machine import Gpu, Host, Machine, NumaNode
from gputopo.values.run.events import GpuSample

LOST = "CUDA_ERROR_DEVICE_UNAVAILABLE"


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class EngineDouble:
    """`rate` returns GB/s of a copy alone. `uplinks`: GPUs that share and what they carry, each direction.

    `faults`: reason by (kind of the copy, source, destination). `lost`: GPU -> the number of windows after
    which it is gone. `ramp_up`: windows until the cards reach their rates, a quarter of them before.
    `each_s`: seconds that a window takes beside its copies; `host_gb_per_s`: host memory that is filled and
    compared; `peer_s`: peer access of a pair, the first time. `slower`: all of that, and the copies.
    """

    gpus: int = 2
    rate: Callable[[Copy], float] = lambda copy: {"d2d_local": 400.0}.get(copy.kind, 12.0)
    uplinks: Sequence[tuple[frozenset[int], float]] = ()
    peers: frozenset[tuple[int, int]] = frozenset()
    faults: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    ramp_up: int = 0
    each_s: float = 0.001
    host_gb_per_s: float = 1000.0
    peer_s: float = 0.0
    slower: float = 1.0
    free: int = 8 << 30
    l2: int | None = 4 << 20
    no_kernels: Mapping[int, str] = field(default_factory=dict)
    interrupt_after: int | None = None
    clock: Clock = field(default_factory=Clock)
    peers_open: set[frozenset[int]] = field(default_factory=set)
    asked: list[tuple[CopyJob, tuple[int, ...]]] = field(default_factory=list)
    hung: set[int] = field(default_factory=set)
    hang_on: tuple[str, str] | None = None
    unreturned: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        if self.interrupt_after is not None and len(self.asked) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.asked.append((job, tuple(sizes)))
        begun = self.clock.now_s
        if while_running is not None:
            while_running()
        rates = self._rates(job)
        times = [
            self._time(job, copy, size, rates[i])
            for i, (copy, size) in enumerate(zip(job.copies, sizes, strict=True))
        ]
        slowest = max(size / rate for size, rate in zip(sizes, rates, strict=True)) / 1e9
        ended = begun + slowest
        self.clock.now_s = max(ended, self.clock.now_s) + self.slower * self._beside_s(job, sizes)
        return CopyWindow(copies=tuple(times), span=(begun, ended))

    def peer_access(self, a: int, b: int) -> bool:
        return (a, b) in self.peers

    def free_bytes(self, gpu: int) -> int:
        return 0 if self._is_lost(gpu) else self.free

    def l2_bytes(self, gpu: int) -> int | None:
        return self.l2

    def supports(self, gpu: int, method: str) -> str | None:
        if self._is_lost(gpu) or gpu in self.hung:
            return "it answers no more"
        return None if method == "copy_engine" else self.no_kernels.get(gpu)

    def _is_lost(self, gpu: int) -> bool:
        return gpu in self.lost and len(self.asked) > self.lost[gpu]

    def _beside_s(self, job: CopyJob, sizes: Sequence[int]) -> float:
        pairs = {frozenset(copy.gpus) for copy in job.copies if copy.kind == "p2p_direct"}
        new = pairs - self.peers_open
        self.peers_open |= new
        on_host = sum(
            size for size, copy in zip(sizes, job.copies, strict=True) if copy.kind in ("h2d", "d2h")
        )
        return self.each_s + self.peer_s * len(new) + 2 * on_host / (1e9 * self.host_gb_per_s)

    def _rates(self, job: CopyJob) -> list[float]:
        part = (0.25 if len(self.asked) <= self.ramp_up else 1.0) / self.slower
        rates = [self.rate(copy) * part for copy in job.copies]
        if job.group is None or job.kind not in ("h2d", "d2h"):
            return rates
        alone = {copy.gpus[0]: rate for copy, rate in zip(job.copies, rates, strict=True)}
        shares = fair_rates(alone, dict(self.uplinks))
        return [shares[copy.gpus[0]] for copy in job.copies]

    def _time(self, job: CopyJob, copy: Copy, size: int, rate: float) -> CopyTime:
        reason = self.faults.get((copy.kind, copy.source, copy.destination))
        if any(self._is_lost(gpu) for gpu in copy.gpus):
            reason = LOST
        if self.hang_on == (copy.source, copy.destination):
            self.hung |= set(copy.gpus)
            reason = "TIMED_OUT"
        if reason is not None:
            return CopyTime(failure=failure_of(job, copy, reason, "it fails"))
        if job.kind == "latency":
            return CopyTime(bytes=size, microseconds=2.5)
        return CopyTime(bytes=size, gb_per_s=copy.times_counted * rate)


@dataclass(frozen=True)
class DeviceDouble:
    ordinal: int
    pci_address: str


@dataclass(frozen=True)
class CudaDouble:
    devices: tuple[DeviceDouble, ...]
    driver_version: str = "12.4"
    doubt: str | None = None


@dataclass
class SamplerDouble:
    gpu: int
    facts: Callable[[], dict[str, Any]]

    def sample(self) -> tuple[GpuSample, ...]:
        return (GpuSample(gpu=self.gpu, **self.facts()),)

    def close(self) -> None:
        pass


AWAKE: dict[str, Any] = {"pstate": "P0", "graphics_mhz": 1400, "memory_mhz": 1200, "pcie_gen": 3}
ASLEEP: dict[str, Any] = {"pstate": "P8", "graphics_mhz": 139, "memory_mhz": 405, "pcie_gen": 1}


def address(gpu: int) -> str:
    return f"0000:{gpu + 1:02x}:00.0"


def machine(gpus: int, *, nodes: int = 1) -> Machine:
    """Return a machine whose GPUs are spread over the NUMA nodes, the first ones on node 0."""
    numa = tuple(
        NumaNode(
            index=node,
            cpus=f"{4 * node}-{4 * node + 3}",
            memory_mib=64_000,
            distances=tuple(10 if other == node else 21 for other in range(nodes)),
        )
        for node in range(nodes)
    )
    cards = tuple(
        Gpu(index=gpu, pci_address=address(gpu), numa_node=gpu * nodes // gpus) for gpu in range(gpus)
    )
    return Machine(source="live", host=Host(numa_nodes=numa), gpus=cards)


def doors(
    engine: EngineDouble,
    *,
    facts: Callable[[], dict[str, Any]] = lambda: AWAKE,
    order: Sequence[int] | None = None,
    host: HostMemoryRates | None = None,
    environment: Mapping[str, str] | None = None,
) -> Doors:
    """Return the doors of a session to the double; `order`: GPUs in CUDA's order, those left out hidden."""
    shown = range(engine.gpus) if order is None else order
    devices = tuple(DeviceDouble(ordinal, address(gpu)) for ordinal, gpu in enumerate(shown))

    @contextmanager
    def open_cuda() -> Iterator[CudaDouble]:
        yield CudaDouble(devices)

    @contextmanager
    def open_engine(
        cuda: Any, ordinals: Mapping[int, int], node_cpus: Mapping[int, Sequence[int]], pinned_bytes: int
    ) -> Iterator[EngineDouble]:
        yield engine

    return Doors(
        open_cuda=open_cuda,
        open_engine=open_engine,
        open_sampler=lambda gpu: SamplerDouble(gpu, facts),
        host_memory=lambda _machine, _request: host or HostMemoryRates(),
        environment=environment or {},
        now=engine.clock,
    )


def measure(
    machine: Machine,
    request: SessionRequest,
    progress: Callable[[SessionProgress], None] | None = None,
    *,
    doors: Doors,
    on_job: Callable[[CopyJob], None] = lambda job: None,
) -> Bandwidth:
    """Measure as `measure_watched` does, in this process. `on_job` is called with each job that starts."""

    def on_news(news: object) -> None:
        if progress is not None and isinstance(news, SessionProgress):
            progress(news)
        if isinstance(news, CopyJob):
            on_job(news)

    check(machine, request)
    begun = doors.now()
    results = Results()
    refusal = Measuring(machine, request, results, doors, on_news, begun).run()
    return bandwidth_of(machine, request, results, refusal, 1_700_000_000.0, doors.now() - begun)
