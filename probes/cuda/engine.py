"""Times copies on the devices, one window at a time, releases all its copies together and checks all data."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType

from msgspec.structs import replace

from gputopo.probes.copy_jobs import Copy, CopyJob, CopyTime, CopyWindow, failure_of
from gputopo.probes.cuda.blocking import NOT_HELD, StreamBlocker
from gputopo.probes.cuda.chunking import common_window, fitting, rate_alone, rate_within
from gputopo.probes.cuda.door import Cuda, CudaError
from gputopo.probes.cuda.gpus import EngineGpus, NotUsedError
from gputopo.probes.cuda.host_memory import PINNED_BYTES
from gputopo.probes.cuda.layout import Places, cut, host_nodes, places
from gputopo.probes.cuda.pattern import seed_of
from gputopo.probes.cuda.transfer import PageableTransfer, Transfer, starts_apart_s
from gputopo.probes.cuda.waiting import PATIENCE_S, TIMED_OUT, Waiter
from gputopo.probes.numa import NumaMemory, lies_on, most_of
from gputopo.values.bandwidth import KERNELS, Failure

_GB = 1e9


def times(
    job: CopyJob, transfers: Mapping[int, Transfer], ends: Mapping[int, Sequence[float]]
) -> dict[int, CopyTime]:
    """Return the time of each successful copy. `ends`: as from `Transfer.ends`, by the copies' numbers."""
    window = common_window(list(ends.values())) if ends else 0.0
    copy_times: dict[int, CopyTime] = {}
    for number, ends_s in ends.items():
        transfer = transfers[number]
        if len(ends) > 1:
            rate = rate_within(transfer.sizes, ends_s, window, staged=transfer.staged)
        else:
            rate = rate_alone(transfer.sizes, ends_s, staged=transfer.staged)
        seconds = ends_s[-1] / transfer.repeats
        is_latency = job.kind == "latency"
        copy_times[number] = CopyTime(
            bytes=transfer.chunks[0].size if transfer.repeats > 1 else sum(transfer.sizes),
            seconds=seconds,
            gb_per_s=0.0 if is_latency else rate / _GB * transfer.copy.times_counted,
            microseconds=seconds * 1e6 if is_latency else None,
        )
    return copy_times


# Largest difference between starts: rates of copies at once use the time from their common start. Not
# measured; chosen because it is above the resolution of event clocks.
_SKEW_SHARE = 0.01
_SKEWED = (
    "streams of one GPU started more than 1% of a window apart: rates of copies at once are less certain"
)
_NOT_HELD_SAYS = "the driver did not accept all copies of the window while its streams were blocked"


class Engine:
    """Measures copies on the GPUs of a machine. A context manager, for one thread.

    `ordinals`: CUDA's number of each GPU of the machine. `node_cpus`: the CPUs of each NUMA node. The thread
    is bound to them while it allocates and copies host memory of that node. `patience_s`: seconds that a
    window may take in addition to the time for its bytes at 50 MB/s. `pinned_bytes`: limit of page-locked
    host memory. `unreturned`: the copies that were in progress at an interruption and did not end.
    """

    def __init__(
        self,
        cuda: Cuda,
        ordinals: Mapping[int, int],
        node_cpus: Mapping[int, Sequence[int]] | None = None,
        patience_s: float = PATIENCE_S,
        pinned_bytes: int = PINNED_BYTES,
    ) -> None:
        self._cuda = cuda
        self._node_cpus = dict(node_cpus or {})
        self._numa = NumaMemory()
        self._gpus = EngineGpus(cuda, ordinals, pinned_bytes, len(self._node_cpus), self._numa)
        self._blocker = StreamBlocker(cuda, patience_s)
        self._waiter = Waiter(cuda, patience_s)
        self._windows = 0
        self._notes: dict[str, None] = {}
        self.unreturned: list[Failure] = []

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocker.release()
        self._gpus.close()
        if not self.hung:
            self._blocker.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Doubts: host memory on another node, streams that started apart or were blocked by a kernel."""
        return (*self._notes, *self._blocker.notes)

    @property
    def hung(self) -> bool:
        """Whether a copy did not end. Its GPU is not used again."""
        return self._gpus.hung

    def peer_access(self, a: int, b: int) -> bool:
        """Return whether GPU `a` can get access to the memory of GPU `b`.

        False if the driver does not answer.
        """
        if a not in self._gpus.of or b not in self._gpus.of or a == b:
            return False
        with contextlib.suppress(CudaError):
            return self._cuda.can_reach(self._gpus.of[a].ordinal, self._gpus.of[b].ordinal)
        return False

    def free_bytes(self, gpu: int) -> int:
        """Return the free device memory of a GPU, or 0 if it does not answer."""
        card = self._gpus.of.get(gpu)
        if card is None or card.unusable is not None:
            return 0
        try:
            card.use()
            return self._cuda.free_and_total()[0]
        except CudaError as error:
            self._gpus.blame([gpu], error)
            return 0

    def l2_bytes(self, gpu: int) -> int | None:
        """Return the size of a GPU's L2 cache, or None if CUDA does not report it."""
        card = self._gpus.of.get(gpu)
        return None if card is None else card.device.l2_bytes

    def supports(self, gpu: int, method: str) -> str | None:
        """Return why a GPU cannot copy with a method, or None if it can."""
        card = self._gpus.of.get(gpu)
        if card is None:
            return "CUDA does not see this GPU"
        if card.unusable is not None:
            return str(card.unusable)
        if method == "copy_engine":
            return None
        if method not in KERNELS:
            return f"{method} is not a copy method of GPUs"
        try:
            card.load_kernels()
        except CudaError as error:
            return str(error)
        return None if card.no_kernels is None else f"the driver does not take the kernels: {card.no_kernels}"

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        """Run all copies of a job at once, `sizes[i]` bytes for copy i, and check the data that arrived.

        If the job does not specify its bytes and a buffer is smaller than one of the copies, all copies are
        reduced, so that every byte is checked. An error is a failure of its copy only; the others continue.
        `while_running` is called repeatedly while the copies run. If it is interrupted, it waits for copies
        in progress. Raises ValueError if there is not one size for each copy.
        """
        if len(sizes) != len(job.copies):
            raise ValueError(f"{len(job.copies)} copies and {len(sizes)} sizes")
        self._windows += 1
        wrong: dict[int, CudaError] = {}
        ends: dict[int, list[float]] = {}
        ready: dict[int, Transfer] = {}
        nodes = {copy.numa_node for copy in job.copies}
        node = nodes.pop() if len(nodes) == 1 else None
        with self._numa.bound(node, None if node is None else self._node_cpus.get(node)):
            try:
                self._prepare(job, sizes, ready, wrong)
                released_s = self._run(ready, wrong, while_running)
                for number, transfer in ready.items():
                    if number not in wrong:
                        with self._noting(number, transfer.copy, wrong):
                            ends[number] = transfer.ends()
                            transfer.verify(self._waiter)
            except BaseException:
                self._settle(job)
                raise
            good = {number: ends[number] for number in ends if number not in wrong}
            skew_s = 0.0
            with contextlib.suppress(CudaError):  # a GPU that was lost meanwhile
                skew_s = starts_apart_s([ready[number] for number in good])
            done = times(job, ready, good)
            done = {number: self._placed(job.copies[number], done[number]) for number in done}
        first_end = common_window(list(good.values())) if good else 0.0
        if skew_s > _SKEW_SHARE * first_end:
            self._notes[_SKEWED] = None
        return CopyWindow(
            skew_s=skew_s,
            span=None if released_s is None else (released_s, released_s + first_end),
            copies=tuple(
                CopyTime(failure=failure_of(job, copy, wrong[number].reason, wrong[number].says))
                if number in wrong
                else done[number]
                for number, copy in enumerate(job.copies)
            ),
        )

    def _prepare(
        self, job: CopyJob, sizes: Sequence[int], ready: dict[int, Transfer], wrong: dict[int, CudaError]
    ) -> None:
        seed = seed_of(self._windows)
        for card in self._gpus.of.values():
            card.begin_window()
        if not self.hung:  # freeing host memory waits for every GPU
            with contextlib.suppress(CudaError):
                self._gpus.host.free_areas(
                    host_nodes(job.copies, pinned=True), host_nodes(job.copies, pinned=False)
                )
        memory: dict[int, Places] = {}
        for number, copy in enumerate(job.copies):
            with self._noting(number, copy, wrong):
                self._gpus.require(copy)
                self._gpus.open_peers(copy, job.copies)
                memory[number] = places(job, number, self._gpus.of, self._gpus.host, self._node_cpus)
        counts = [sizes[number] for number in memory]
        if job.bytes is None and job.kind != "latency":
            counts = fitting(counts, [place.target.capacity for place in memory.values()])
        for (number, place), size in zip(memory.items(), counts, strict=True):
            with self._noting(number, job.copies[number], wrong):
                transfer = cut(job, number, size, seed, place)
                transfer.prepare(self._waiter)
                if not isinstance(transfer, PageableTransfer):
                    for card, _ in transfer.streams:
                        self._blocker.prepare(card)
                ready[number] = transfer

    def _run(
        self,
        ready: Mapping[int, Transfer],
        wrong: dict[int, CudaError],
        while_running: Callable[[], None] | None,
    ) -> float | None:
        """Enqueue all copies in blocked streams, release them, and wait for them.

        Returns the time of the release (time.perf_counter), or None if no stream was blocked.
        """
        held = any(not isinstance(transfer, PageableTransfer) for transfer in ready.values())
        if held:
            self._blocker.begin()
        broken: list[Transfer] = []
        for number, transfer in ready.items():
            with self._noting(number, transfer.copy, wrong):
                if isinstance(transfer, PageableTransfer):
                    transfer.run(self._waiter, while_running)
                else:
                    transfer.enqueue(self._blocker)
            if number in wrong:
                broken.append(transfer)
        released_s = time.perf_counter() if held else None
        self._blocker.release()
        if held and self._blocker.gave_up:
            for number in ready:
                wrong.setdefault(number, CudaError(NOT_HELD, _NOT_HELD_SAYS))
            broken = list(ready.values())
        size = sum(sum(transfer.sizes) for transfer in ready.values())
        lasts = {
            (number, place): event
            for number, transfer in ready.items()
            if number not in wrong
            for place, event in enumerate(transfer.lasts)
        }
        for (number, _), error in sorted(self._waiter.each(lasts, size, while_running).items()):
            wrong.setdefault(number, error)
            self._gpus.blame(ready[number].copy.gpus, error)
        self._drain(broken)
        return released_s

    def _drain(self, broken: Iterable[Transfer]) -> None:
        """Wait for the enqueued parts of copies that then failed: they must not disturb later windows."""
        for transfer in broken:
            if any(self._gpus.of[gpu].unusable is not None for gpu in transfer.copy.gpus):
                continue
            try:
                for card, stream in transfer.streams:
                    self._waiter.stream(stream, card.event(), sum(transfer.sizes))
            except CudaError as error:
                self._gpus.blame(transfer.copy.gpus, error)

    def _settle(self, job: CopyJob) -> None:
        """After an interruption, release the streams, and wait until no copy uses memory that will be freed.

        Copies that do not end are in `unreturned`. If it is interrupted again, all copies are.
        """
        self._blocker.release()
        error = CudaError(TIMED_OUT, "it was in progress at the interruption and was not waited for")
        waiting = {gpu for gpu in job.gpus if gpu in self._gpus.of}
        while waiting:
            gpu = min(waiting)
            try:
                for stream in self._gpus.of[gpu].streams:
                    self._waiter.stream(stream, self._gpus.of[gpu].event(), 0)
            except CudaError as failed:
                self._give_up(job, {gpu}, failed)
            except BaseException:
                self._give_up(job, waiting, error)
                raise
            waiting.remove(gpu)

    def _give_up(self, job: CopyJob, gpus: set[int], error: CudaError) -> None:
        self._gpus.blame(gpus, error)
        if error.reason == TIMED_OUT:
            self.unreturned += [
                failure_of(job, copy, error.reason, error.says)
                for copy in job.copies
                if not gpus.isdisjoint(copy.gpus)
            ]

    @contextlib.contextmanager
    def _noting(self, number: int, copy: Copy, wrong: dict[int, CudaError]) -> Iterator[None]:
        """Note an error of one copy, and continue."""
        try:
            yield
        except CudaError as error:
            wrong[number] = error
            if not isinstance(error, NotUsedError):
                self._gpus.blame(copy.gpus, error)

    def _placed(self, copy: Copy, done: CopyTime) -> CopyTime:
        if copy.near_gpu is None or copy.numa_node is None:
            return done
        nodes = self._gpus.host.nodes(copy.numa_node, pinned=copy.pinned is not False)
        wanted = None if lies_on(nodes, copy.numa_node) else copy.numa_node
        if len(self._node_cpus) > 1 and (wanted is not None or not nodes):
            self._notes |= dict.fromkeys(self._numa.refusals.values())
        return replace(done, numa_node=most_of(nodes), numa_wanted=wanted)
