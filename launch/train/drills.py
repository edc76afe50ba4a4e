"""Faults that a training injects into itself: `gputopo run --drill`. They wrap the training step.

To simulate a slow device, the host waits inside the step's graph, between two time marks. It reads when the
tower's work began and ended, and waits until the work would have ended at the drill's pace. The next mark and
the gradients (or the forward pass, for slow weights) depend on this wait. So the delay is proportional to the
step's own time, is measured like work, and makes the step longer as a slow GPU would. The device is idle
meanwhile: its clocks, power and temperature are lower than a slow GPU's.
"""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any, cast

import numpy as np
import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.train.inputs.source import InputSource
from gputopo.launch.train.marks import TowerClock, clock, host_call
from gputopo.launch.train.placement.placements import Placement
from gputopo.launch.train.step import TrainingStep
from gputopo.launch.train.stepper import Emit, Observer
from gputopo.values.run.drill import HANG, LOST_GPU, NAN, SLOW_GPU, SLOW_INPUT, SLOW_WEIGHTS, Drill
from gputopo.values.run.spec import RunSpec

Tensor = Any
# Seconds of each wait in which the clock is polled instead of sleeping. Not measured; chosen because a
# sleeping thread wakes up some 0.1 ms late.
AWAKE_S = 0.0005
RECENT_STEPS = 9  # number of steps whose median is the pace without a slow input; not measured


class Drills(Observer):
    """The drills of a run. It is an observer to know the number of the step.

    A drill that has not started yet is already in the graph, but does not wait or change any number.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._drills = spec.drills
        # By number of a tower's device in outputs: the GPU's number, or the tower's number on a CPU.
        self._towers = {}
        for device in spec.devices:
            has_number = spec.backend == "gpu" and not spec.servers and device.gpu is not None
            self._towers[device.gpu if has_number else device.tower] = device.tower
        self._step = -(10**9)

    def before(self, number: int) -> None:
        """Record the step's number. Raises tf.errors.InternalError to simulate a lost GPU, or hangs."""
        self._step = number
        for drill in self._drills:
            if drill.step == number and drill.fault == LOST_GPU:
                what = f"device {drill.device} is lost (drill {drill.typed})"
                raise tf.errors.InternalError(None, None, what)
            while drill.step == number and drill.fault == HANG:
                time.sleep(1.0)

    def of(self, fault: str, tower: int | None = None) -> list[Drill]:
        """Return the drills with this fault for a tower (None: any), whether or not they have started."""
        return [
            drill
            for drill in self._drills
            if drill.fault == fault
            and (drill.device is None or self._towers.get(drill.device) == tower or tower is None)
        ]

    def factor(self, fault: str, tower: int | None = None) -> float:
        """Return the factor of the pace in this step, from the drill that started last; 1.0 if none has."""
        begun = [drill for drill in self.of(fault, tower) if self._step >= drill.step or not drill.step]
        last = max(begun, key=lambda drill: drill.step, default=None)
        return 1.0 if last is None or last.factor is None else last.factor

    def spoils(self) -> bool:
        """Return whether the loss of this step is NaN."""
        return any(drill.step == self._step for drill in self.of(NAN))


class DrilledStep(TrainingStep):
    """A training step with the faults of its spec."""

    def __init__(self, model: Model, spec: RunSpec, placement: Placement, source: InputSource) -> None:
        self.drills = Drills(spec)
        if self.drills.of(SLOW_INPUT):
            source = cast(InputSource, LateInput(source, self.drills))
        super().__init__(model, spec, placement, source)

    def observers(self, emit: Emit) -> list[Observer]:
        """Return the observers of any step, and the drills."""
        return [*super().observers(emit), self.drills]

    def tower_clock(self, tower: int, device: str, start: Sequence[Tensor]) -> TowerClock:
        """Return the clock that marks the times of a tower, and delays and spoils its work."""
        rank = self.spec.devices[tower].rank
        return _DrilledClock(super().tower_clock(tower, device, start), self.drills, tower, away=rank != 0)


class _DrilledClock(TowerClock):
    """The time marks of a tower with drills. `away`: the marks come from another host's clock."""

    def __init__(self, plain: TowerClock, drills: Drills, tower: int, *, away: bool) -> None:
        vars(self).update(vars(plain))
        self._drills, self._tower, self._away = drills, tower, away

    def weights_arrived(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Mark the time at which the weights would have arrived at the drill's pace."""
        gate = super().weights_arrived(weights)
        if not self._drills.of(SLOW_WEIGHTS, self._tower):
            return gate
        self.ready = self._late(SLOW_WEIGHTS, self.started, self.ready)
        return [self.ready]

    def done(self, made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Mark the time at which the work would end at the drill's pace. A NaN drill spoils its numbers."""
        super().done(made)
        after = []
        if self._drills.of(SLOW_GPU, self._tower):
            self.ended = self._late(SLOW_GPU, self.ready, self.ended)
            after.append(self.ended)
        factor = None
        if self._drills.of(NAN) and not self._tower:
            spoils = self._drills.spoils
            factor = host_call(lambda: np.float32(np.nan if spoils() else 1.0), [], tf.float32)
        with tf.device(self.device), tf.control_dependencies(after):
            return [tf.identity(tensor) if factor is None else tensor * factor for tensor in made]

    def _late(self, fault: str, began: Tensor, ended: Tensor) -> Tensor:
        def held(began_s: Any, ended_s: Any) -> Any:
            factor = self._drills.factor(fault, self._tower)
            if self._away:
                added_s = (float(ended_s) - float(began_s)) * (1 / factor - 1)
                time.sleep(added_s)
                return np.float64(ended_s + added_s)
            return np.float64(wait(float(began_s), float(ended_s), factor))

        return clock([host_call(held, [began, ended], tf.float64)], self.host)


class LateInput:
    """A source that delivers batches later than the devices could use them, as a drill requires.

    The pace of the devices is measured between two calls in recent steps, without the wait for input. All
    attributes other than `feed` and `waited_s` come from the source.
    """

    def __init__(self, source: InputSource, drills: Drills) -> None:
        self._source = source
        self._drills = drills
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._fed_s: float | None = None
        self._late_s = 0.0
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def waited_s(self) -> float:
        """Seconds that the last `feed` took, including the delay."""
        return self._source.waited_s + self._late_s

    def feed(self, number: int) -> Sequence[Tensor]:
        """Return the tensors of the source, after the delay."""
        called_s, self._calls = time.perf_counter(), self._calls + 1
        if self._fed_s is not None and self._calls > 2:  # the first step compiles
            self._steps.append(called_s - self._fed_s)
        fed = self._source.feed(number)
        own_s = self._source.waited_s
        factor = self._drills.factor(SLOW_INPUT)
        pace_s = median(self._steps) + own_s if self._steps else 0.0
        self._late_s = pace_s * (1 / factor - 1)
        time.sleep(self._late_s)
        self._fed_s = time.perf_counter()
        return fed


def wait(began_s: float, ended_s: float, factor: float) -> float:
    """Wait until work from `began_s` to `ended_s` would have ended at `factor` of its pace; return that time.

    All in seconds since the epoch, by the clock of `tf.timestamp`.
    """
    until_s = began_s + (ended_s - began_s) / factor
    if factor < 1 and (left := until_s - time.time() - AWAKE_S) > 0:
        time.sleep(left)
    while factor < 1 and time.time() < until_s:
        time.sleep(0)
    return until_s
