"""The steps of a run, one after the other: the first with its check, the warm-up, the counted ones."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.host_memory import freed_memory_given_back
from gputopo.launch.train.placement import checking
from gputopo.launch.train.step import StepOutcome, marks_of
from gputopo.launch.train.trainers import Stepper
from gputopo.launch.train.warmup import is_warm, longest_warmup
from gputopo.values.errors import GputopoError, InputError
from gputopo.values.events import Event, LossNotFinite, PlacementChecked, Step, TowerMarks, WarmupDone

Emit = Callable[[Event], None]

Stopped = Callable[[], bool]  # whether the run was asked to end after the step that it is in


def never() -> bool:
    """Nobody asks this run to end."""
    return False


def mean_loss(outcome: StepOutcome) -> float:
    """Give the mean loss of a step's examples: in the last batch of an evaluation a tower may have few."""
    counts = outcome.examples
    if counts is None or not counts.any():
        return float(outcome.losses.mean())
    return float((outcome.losses * counts).sum() / counts.sum())


class Observer(Protocol):
    """Somebody who does something between steps, outside of their time."""

    def before(self, number: int) -> None:
        """Get ready for step `number` (as in `events.Step`)."""

    def after(self, told: Step, outcome: StepOutcome) -> None:
        """Take what a step gave. The very first step, which is not told as an event, comes too."""

    def close(self) -> None:
        """The steps are over."""


class Loop:
    """Takes the steps of one run and tells them.

    Numbers: 1, 2, ... are counted; 0, -1, ... belong to the warm-up. `trained`: steps that the weights have
    been trained for, which goes on from a checkpoint; it is what the step itself is called with. `stopped` is
    asked before each step but the first: no more are taken once it says so.
    """

    def __init__(
        self,
        step: Stepper,
        spec: RunSpec,
        emit: Emit,
        observers: Sequence[Observer] = (),
        *,
        trained: int = 0,
        stopped: Stopped = never,
    ) -> None:
        self._step = step
        self._spec = spec
        self._emit = emit
        self._observers = observers
        self._stopped = stopped
        self.trained = trained

    def first_step(self, *, tell: bool = False) -> None:
        """Run the step once, which compiles it, and check where everything is.

        `tell`: as an event of the warm-up. Raises HardwareError if something is elsewhere, InputError if
        there is no example.
        """
        began = time.perf_counter()
        try:
            with freed_memory_given_back():
                outcome, counts = checking.run_and_collect(lambda: self._step(self.trained))
        except StopIteration as end:
            raise InputError("the data hold not one whole step", "use a smaller --batch-size") from end
        first_step_s = time.perf_counter() - began
        self.trained += 1
        variables = self._step.check_variables()
        ops = {} if counts is None else self._step.check_ops(counts)
        if not all(math.isfinite(value) for marks in outcome.marks for value in marks):
            raise GputopoError(
                "a time mark of the first step is no number", "report this as a fault of gputopo"
            )
        self._emit(
            PlacementChecked(time_s=time.time(), variables=variables, ops=ops, first_step_s=first_step_s)
        )
        number = 0 if tell else -self._spec.num_warmup_batches
        told = self._told(number, first_step_s, outcome)
        if tell:
            self._emit(told)
        self._after(told, outcome)

    def warm_up(self) -> None:
        """Run the uncounted steps: so many, or until their times are steady. Raises InputError."""
        began = time.perf_counter()
        most = longest_warmup(self._spec)
        seconds: list[float] = []
        while not is_warm(self._spec, seconds):
            if self._stopped():
                return
            try:
                seconds.append(self._one(len(seconds) + 1 - most))
            except StopIteration as end:
                raise InputError(
                    f"the data end in step {len(seconds) + 1} of the warm-up",
                    "use fewer --num-warmup-batches or a smaller --batch-size",
                ) from end
        took = time.perf_counter() - began
        self._emit(WarmupDone(time_s=time.time(), steps=len(seconds), seconds=took))

    def counted_steps(self, *, already: int = 0) -> bool:
        """Run the counted steps: so many, as many as fit into the time budget, or to the end of the data.

        `already`: how many of them were taken in another way. Tell whether the data came to their end.
        """
        spec = self._spec
        limit = math.inf if spec.most_batches is None else spec.most_batches - already
        began = time.perf_counter()
        number = 0
        while number < limit and not self._stopped():
            if spec.num_batches is None and spec.time_budget_s is not None and number:
                used = time.perf_counter() - began
                if used + used / number > spec.time_budget_s:
                    return False
            number += 1
            try:
                self._one(number)
            except StopIteration:
                return True
        return False

    def _one(self, number: int) -> float:
        """Take a step and give its seconds."""
        for observer in self._observers:
            observer.before(number)
        began = time.perf_counter()
        outcome = self._step(self.trained)
        seconds = time.perf_counter() - began
        self.trained += 1
        told = self._told(number, seconds, outcome)
        self._emit(told)
        self._after(told, outcome)
        return seconds

    def _after(self, told: Step, outcome: StepOutcome) -> None:
        for observer in self._observers:
            observer.after(told, outcome)

    def _told(self, number: int, seconds: float, outcome: StepOutcome) -> Step:
        loss = mean_loss(outcome)
        images = self._spec.batch_size * len(self._spec.devices)
        shares = None
        if outcome.examples is not None:
            images = int(outcome.examples.sum())
        if outcome.hits is not None and images:
            shares = outcome.hits.sum(axis=0) / images
        return Step(
            time_s=time.time(),
            step=number,
            seconds=seconds,
            images=images,
            loss=loss if math.isfinite(loss) else None,
            marks=tuple(
                TowerMarks(tower=tower, start_s=start, weights_s=weights, compute_s=compute)
                for tower, (start, weights, compute) in enumerate(marks_of(outcome))
            ),
            waited_s=self._step.source.waited_s,
            global_step=self.trained,
            top1=None if shares is None else float(shares[0]),
            top5=None if shares is None else float(shares[1]),
        )


class LossWatch:
    """Tells the first loss that is no finite number; training goes on.

    Whoever measures speeds often trains on data that nothing can be learned from, with a learning rate for
    other data, and does not want to be stopped; but it must be said.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._told = False

    def before(self, number: int) -> None:
        """Nothing to do."""

    def after(self, told: Step, outcome: StepOutcome) -> None:
        """Look at the towers' losses."""
        bad = [tower for tower, loss in enumerate(outcome.losses) if not math.isfinite(loss)]
        if bad and not self._told:
            self._told = True
            value = str(float(outcome.losses[bad[0]]))
            towers = bad if len(outcome.losses) > 1 else range(len(told.marks))  # one loss may be of all
            self._emit(LossNotFinite(time_s=time.time(), step=told.step, value=value, towers=tuple(towers)))

    def close(self) -> None:
        """Nothing to do."""
