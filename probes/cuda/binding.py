"""The measuring thread on the CPUs of one memory node: what it allocates then lies there (first touch)."""

import contextlib
import os
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def bound_to(cpus: Sequence[int] | None) -> Iterator[bool]:
    """Bind the calling thread to CPUs and restore it afterwards. Tells whether it is bound.

    It is not where no CPU is given, none of them may be used (a container's cpuset), or the system has no
    such call. CPUs that may not be used are left out.
    """
    before = _allowed()
    wanted = set(cpus or ()) & before
    if not wanted:
        yield False
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:  # a CPU that went offline in between
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
