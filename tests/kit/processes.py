"""Whether processes have ended."""

import os
import select
import time
from collections.abc import Iterable

import psutil


def still_running(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Return those that have not ended after this time.

    One that its parent has not reaped has ended: `psutil.wait_procs` would wait for init, which may take
    seconds.
    """
    until_s = time.monotonic() + timeout_s
    running = []
    for process in processes:
        try:
            ends = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        if not select.select([ends], [], [], max(until_s - time.monotonic(), 0.0))[0]:
            running.append(process)
        os.close(ends)
    return running
