"""Copies to measure and their results, as values, and the interface of the engine that copies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from gputopo.values.bandwidth import READING, Between, CopiedKind, Failure, Level, Method, Path

CopyKind = Literal["h2d", "d2h", "p2p_direct", "p2p_staged", "d2d_local"]


class Copy(Between, frozen=True):
    """A copy in one direction.

    `numa_node`: the host memory's node; None: any node. A staged copy goes through pinned host memory.
    """

    kind: CopyKind
    pinned: bool | None = None  # whether the host memory is page-locked; None between GPUs
    method: Method = "copy_engine"
    numa_node: int | None = None

    @property
    def acting_gpu(self) -> int:
        """The GPU whose copy engine or kernel copies: between GPUs the source, unless the copy reads."""
        return self.gpus[-1 if self.kind == "p2p_staged" or self.method in READING else 0]

    @property
    def times_counted(self) -> int:
        """How often a rate counts each byte: twice if it is read and written in the same memory."""
        return 2 if self.kind == "d2d_local" else 1

    @property
    def near_gpu(self) -> int | None:
        """The GPU near the host memory in use: the source if the copy is staged. None: it uses none."""
        return self.gpus[0] if self.kind in ("h2d", "d2h", "p2p_staged") else None


class CopyJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Copies that run at once and are timed in one window. A single copy runs by itself.

    `kind`: the kind of the result: the kind of its copies, `bidirectional` (two copies, the result is the sum
    of the rates) or `latency` (one copy of a few bytes, repeated). `group`: the name of the set if each copy
    keeps its own result. `bytes`: of each copy in one window; None: chosen by its speed, at least
    `min_bytes`.
    """

    kind: CopiedKind
    copies: tuple[Copy, ...]
    group: str | None = None
    bytes: int | None = None
    min_bytes: int = 0

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that its copies use, each once."""
        return tuple(dict.fromkeys(gpu for copy in self.copies for gpu in copy.gpus))


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested: GPUs (None: all), level, and the host memory's node (None: each GPU's).

    `sizes`: bytes of each copy. `loops`: counted windows. gputopo chooses both if they are not given.
    `soak_s`: run a soak of this many seconds instead.
    """

    gpus: tuple[int, ...] | None = None
    level: Level = "quick"
    numa: int | None = None
    sizes: tuple[int, ...] = ()
    loops: int | None = None
    soak_s: float | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide which copies exist.

    `nodes` and `far_nodes`: each GPU's near and farthest NUMA node, if known. `peers`: (a, b) if the driver
    gives `a` access to the memory of `b`. `sizes`, `loops`: as in SessionRequest.
    """

    gpus: tuple[int, ...]  # the measured GPUs, by index in the machine
    level: Level = "quick"
    nodes: Mapping[int, int] = {}
    far_nodes: Mapping[int, int] = {}
    peers: frozenset[tuple[int, int]] = frozenset()
    no_kernels: Mapping[int, str] = {}  # GPUs on which no kernel can run, with the reason
    no_local: Mapping[int, str] = {}  # GPUs whose memory cannot be measured, with the reason
    l2_bytes: Mapping[int, int] = {}  # the L2 cache of each GPU
    sizes: tuple[int, ...] = ()
    loops: int | None = None


def group_name(what: str, gpus: Sequence[int]) -> str:
    """Return the name of copies that ran at the same time: `h2d gpus:0,1,2`."""
    return f"{what} gpus:{','.join(map(str, gpus))}"


def describe(job: CopyJob) -> str:
    """Return a job in words: `h2d host -> gpu:0`, `h2d gpus:0,1`."""
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
    """Return the path between two GPUs in `bidirectional` and `latency`, or None for all other jobs."""
    if job.kind not in ("bidirectional", "latency"):
        return None
    paths: dict[CopyKind, Path] = {"p2p_direct": "direct", "p2p_staged": "staged"}
    return paths.get(job.copies[0].kind)


def failure_of(job: CopyJob, copy: Copy, reason: str, says: str) -> Failure:
    """Return the failure of a copy. In a job with its own kind, such as `bidirectional`, it has that kind."""
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
    """The result of one copy in one window. If `failure` is set, the other fields have no meaning.

    `bytes` and `seconds`: of the whole copy, or of one message if it was sent several times. `gb_per_s` (10^9
    bytes; 0 for a latency): over the time that all copies ran together. Bytes that are read and written in
    the same memory are counted twice. A staged copy of many chunks is measured from the first arrival to the
    last.
    """

    bytes: int = 0
    seconds: float = 0.0
    gb_per_s: float = 0.0
    microseconds: float | None = None  # of one access or one small copy, only for a latency
    numa_node: int | None = None  # the node with most of the host memory, or None if unknown
    numa_wanted: int | None = None  # the requested node, if some of the memory is on another
    failure: Failure | None = None


class CopyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat of a job: its copies in the job's order.

    `span`: start and end of the time in which all copies ran (time.perf_counter), or None if they ran with
    interruptions. `skew_s`: the longest time between the starts of two streams of one GPU.
    """

    copies: tuple[CopyTime, ...]
    span: tuple[float, float] | None = None
    skew_s: float = 0.0


class WindowRunner(Protocol):
    """Runs single windows of copies. GPUs are identified by their index in the machine.

    No method raises for a hardware error: in `measure`, it is a Failure of its copy.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Return notes about what limits the measured rates."""

    @property
    def unreturned(self) -> Sequence[Failure]:
        """Return the copies that were in progress at an interruption and did not end."""

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        """Run one window and verify its data. `while_running` is called while it runs.

        `sizes`: bytes of each copy. They may be reduced if the job does not specify them.
        """

    def peer_access(self, a: int, b: int) -> bool:
        """Return whether GPU `a` can get access to the memory of GPU `b`."""

    def free_bytes(self, gpu: int) -> int:
        """Return the free device memory, or 0 if the GPU does not answer."""

    def l2_bytes(self, gpu: int) -> int | None:
        """Return the size of a GPU's L2 cache, or None if CUDA does not report it."""

    def supports(self, gpu: int, method: str) -> str | None:
        """Return the reason why a method does not work on a GPU, or None if it works.

        A GPU on which `copy_engine` does not work cannot be measured at all.
        """
