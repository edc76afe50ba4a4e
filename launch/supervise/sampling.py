"""Samples of a run in a separate thread: a driver that hangs must not stop the launcher."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from typing import Protocol

from gputopo.values.run.events import Noticed, Sample


class Sampler(Protocol):
    """Reads the state of a run's GPUs and host (gputopo.probes.run_watch), once every `every_s` seconds."""

    every_s: float

    def look(self) -> tuple[Sample | Noticed, ...]:
        """Read all now; a notice reports what can no longer be read."""


class Samples:
    """The queue of samples; `ready` is a pipe that is readable when there are some."""

    def __init__(self) -> None:
        self.ready, self._notify_fd = os.pipe()
        os.set_blocking(self.ready, False)
        self._waiting: queue.SimpleQueue[Sample | Noticed] = queue.SimpleQueue()
        self._over = threading.Event()

    def take(self) -> Iterator[Sample | Noticed]:
        """Take the samples from the queue, oldest first."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.ready, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()

    def fill(self, sampler: Sampler) -> None:
        """Sample until the end: the work of the thread. It alone closes its end of the pipe."""
        with os.fdopen(self._notify_fd, "wb", buffering=0) as notify:
            while not self._over.is_set():
                for event in sampler.look():
                    self._waiting.put(event)
                with contextlib.suppress(BrokenPipeError):  # the run ended while the driver answered
                    notify.write(b"s")
                self._over.wait(sampler.every_s)

    def end(self) -> None:
        """Ask the thread to end, without waiting for a driver call that hangs."""
        self._over.set()
        os.close(self.ready)


@contextlib.contextmanager
def sampled(sampler: Sampler | None) -> Iterator[Samples | None]:
    """Sample until the end of the context. Without a sampler: None."""
    if sampler is None:
        yield None
        return
    samples = Samples()
    thread = threading.Thread(target=samples.fill, args=(sampler,), name="samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        samples.end()
