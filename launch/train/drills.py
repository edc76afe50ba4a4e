"""Faults that a training injects into itself on purpose: `gputopo run --drill`. They wrap the training step.

A slow device is a host that waits inside the step's graph, between two time marks: it reads when the tower's
work began and ended, waits until the work would have ended at the drill's pace, and the next mark and the
gradients (or the forward pass, for slow weights) depend on it. So the delay is in proportion to what this
step itself took, is measured as all work is, and makes the step longer as a slow GPU would. The device idles
meanwhile: its clocks, power and temperature are those of a GPU that has less to do.
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
# A thread that sleeps wakes up some 0.1 ms late: the rest is waited for by reading the clock. Ours.
AWAKE_S = 0.0005
RECENT_STEPS = 9  # whose median is the pace without a slow input. Ours.


class Drills(Observer):
    """The drills of a run; as an observer it knows the number of the step.

    In the graph a drill that has not begun yet waits for nothing, and changes no number.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._drills = spec.drills
        self._towers = {_number(spec, tower): tower for tower in range(len(spec.devices))}
        self._step = -(10**9)

    def before(self, number: int) -> None:
        """Note the number of the step. Raises tf.errors.InternalError where a GPU is lost; or hangs."""
        self._step = number
        for drill in self._drills:
            if drill.step == number and drill.fault == LOST_GPU:
                what = f"device {drill.device} is lost (drill {drill.typed})"
                raise tf.errors.InternalError(None, None, what)
            while drill.step == number and drill.fault == HANG:
                time.sleep(1.0)

    def of(self, fault: str, tower: int | None = None) -> list[Drill]:
        """Return the drills with this fault of a tower, those that have not begun, too."""
        return [
            drill
            for drill in self._drills
            if drill.fault == fault
            and (drill.device is None or self._towers.get(drill.device) == tower or tower is None)
        ]

    def factor(self, fault: str, tower: int | None = None) -> float:
        """Return the factor of the pace in this step: that of the drill that began last, 1 before it."""
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
        super().__init__(model, spec, placement, drilled(source, self.drills))

    def observers(self, emit: Emit) -> list[Observer]:
        """Those of any step, and the drills."""
        return [*super().observers(emit), self.drills]

    def tower_clock(self, tower: int, device: str, start: Sequence[Tensor]) -> TowerClock:
        """Return what marks the times of a tower, and delays and spoils its work."""
        rank = self.spec.devices[tower].rank
        return _DrilledClock(super().tower_clock(tower, device, start), self.drills, tower, away=rank != 0)


class _DrilledClock(TowerClock):
    """The marks of a tower with drills. `away`: they are of another host's clock."""

    def __init__(self, plain: TowerClock, drills: Drills, tower: int, *, away: bool) -> None:
        vars(self).update(vars(plain))
        self._drills, self._tower, self._away = drills, tower, away

    def weights_arrived(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Mark the weights as there when they would be at the drill's pace."""
        gate = super().weights_arrived(weights)
        if not self._drills.of(SLOW_WEIGHTS, self._tower):
            return gate
        self.ready = self._late(SLOW_WEIGHTS, self.started, self.ready)
        return [self.ready]

    def done(self, made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Mark the work as done when it would be at the drill's pace; spoil its numbers with NaN."""
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
            return [tf.identity(one) if factor is None else one * factor for one in made]

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
    """A source whose batches come later than the devices could use them, as a drill demands.

    The pace of the devices is that of the latest steps between two calls, without what was waited. All but
    `feed` and `waited_s` is the source's.
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
        """Seconds that the last `feed` took, the delay included."""
        return self._source.waited_s + self._late_s

    def feed(self, number: int) -> Sequence[Tensor]:
        """Return what the source feeds, after the delay."""
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


def drilled(source: InputSource, drills: Drills) -> InputSource:
    """Return the source, with its delay where a drill has one."""
    return cast(InputSource, LateInput(source, drills)) if drills.of(SLOW_INPUT) else source


def wait(began_s: float, ended_s: float, factor: float) -> float:
    """Wait until work that began and ended then would have ended at a factor of its pace; return when.

    Seconds since the epoch, by the clock of `tf.timestamp`.
    """
    until_s = began_s + (ended_s - began_s) / factor
    if factor < 1 and (left := until_s - time.time() - AWAKE_S) > 0:
        time.sleep(left)
    while factor < 1 and time.time() < until_s:
        time.sleep(0)
    return until_s


def _number(spec: RunSpec, tower: int) -> int:
    """Return the number by which outputs name a tower's device: of the GPU, or of the tower on a CPU."""
    gpu = spec.devices[tower].gpu
    return tower if spec.backend == "cpu" or spec.servers or gpu is None else gpu
