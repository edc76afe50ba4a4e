"""When a worker that says nothing is to be called hung: a decision from its events and a clock. Pure.

A step is expected again and again, so that silence after a step means something. How long it takes until the
first one (loading, building, compiling) is not known before, nor how long the phases between steps take (a
checkpoint, an export): these get a long time.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

from gputopo.values.events import Event, ModelBuilt, PhaseBegun, Step

# A step that takes so many times the usual one is no slow step: GPUs that throttle take up to 10 times as
# long, and TensorFlow autotunes and compiles anew for a last, smaller batch. Ours.
HANG_FACTOR = 50.0
# Whatever the usual step is, a stalled disk or a busy machine may take so long. Seconds. Ours; the stall
# inspector of Horovod warns after 60 s and goes on.
HANG_LEAST_S = 120.0
# Writing a large checkpoint to a slow network disk, or an export. Seconds. Ours.
PHASE_S = 1800.0
# Until the next word of a worker that has not taken a step. TensorFlow says that compiling its kernels for a
# new kind of GPU "could take 30 minutes or longer"; large models under XLA take minutes. Seconds. Ours.
START_S = 3600.0
# How long the launcher waits at most before it looks at the clock, and how much later it may come to that
# without having stood still itself. Seconds. Ours.
LOOK_S = 5.0
LATE_S = 1.0
USUAL_STEPS = 20  # the latest steps, whose median is the usual one


@dataclass(frozen=True)
class Patience:
    """How long silence is borne, in seconds, and as a multiple of the usual step."""

    factor: float = HANG_FACTOR
    least_s: float = HANG_LEAST_S
    phase_s: float = PHASE_S
    start_s: float = START_S


PATIENCE = Patience()


class Watchdog:
    """Listens to a worker's events. Times are seconds of a clock that only goes forward.

    `now_s`: when the worker was started.
    """

    def __init__(self, patience: Patience, now_s: float) -> None:
        self._patience = patience
        self._seconds: deque[float] = deque(maxlen=USUAL_STEPS)
        self._heard_s = now_s
        self._allowed_s = patience.start_s
        self._look_s = now_s
        self._during = "starting TensorFlow and building the model"

    def heard(self, event: Event, now_s: float) -> None:
        """Take an event that came now."""
        self._heard_s = now_s
        if isinstance(event, Step):
            self._seconds.append(event.seconds)
        if isinstance(event, PhaseBegun):
            # Before the first step a phase may be followed by compiling, about which nothing is said.
            self._allowed_s = self._patience.phase_s if self._seconds else self._patience.start_s
            self._during = f"the phase '{event.phase}'"
        elif self._seconds:  # what a phase tells at its end is followed by steps, or by the run's end
            self._allowed_s = max(self._patience.least_s, self._patience.factor * self._usual_s())
            self._during = "a step"
        elif isinstance(event, ModelBuilt):
            self._during = "the first step, with its compiling"

    def deadline_s(self) -> float:
        """Tell until when the worker must say something."""
        return self._heard_s + self._allowed_s

    def wait_s(self, now_s: float) -> float:
        """Give how long to wait at most for the worker's next word, from now on."""
        wait = min(LOOK_S, max(0.0, self.deadline_s() - now_s))
        self._look_s = now_s + wait
        return wait

    def woke(self, now_s: float) -> None:
        """Take that the wait is over now.

        If it took longer than it was to, the launcher stood still, and the worker with it: so batch systems
        suspend jobs (SIGSTOP), and containers are frozen. That time is not the worker's silence.
        """
        late = now_s - self._look_s
        if late > LATE_S:
            self._heard_s += late

    def verdict(self, now_s: float) -> str | None:
        """Say in words that the worker hangs, if it does."""
        if now_s < self.deadline_s():
            return None
        usual = f"; a step usually takes {self._usual_s():.3g} s" if self._seconds else ""
        return f"the worker hangs: nothing for {now_s - self._heard_s:.0f} s in {self._during}{usual}"

    def _usual_s(self) -> float:
        return median(self._seconds)
