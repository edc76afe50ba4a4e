"""Whether a program hangs, by the steps that it reports, and the stacks of its processes then.

A program that has not reported a step, or whose processes have ended their steps, is not judged.
"""

import contextlib
import os
import time
from pathlib import Path

from gputopo.launch.failure import gpu_words
from gputopo.launch.supervise.child import Ours, process_state
from gputopo.launch.supervise.watchdog import Patience, Watchdog, process_words
from gputopo.launch.throughput import STACKS_SIGNAL, Report, StepsEnded
from gputopo.launch.user_program.program import Stop, descendants
from gputopo.values.errors import ExitCode
from gputopo.values.run.events import Noticed, RankFailed, Sample, Step

# How long a process may take to write its stacks, and without a further line has written them. Seconds. Ours.
STACKS_S = 1.0
WRITTEN_S = 0.05
_HELD = ("T", "t", "D")  # states of a process that is stopped, or waits for a device: proc(5)


class StallWatch:
    """Follows the reports of a program and asks for its end when it hangs. Times: of a monotonic clock.

    `who`: the program, in words. `stacks`: the file that its processes write their stacks to, if any.
    `ours`: the children of this process that are not the program's.
    """

    def __init__(
        self, patience: Patience, who: str, stop: Stop, ours: Ours, *, stacks: Path | None, now_s: float
    ) -> None:
        self._watchdog = Watchdog(patience, now_s, who)
        self._stop, self._ours, self._stacks = stop, ours, stacks
        self._notice_s: float | None = now_s + patience.min_s  # when it is noticed that there is no step
        self._stepping: set[int] = set()  # the processes that take steps
        self._sample: Sample | None = None

    def sampled(self, sample: Sample) -> None:
        """Note the state of the GPUs."""
        self._sample = sample

    def reported(self, report: Report, now_s: float) -> None:
        """Note a report of the program."""
        if isinstance(report, StepsEnded):
            self._stepping.discard(report.pid)
            return
        self._notice_s = None
        self._stepping.add(report.pid)
        step = Step(
            time_s=0.0, step=report.step, seconds=report.seconds, images=report.examples, loss=None, marks=()
        )
        self._watchdog.record_event(step, now_s)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds to wait at most for the next report; None: as long as it takes."""
        if self._stepping:
            return self._watchdog.wait_s(now_s)
        return None if self._notice_s is None else max(0.0, self._notice_s - now_s)

    def end_wait(self, now_s: float) -> None:
        """Note that the wait is over."""
        if self._stepping:
            self._watchdog.end_wait(now_s)

    def look(self, now_s: float) -> Noticed | RankFailed | None:
        """Return the failure of a program that hangs, whose end it asks for, or that there is no step."""
        if self._notice_s is not None and now_s >= self._notice_s:
            return self.unwatched()
        verdict = self._watchdog.verdict(now_s) if self._stepping else None
        if verdict is None:
            return None
        # One that was killed could not report its end.
        self._stepping &= {process.pid for process in descendants(self._ours)}
        if not self._stepping:
            return None
        pids = sorted(self._stepping)
        states = [(pid, process_state(pid)[0]) for pid in pids]
        words = [f"process {pid} {process_words(state, 0.0)}" for pid, state in states if state in _HELD]
        written = self._stacks is not None and write_stacks(pids, self._stacks)
        self._stepping.clear()
        if not self._stop.ask():
            return None
        where = (
            "stacks.log in the run folder has the stacks of its Python threads"
            if written
            else "it wrote no stacks"
        )
        return RankFailed(
            time_s=time.time(),
            kind="hung",
            cause="; ".join(filter(None, [verdict, *words, gpu_words(self._sample)])),
            remedy=f"{where}; where a step, an evaluation or a checkpoint may take that long, "
            "give more to --stall-timeout",
            exit_code=int(ExitCode.HARDWARE),
        )

    def unwatched(self) -> Noticed | None:
        """Return the notice that the program has reported no step, unless it has, or that was noticed."""
        if self._notice_s is None:
            return None
        self._notice_s = None
        says = (
            "No step was reported: --stall-timeout applies from the first one on (gputopo explain program)."
        )
        return Noticed(time_s=time.time(), says=says)


def write_stacks(pids: list[int], file: Path) -> bool:
    """Have processes write the stacks of their threads, one after another; return whether one did."""
    written = False
    for pid in filter(_awaits_signal, pids):
        with contextlib.suppress(OSError), file.open("ab") as stacks:
            stacks.write(f"process {pid}\n".encode())
        began = _size(file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)
        written = _grew(file, began) or written
    return written


def _awaits_signal(pid: int) -> bool:
    """Return whether the process has a handler of the signal, which else would end it: SigCgt, proc(5)."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (STACKS_SIGNAL - 1) & 1)


def _grew(file: Path, began: int) -> bool:
    """Wait until a file has grown and then grows no more; return whether it has grown."""
    deadline, last = time.monotonic() + STACKS_S, began
    while time.monotonic() < deadline:
        time.sleep(WRITTEN_S)
        now = _size(file)
        if now == last and now > began:
            break
        last = now
    return last > began


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
