"""Host memory written and compared by several threads at once: one alone takes longer than the copy did."""

import os
from collections.abc import Callable
from functools import partial

from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.threads import NoThreadsError, at_once

# Eight threads draw what one memory node gives. Below the least part, starting a thread takes longer.
MOST_THREADS = 8
LEAST_PART_BYTES = 8 * 2**20


def in_parts(size: int, work: Callable[[int, int], None]) -> None:
    """Call `work(offset, bytes)` for parts of `size` bytes, whole blocks but the last, each in a thread.

    What it calls must give Python's lock up (ctypes does). The threads have the CPUs of the calling one, and
    have ended when this comes back, however it does. Raises what the first part in order raised.
    """
    count = min(MOST_THREADS, len(os.sched_getaffinity(0)), size // LEAST_PART_BYTES)
    if count < 2:
        work(0, size)
        return
    each = -(-size // count // BLOCK_BYTES) * BLOCK_BYTES
    parts = [partial(work, offset, min(each, size - offset)) for offset in range(0, size, each)]
    try:
        at_once(parts)
    except NoThreadsError:
        work(0, size)
