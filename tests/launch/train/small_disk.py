"""A disk that is full: no file of this process may grow beyond a size (RLIMIT_FSIZE)."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_disk(free_bytes: int | None) -> Iterator[None]:
    """Let writes fail as on a full disk once a file has that size; None: let them be."""
    if free_bytes is None:
        yield
        return
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
