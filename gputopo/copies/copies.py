"""What is to be copied, and what came out, as values; and the engine that copies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from gputopo.values.bandwidth import READING, Between, Failure, Kind, Level, Method, Path

CopyKind = Literal["h2d", "d2h", "p2p_direct", "p2p_staged", "d2d_local"]


class Copy(Between, frozen=True):
    """One direction of copying.

    `numa_node`: the host memory's node, None: wherever it comes to lie. A staged copy goes through pinned
    host memory.
    """

    kind: CopyKind
    pinned: bool | None = None  # whether the host side is page-locked; None between GPUs
    method: Method = "copy_engine"
    numa_node: int | None = None

    @property
    def acting_gpu(self) -> int:
        """The GPU whose copy engine or kernel does it: between GPUs the source's, unless it reads."""
        return self.gpus[-1 if self.kind == "p2p_staged" or self.method in READING else 0]

    @property
    def near_gpu(self) -> int | None:
        """The GPU whose host memory it uses: near the source if staged; None: it uses none."""
        return self.gpus[0] if self.kind in ("h2d", "d2h", "p2p_staged") else None


class CopyJob(msgspec.Struct, frozen=True, kw_only=True):
    """Copies that run at once and are timed in one window; a single one runs alone.

    `kind`: what the result is called: that of its copies, `bidirectional` (two copies, their sum is the
    number) or `latency` (one copy of a few bytes, repeated). `group` names the set where each copy keeps its
    own number. `bytes`: of each copy in one window; None: chosen by its speed, and `min_bytes` at least.
    """

    kind: Kind
    copies: tuple[Copy, ...]
    group: str | None = None
    bytes: int | None = None
    min_bytes: int = 0

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that its copies touch, each once."""
        return tuple(dict.fromkeys(gpu for copy in self.copies for gpu in copy.gpus))


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for: which GPUs (None: all), how much, and which node the host memory is to lie on
    (None: each GPU's own). `sizes`: bytes of each copy, `loops`: windows that count; else both are chosen.
    `soak_s`: copies under load for so long instead."""

    gpus: tuple[int, ...] | None = None
    level: Level = "quick"
    numa: int | None = None
    sizes: tuple[int, ...] = ()
    loops: int | None = None
    soak_s: float | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which copies there are.

    `nodes` and `far_nodes`: each GPU's near and farthest NUMA node where known. `peers`: (a, b) where the
    driver lets `a` reach the memory of `b`. `sizes`, `loops`: as in Request.
    """

    gpus: tuple[int, ...]  # indices of the machine, those that are measured
    level: Level = "quick"
    nodes: Mapping[int, int] = {}
    far_nodes: Mapping[int, int] = {}
    peers: frozenset[tuple[int, int]] = frozenset()
    no_kernels: Mapping[int, str] = {}  # GPUs on which no kernel can run, with the reason
    no_local: Mapping[int, str] = {}  # where no copy within the memory can be measured
    l2_bytes: Mapping[int, int] = {}  # the L2 cache of each GPU
    sizes: tuple[int, ...] = ()
    loops: int | None = None


def group_name(what: str, gpus: Sequence[int]) -> str:
    """Write the name of copies that ran at the same time: `h2d gpus:0,1,2`."""
    return f"{what} gpus:{','.join(map(str, gpus))}"


def describe(job: CopyJob) -> str:
    """Return what a job copies: `h2d host -> gpu:0`, `h2d gpus:0,1`."""
    if job.group is not None:
        return job.group if job.bytes is None else f"{job.group} {job.bytes} bytes"
    copy = job.copies[0]
    arrow = "<->" if job.kind == "bidirectional" else "->"
    words = [job.kind, f"{copy.source} {arrow} {copy.destination}"]
    if copy.pinned is False:
        words.append("pageable")
    if job.kind in ("bidirectional", "latency") and path_of(job):
        words.append(str(path_of(job)))
    if copy.method != "copy_engine":
        words.append(copy.method)
    if job.bytes is not None and job.kind != "latency":
        words.append(f"{job.bytes} bytes")
    return " ".join(words)


def path_of(job: CopyJob) -> Path | None:
    """Return how a pair of GPUs is joined in `bidirectional` and `latency`; None for all other jobs."""
    if job.kind not in ("bidirectional", "latency"):
        return None
    paths: dict[CopyKind, Path] = {"p2p_direct": "direct", "p2p_staged": "staged"}
    return paths.get(job.copies[0].kind)


def failure_of(job: CopyJob, copy: Copy, reason: str, says: str) -> Failure:
    """Return the failure of a copy, named by its job: a copy of `bidirectional` is called that."""
    return Failure(
        kind=job.kind,
        source=copy.source,
        destination=copy.destination,
        reason=reason,
        says=says,
        method=copy.method,
        path=path_of(job),
        pinned=copy.pinned,
        group=job.group,
    )


class CopyTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one copy did in one window. `failure` set: nothing else counts.

    `bytes` and `seconds`: of the whole copy, of one message where it went several times. `gb_per_s` (10^9
    bytes; 0 for a latency): over the time that all copies ran together; what is read and written in one
    memory counts twice; a staged copy of many chunks is counted between the arrivals of its first and its
    last one.
    """

    bytes: int = 0
    seconds: float = 0.0
    gb_per_s: float = 0.0
    microseconds: float | None = None  # of one access or one small copy, for a latency only
    numa_node: int | None = None  # where most of the host memory lies, None where unknown
    numa_wanted: int | None = None  # the node it was asked for, where not all lies there
    failure: Failure | None = None


class CopyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat of a job: its copies in the job's order.

    `span`: from when to when all of them ran, by time.perf_counter; None where they did not in one stretch.
    `skew_s`: how far apart the streams of one GPU began.
    """

    copies: tuple[CopyTime, ...]
    span: tuple[float, float] | None = None
    skew_s: float = 0.0


class WindowRunner(Protocol):
    """Runs single windows of copies. GPUs are named by their index in the machine.

    Nothing raises for what the hardware does: in `measure` that is a Failure of its copy.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Return what limits the numbers."""

    @property
    def unreturned(self) -> Sequence[Failure]:
        """Return the copies that were in progress at an interruption and did not come back."""

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        """Run one window, verified. `while_running` is called while it runs.

        `sizes`: bytes of each copy, which may be fewer where the job does not name them.
        """

    def peer_access(self, a: int, b: int) -> bool:
        """Return whether GPU `a` may reach the memory of GPU `b`."""

    def free_bytes(self, gpu: int) -> int:
        """Return the free device memory, 0 where the GPU does not answer."""

    def l2_bytes(self, gpu: int) -> int | None:
        """Return the size of a GPU's L2 cache, None where CUDA does not report it."""

    def supports(self, gpu: int, method: str) -> str | None:
        """Return the reason why a method does not work on a GPU, None where it does.

        Without `copy_engine` it is of no use at all.
        """
