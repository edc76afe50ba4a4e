"""Ends a worker or server whose launcher has ended it, or is stopped (SIGSTOP): other hosts miss it then."""

import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gputopo.launch.failure import launcher_stopped
from gputopo.values.errors import ExitCode
from gputopo.values.run.events import encode_line

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
        try:
            state = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = ""
        stopped_s = stopped_s + LOOK_S if state == "T" else 0.0
    return stopped_s


def end_without_launcher(host: str, events_fd: int) -> None:
    """End this process of rank 0 once its launcher was stopped so long that the other hosts have ended."""
    stopped_s = await_stopped_parent(lambda: threading.Event().wait(LOOK_S))
    if select.select([], [events_fd], [], 0)[1]:  # a stopped launcher does not empty it
        os.write(events_fd, encode_line(launcher_stopped(host, stopped_s, time_s=time.time())))
    os._exit(ExitCode.HARDWARE)


def end_for_parent(*, writes_stacks: bool) -> None:
    """Exit once the parent sends SIGTERM, without a shutdown, which takes TensorFlow seconds.

    Also exit once the parent has been stopped for so long that rank 0 has ended: otherwise a server would
    keep the GPUs. `writes_stacks`: write the stacks to the log first, like rank 0's worker. SIGTERM must be
    blocked.
    """

    def is_told() -> bool:
        came = signal.sigtimedwait({signal.SIGTERM}, LOOK_S)
        return came is not None and came.si_pid == os.getppid()

    await_stopped_parent(is_told)
    if writes_stacks:
        faulthandler.dump_traceback()
    os._exit(ExitCode.OK)
