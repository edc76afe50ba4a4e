"""Whether the launcher of a worker or server is stopped (SIGSTOP), which the other hosts take for its end."""

import os
from collections.abc import Callable
from pathlib import Path

# Seconds of this process: where all of a job is suspended, it is too. The other hosts miss a launcher after
# 10 s (`messages.SILENT_S`).
PARENT_STOPPED_S = 12.0
LOOK_S = 1.0  # between two looks; not measured


def await_stopped_parent(is_told: Callable[[], bool]) -> float:
    """Return the seconds for which the parent has been stopped, once that is too long; or once `is_told`.

    `is_told`: waits for `LOOK_S`, and returns whether this process is to end for another reason.
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
