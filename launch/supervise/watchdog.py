"""Decides from a worker's events and a clock whether it hangs.

Steps come regularly, so silence after a step is meaningful. The time until the first step (loading, building,
compiling) is unknown, and so is the time of phases between steps (a checkpoint, an export). Their limits are
therefore long.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

from gputopo.values.run.events import NCCL_TEST, Event, ModelBuilt, PhaseBegun, Step

# A step that takes this many times the median step is not just slow. Throttled GPUs take up to 10 times as
# long, and TensorFlow autotunes and compiles again for a smaller last batch. Not measured.
HANG_FACTOR = 50.0
# In seconds: a stalled disk or a busy machine may delay any step this long. Not measured; the stall inspector
# of Horovod warns after 60 s and continues.
HANG_MIN_S = 120.0
# In seconds: writing a large checkpoint to a slow network disk, or an export. Not measured.
PHASE_S = 1800.0
# In seconds, until the next event of a worker before its first step. TensorFlow warns that compiling kernels
# for a new kind of GPU "could take 30 minutes or longer". Large models under XLA take minutes.
START_S = 3600.0
# In seconds: the test of NCCL on one host, which adds 2 MiB per GPU. Not measured; chosen because TensorFlow
# ends a collective that hangs after 60 s with an error (`COLLECTIVE_TIMEOUT_S`): this is three times as long.
NCCL_S = 180.0
# In seconds: the launcher's longest wait before it checks the clock, and how much longer a wait may take
# before it means that the launcher itself was stopped. Not measured.
LOOK_S = 5.0
LATE_S = 1.0
# The first sign of life comes after this silence, in seconds and in median steps, the next ones after twice
# as long each. Not measured.
SIGN_S = 10.0
SIGN_STEPS = 3.0
BUSY_CPUS = 0.1  # CPUs that a computing process keeps busy; Python's waiting threads use less; not measured
_STOPPED, _UNINTERRUPTIBLE = ("T", "t"), "D"  # proc(5)
MEDIAN_STEPS = 20  # the latest steps that the median uses


@dataclass(frozen=True)
class HangLimits:
    """How long a worker may be silent, in seconds, and as a multiple of the median step."""

    factor: float = HANG_FACTOR
    min_s: float = HANG_MIN_S
    phase_s: float = PHASE_S
    start_s: float = START_S
    nccl_s: float = NCCL_S


PATIENCE = HangLimits()
# A user's program reports only steps: its silence may be an evaluation, a checkpoint or an export.
PROGRAM_PATIENCE = HangLimits(min_s=PHASE_S)


def hang_limits(seconds: float) -> HangLimits:
    """Return the limits for a run in which every step, including the first, may take `seconds`.

    A phase between steps, such as a checkpoint, keeps its limit.
    """
    return HangLimits(factor=0.0, min_s=seconds, start_s=seconds, nccl_s=min(seconds, NCCL_S))


class Watchdog:
    """Follows a worker's events. Times are in seconds of a monotonic clock.

    `now_s`: when the worker was started. `who`: the worker's name in the verdict.
    """

    phase: str | None = None  # the current phase, None after any other event

    def __init__(self, patience: HangLimits, now_s: float, who: str = "the worker") -> None:
        self._patience = patience
        self._who = who
        self._seconds: deque[float] = deque(maxlen=MEDIAN_STEPS)
        self._last_event_s = now_s
        self._allowed_s = patience.start_s
        self._look_s = now_s
        self._during = "starting TensorFlow and building the model"
        self._next_sign_s = SIGN_S

    def record_event(self, event: Event, now_s: float) -> None:
        """Note an event that came at `now_s`."""
        self._last_event_s = now_s
        self.phase = event.phase if isinstance(event, PhaseBegun) else None
        if isinstance(event, Step):
            self._seconds.append(event.seconds)
        self._next_sign_s = max(SIGN_S, SIGN_STEPS * self._median_s() if self._seconds else 0.0)
        if isinstance(event, PhaseBegun):
            # Before the first step, a phase may be followed by compiling, which sends no event.
            self._allowed_s = self._patience.phase_s if self._seconds else self._patience.start_s
            if event.phase == NCCL_TEST:
                self._allowed_s = self._patience.nccl_s
            self._during = f"the phase '{event.phase}'"
        elif self._seconds:  # an event at the end of a phase is followed by steps, or by the run's end
            self._allowed_s = max(self._patience.min_s, self._patience.factor * self._median_s())
            self._during = "a step"
        elif isinstance(event, ModelBuilt):
            self._during = "the first step, including compilation"

    def record_life(self, now_s: float) -> None:
        """Note that the process can run; for a worker that is silent while it serves, this is enough."""
        self._last_event_s, self._next_sign_s = now_s, SIGN_S

    def deadline_s(self) -> float:
        """Time of the clock by which the next event must come."""
        return self._last_event_s + self._allowed_s

    def wait_s(self, now_s: float) -> float:
        """Maximum seconds to wait for the worker's next event, from now on."""
        wait = min(LOOK_S, max(0.0, self.deadline_s() - now_s))
        self._look_s = now_s + wait
        return wait

    def end_wait(self, now_s: float) -> None:
        """Note that the wait is over now.

        If it took longer than planned, the launcher was stopped, and the worker with it: batch systems
        suspend jobs (SIGSTOP), and containers are frozen. That time is not counted as silence.
        """
        late = now_s - self._look_s
        if late > LATE_S:
            self._last_event_s += late

    def verdict(self, now_s: float) -> str | None:
        """The reason if the worker hangs, else None."""
        if now_s < self.deadline_s():
            return None
        usual = f"; a step usually takes {self._median_s():.3g} s" if self._seconds else ""
        return (
            f"{self._who} hangs: no progress for {now_s - self._last_event_s:.0f} s in {self._during}{usual}"
        )

    def silent_s(self, now_s: float) -> float:
        """Seconds since the last event."""
        return now_s - self._last_event_s

    def sign(self, now_s: float) -> tuple[float, str] | None:
        """Return the seconds of silence and the current activity if a sign of life is due, else None."""
        silent = self.silent_s(now_s)
        if silent < self._next_sign_s:
            return None
        self._next_sign_s = 2 * silent
        return silent, self._during

    def _median_s(self) -> float:
        return median(self._seconds)


def is_stuck(state: str) -> bool:
    """Whether a process in this state (proc(5)) cannot run: stopped, or in a call of a disk or driver."""
    return state in _STOPPED or state == _UNINTERRUPTIBLE


def process_words(state: str, cpus: float) -> str:
    """Return what a process does, as text after "the worker".

    `state`: the letter of proc(5). `cpus`: number of CPUs that it kept busy during the silence.
    """
    if state in _STOPPED:
        return "is stopped (SIGSTOP); kill -CONT continues it"
    if state == _UNINTERRUPTIBLE:
        return "waits for a disk or the driver (state D)"
    return f"computes ({cpus:.1f} CPUs busy)" if cpus >= BUSY_CPUS else "waits, using no CPU time"
