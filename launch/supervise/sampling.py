"""Events of other threads, such as samples of a run: a driver that hangs must not stop the launcher."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from gputopo.values.run.events import Event, Noticed, Sample

T = TypeVar("T")


class RunSampler(Protocol):
    """Reads the state of a run's GPUs and host (probes/sampling), once every `every_s` seconds."""

    every_s: float

    def look(self) -> tuple[Sample | Noticed, ...]:
        """Read all now; a notice reports what can no longer be read."""


class EventSource(Protocol):
    """Events besides a worker's own."""

    @property
    def ready(self) -> int:
        """A file descriptor that is readable when there are some."""

    def take(self) -> Iterator[Event]:
        """Take those that are there, oldest first."""


class EventQueue(Generic[T]):
    """Events of other threads for the launcher's; `ready` is a pipe that is readable when there are some."""

    def __init__(self) -> None:
        self.ready, self._notify = os.pipe()
        os.set_blocking(self.ready, False)
        os.set_blocking(self._notify, False)
        self._waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._is_closed = False
        self._pipe = threading.Lock()  # a closed file's number may become another's

    def put(self, *events: T) -> None:
        """Add events. Any thread may; after `close` they are dropped."""
        if not events:
            return
        for event in events:
            self._waiting.put(event)
        with self._pipe, contextlib.suppress(BlockingIOError):  # a full pipe is readable
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


@contextlib.contextmanager
def sampled(sampler: RunSampler | None) -> Iterator[EventQueue[Sample | Noticed] | None]:
    """Sample in a thread until the end of the context. Without a sampler: None.

    A driver call that hangs is not waited for at the end.
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
