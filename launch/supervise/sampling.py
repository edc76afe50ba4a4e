"""Events from other threads, such as samples: a driver that hangs must not stop the launcher."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gputopo.values.run.events import Event, Noticed, Sample
from gputopo.values.run.spec import RunSpec

if TYPE_CHECKING:
    from gputopo.probes import RunWatch

T = TypeVar("T")


class RunSampler(Protocol):
    """Reads the state of a run's GPUs and host (probes/sampling) every `every_s` seconds."""

    every_s: float

    def look(self) -> tuple[Sample | Noticed, ...]:
        """Read everything now; a notice reports what can no longer be read."""


class EventSource(Protocol):
    """Events in addition to a worker's own."""

    @property
    def ready(self) -> int:
        """A file descriptor that is readable if there are events."""

    def take(self) -> Iterator[Event]:
        """Take the available events, oldest first."""


class EventQueue(Generic[T]):
    """A queue of events from other threads; `ready` is a pipe that is readable if there are events."""

    def __init__(self) -> None:
        self.ready, self._notify = os.pipe()
        os.set_blocking(self.ready, False)
        os.set_blocking(self._notify, False)
        self._waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._is_closed = False
        self._pipe = threading.Lock()  # the number of a closed pipe may be used again

    def put(self, *events: T) -> None:
        """Add events from any thread; after `close` they are dropped."""
        if not events:
            return
        for event in events:
            self._waiting.put(event)
        with self._pipe, contextlib.suppress(BlockingIOError):  # a full pipe is readable, too
            if not self._is_closed:
                os.write(self._notify, b"e")

    def take(self) -> Iterator[T]:
        """Take the events from the queue, oldest first."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.ready, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()

    def close(self) -> None:
        """Close the pipe."""
        with self._pipe:
            self._is_closed = True
            os.close(self.ready)
            os.close(self._notify)


def watch_of(spec: RunSpec) -> "RunWatch":
    """Return the sampler of this host and its GPUs in a run, which is a context manager."""
    from gputopo.probes import RunWatch

    on_gpus = spec.backend == "gpu"
    return RunWatch(
        [device.gpu for device in spec.devices if on_gpus and device.rank == 0 and device.gpu is not None]
    )


@contextlib.contextmanager
def sampled(sampler: RunSampler | None) -> Iterator[EventQueue[Sample | Noticed] | None]:
    """Sample in a thread until the end of the context; yield its events, or None without a sampler.

    The end does not wait for a driver call that hangs.
    """
    if sampler is None:
        yield None
        return
    samples: EventQueue[Sample | Noticed] = EventQueue()
    over = threading.Event()
    thread = threading.Thread(target=_sample, args=(sampler, samples, over), name="samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        samples.close()


def _sample(sampler: RunSampler, samples: EventQueue[Sample | Noticed], over: threading.Event) -> None:
    while not over.is_set():
        samples.put(*sampler.look())
        over.wait(sampler.every_s)
