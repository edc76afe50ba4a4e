"""The box that the double imitates, as values, and the file with it that the library reads.

Rates are bytes per second. GPUs have their index in the machine, which is CUDA's ordinal as well.
`src/box.c` reads the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# `h2d` and `d2h`: pinned memory. `p2p`: by a copy engine with peer access; `pull`: by the destination's copy
# engine. `staged`: the driver's own path without peer access. `read`, `write`: a kernel reads or writes a
# peer. `memory`: a kernel on its own card's memory.
PathKind = Literal[
    "h2d",
    "d2h",
    "h2d_pageable",
    "d2h_pageable",
    "p2p",
    "pull",
    "staged",
    "read",
    "write",
    "local",
    "memory",
]
HOST_KINDS: tuple[PathKind, ...] = ("h2d", "d2h", "h2d_pageable", "d2h_pageable")

FaultKind = Literal["wrong", "once", "fail", "late", "hang"]
MemoryOperations = Literal["work", "refused", "ignored"]


@dataclass(frozen=True)
class Route:
    """The resources that a copy uses, each with how often a byte crosses it."""

    over: tuple[tuple[str, float], ...]
    latency_us: float = 1.3
    chase_ns: float = 0.0  # one step along a chain of pointers


@dataclass(frozen=True)
class Fault:
    """What goes wrong on a path, after the first `after` copies, which are correct.

    `wrong`: a byte differs; `once`: in only one copy; `fail`: the call returns `code`; `late`: the event
    returns it; `hang`: the copy never ends. `a` and `b` as in `CudaSpec.routes`; None: any.
    """

    what: FaultKind
    kind: PathKind
    a: int | None = None
    b: int | None = None
    code: int = 0
    after: int = 0


@dataclass(frozen=True)
class CudaGpu:
    """A GPU as CUDA shows it. `refuse_above`: larger allocations, in bytes, are refused; None: none is.

    `lost_code`: what every call returns after `lost_after` copies; 0: the GPU is never lost. `l2_bytes`:
    local copies that fit are four times as fast as the memory; copies up to four times larger are somewhat
    faster.
    """

    name: str
    address: str
    memory_bytes: int = 8 << 30
    used_bytes: int = 0
    compute_capability: tuple[int, int] = (7, 0)
    refuse_above: int | None = None
    lost_code: int = 0
    lost_after: int = 0
    l2_bytes: int = 0


@dataclass(frozen=True)
class Settings:
    """How the double behaves.

    `start_us`: for the first copy or kernel of a stream that was idle or had to wait. `polls`: that return
    "not ready". `peer_limit`: how many devices one device may reach; 0: all. `memory_on`: the only node
    whose memory the process may use. `memory_operations`: cuStreamWaitValue32 works; the call is refused; or
    it is accepted, but the stream does not wait.
    """

    driver: int = 12_040
    init_code: int = 0
    start_us: float = 5.0
    peer_limit: int = 8
    memory_on: int | None = None
    memory_operations: MemoryOperations = "work"
    polls: int = 2
    depth: int = 0  # commands that a stream takes before the next call waits; 0: any number
    spare_bytes: int = 0  # faults of paths do not affect smaller copies
    lacks: tuple[str, ...] = ()  # calls that this driver does not have yet


@dataclass(frozen=True)
class CudaSpec:
    """One box. `routes`: by kind, GPU, and the node of the host memory or the destination GPU.

    For `local` and `memory`, the third key is 0. `peers`: pairs in which the first GPU may access the
    second's memory.
    """

    gpus: tuple[CudaGpu, ...]
    resources: Mapping[str, float]
    routes: Mapping[tuple[PathKind, int, int], Route]
    peers: frozenset[tuple[int, int]] = frozenset()
    cpus: tuple[tuple[int, ...], ...] = ((0,),)
    faults: tuple[Fault, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def rate(self, kind: PathKind, a: int, b: int = 0) -> float:
        """Return the rate of a copy that does not share its path, in bytes per second."""
        return min(self.resources[name] / weight for name, weight in self.routes[kind, a, b].over)

    def text(self) -> str:
        """Return the file that the library reads."""
        numbers = {name: index for index, name in enumerate(self.resources)}
        lines = _settings(self.settings)
        lines += [f"node {node} {','.join(map(str, cpus))}" for node, cpus in enumerate(self.cpus)]
        lines += [f"resource {numbers[name]} {rate!r} {name}" for name, rate in self.resources.items()]
        lines += [_gpu(ordinal, gpu) for ordinal, gpu in enumerate(self.gpus)]
        lines += [_route(kind, a, b, route, numbers) for (kind, a, b), route in self.routes.items()]
        lines += [f"peer {a} {b}" for a, b in sorted(self.peers)]
        lines += [_fault(fault) for fault in self.faults]
        return "\n".join(lines) + "\n"

    def write(self, file: Path) -> Path:
        """Write the file and return it."""
        file.write_text(self.text(), encoding="utf-8")
        return file


def _settings(settings: Settings) -> list[str]:
    lines = [f"driver {settings.driver}", f"init {settings.init_code}", f"polls {settings.polls}"]
    lines += [f"spare {settings.spare_bytes}", f"depth {settings.depth}", f"start_us {settings.start_us}"]
    lines += [f"memory_operations {settings.memory_operations}"]
    lines += [f"peer_limit {settings.peer_limit}"]
    lines += [] if settings.memory_on is None else [f"memory_on {settings.memory_on}"]
    return [*lines, f"lacks {' '.join(settings.lacks)}"] if settings.lacks else lines


def _gpu(ordinal: int, gpu: CudaGpu) -> str:
    major, minor = gpu.compute_capability
    return (
        f"gpu {ordinal} address={gpu.address} memory={gpu.memory_bytes} used={gpu.used_bytes}"
        f" major={major} minor={minor} refuse_above={gpu.refuse_above or 0}"
        f" lost_code={gpu.lost_code} lost_after={gpu.lost_after}"
        f" l2={gpu.l2_bytes} name={gpu.name}"
    )


def _route(kind: PathKind, a: int, b: int, route: Route, numbers: Mapping[str, int]) -> str:
    over = ",".join(f"{numbers[name]}*{weight!r}" for name, weight in route.over)
    return f"path {kind} {a} {b} latency_us={route.latency_us} chase_ns={route.chase_ns} over={over}"


def _fault(fault: Fault) -> str:
    a, b = (-1 if place is None else place for place in (fault.a, fault.b))
    return f"fault {fault.what} {fault.kind} {a} {b} {fault.code} {fault.after}"
