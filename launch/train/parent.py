"""Detects a stopped launcher of a worker or server (SIGSTOP): the other hosts treat it as ended."""

import os
from collections.abc import Callable
from pathlib import Path

# Counted only while this process runs, so that a suspended job is not ended. The other hosts miss a launcher
# after 10 s (`messages.SILENT_S`).
PARENT_STOPPED_S = 12.0
LOOK_S = 1.0  # between two checks; not measured


def await_stopped_parent(is_told: Callable[[], bool]) -> float:
    """Wait until the parent has been stopped for `PARENT_STOPPED_S`; return the seconds that it was stopped.

    `is_told`: waits for `LOOK_S`, then returns whether this process must end for another reason. If so,
    return at once.
    """
    stopped_s = 0.0
    while stopped_s < PARENT_STOPPED_S and not is_told():
        stopped_s = stopped_s + LOOK_S if _is_stopped(os.getppid()) else 0.0
    return stopped_s


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "T"
