"""When a worker that says nothing is to be called hung: a decision from its events and a clock. Pure.

A step is expected again and again, so that silence after a step means something. Building, compiling and the
first step may take long and are not watched; nor is anything for which nothing is known of how long it takes,
but for the phases between steps (a checkpoint, an export), which get a long time.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

from gputopo.events import Event, PhaseBegun, Step, WarmupDone

# A step that takes so many times the usual one is no slow step: GPUs that throttle take up to 10 times as
# long, and TensorFlow autotunes and compiles anew for a last, smaller batch. Ours.
HANG_FACTOR = 50.0
# Whatever the usual step is, a stalled disk or a busy machine may take so long. Seconds. Ours; the stall
# inspector of Horovod warns after 60 s and goes on.
HANG_LEAST_S = 120.0
# Writing a large checkpoint to a slow network disk, or an export. Seconds. Ours.
PHASE_S = 1800.0
USUAL_STEPS = 20  # the latest steps, whose median is the usual one


@dataclass(frozen=True)
class Patience:
    """How long silence is borne, in seconds, and as a multiple of the usual step."""

    factor: float = HANG_FACTOR
    least_s: float = HANG_LEAST_S
    phase_s: float = PHASE_S


PATIENCE = Patience()


class Watchdog:
    """Listens to a worker's events. Times are seconds of a clock that only goes forward."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._seconds: deque[float] = deque(maxlen=USUAL_STEPS)
        self._heard_s = 0.0
        self._allowed_s: float | None = None
        self._during = ""

    def heard(self, event: Event, now_s: float) -> None:
        """Take an event that came now."""
        self._heard_s = now_s
        if isinstance(event, Step):
            self._seconds.append(event.seconds)
            self._await_step()
        elif isinstance(event, WarmupDone):
            self._await_step()
        elif isinstance(event, PhaseBegun):
            # Before the first step a phase may be followed by compiling, about which nothing is said.
            self._allowed_s = self._patience.phase_s if self._seconds else None
            self._during = f"the phase '{event.phase}'"
        else:
            self._await_step()  # what a phase tells at its end is followed by steps, or by the run's end

    def deadline_s(self) -> float | None:
        """Tell until when the worker must say something; None: it may take its time."""
        return None if self._allowed_s is None else self._heard_s + self._allowed_s

    def verdict(self, now_s: float) -> str | None:
        """Say in words that the worker hangs, if it does."""
        deadline = self.deadline_s()
        if deadline is None or now_s < deadline:
            return None
        usual = f"; a step usually takes {self._usual_s():.3g} s" if self._seconds else ""
        return f"the worker hangs: nothing for {now_s - self._heard_s:.0f} s in {self._during}{usual}"

    def _await_step(self) -> None:
        if self._seconds:
            self._allowed_s = max(self._patience.least_s, self._patience.factor * self._usual_s())
            self._during = "a step"

    def _usual_s(self) -> float:
        return median(self._seconds)
