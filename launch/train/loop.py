"""The training loop: warm-up steps, then counted steps, with observers between them. No TensorFlow here.

The first step builds and compiles the graph. It belongs to the warm-up, or is counted if there is no warm-up.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from gputopo.launch.train.stepper import Emit, Observer, StepOutcome, Stepper, Stopped
from gputopo.values.errors import ExitCode, GputopoError, InputError
from gputopo.values.run.events import (
    LossNotFinite,
    Noticed,
    PlacementChecked,
    Step,
    TowerMarks,
    WarmupDone,
)
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.speed import RunningThroughput, time_left_s

MAX_WARMUP = 1000  # steps of a warm-up with a minimum time; at 1 ms per step they take a second
LOOKS = 10  # the error of the speed is computed again after a tenth more steps, as that may take ms
Scales = tuple[tuple[float, ...], tuple[int, ...]]
"""Loss scales, and the steps skipped by each: one for all towers, or one per independent tower."""


class Loop:
    """Takes the steps of one run and emits their events.

    Steps 1, 2, ... are counted; steps 0, -1, ... belong to the warm-up. `trained`: number of steps that the
    weights have been trained for, above 0 after a checkpoint was restored; the stepper is called with it.
    `stopped` is called before each step except the first: once it returns True, no more steps are taken.
    `clock`: seconds by which steps are timed.
    """

    def __init__(
        self,
        step: Stepper,
        spec: RunSpec,
        emit: Emit,
        observers: Sequence[Observer] = (),
        *,
        trained: int = 0,
        stopped: Stopped = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._step = step
        self._spec = spec
        self._emit = emit
        self._observers = observers
        self._stopped = stopped
        self._clock = clock
        self._warmup = longest_warmup(spec)
        self._warmup_seconds: list[float] = []
        self._running = RunningThroughput()
        self._next_look = 0  # counted steps
        self.trained = trained

    def run(self) -> bool:
        """Take all steps. Return True if the data ended first.

        Raises HardwareError if a variable or an op is on the wrong device, and InputError if the data end
        before the first counted step.
        """
        self._first_step(1 - self._warmup)
        self._warm_up()
        return self._counted_steps()

    def run_evaluation(self) -> bool:
        """Take all steps of an evaluation. The first step is one of its batches, but is not timed.

        Return True if the data ended first. Raises as `run`.
        """
        self._first_step(0)
        return self._counted_steps(already=1)

    def _first_step(self, number: int) -> None:
        """Take the step that builds and compiles the graph, and check the devices of variables and ops."""
        for observer in self._observers:
            observer.before(number)
        began = self._clock()
        try:
            outcome, counts = self._step.first(self.trained)
        except StopIteration as end:
            raise InputError(
                "the data have fewer examples than one step needs", "use a smaller --batch-size"
            ) from end
        seconds = self._clock() - began
        variables = self._step.check_variables()
        ops = {} if counts is None else self._step.check_ops(counts)
        if not np.isfinite(outcome.marks).all():
            raise GputopoError(
                "a time mark of the first step is not a number", "report this as a bug of gputopo"
            )
        self._emit(PlacementChecked(time_s=time.time(), variables=variables, ops=ops, first_step_s=seconds))
        if number == 1:
            self._emit(WarmupDone(time_s=time.time(), steps=0, seconds=0.0))
        self._taken(number, seconds, outcome)

    def _warm_up(self) -> None:
        """Take the uncounted steps until the warm-up is over (`is_warm`)."""
        if not self._warmup:
            return
        while not is_warm(self._spec, self._warmup_seconds):
            if self._stopped():
                return
            done = len(self._warmup_seconds)
            try:
                self._one(done + 1 - self._warmup)
            except StopIteration as end:
                raise InputError(
                    f"the data end in step {done + 1} of the warm-up",
                    "use fewer --num-warmup-batches or a smaller --batch-size",
                ) from end
        seconds = self._warmup_seconds
        self._emit(WarmupDone(time_s=time.time(), steps=len(seconds), seconds=sum(seconds)))

    def _counted_steps(self, *, already: int = 0) -> bool:
        """Take the counted steps up to the limit of steps, error or time, or to the end of the data.

        `already`: number of batches that were taken in the warm-up. Return True if the data ended first.
        """
        spec = self._spec
        limit = math.inf if spec.batch_limit is None else spec.batch_limit - already
        began = self._clock() - self._running.seconds
        while (done := self._running.steps) < limit and not self._stopped():
            if spec.num_batches is None and self._is_enough(done, self._clock() - began):
                return False
            try:
                self._one(done + 1)
            except StopIteration:
                return True
        return False

    def _is_enough(self, done: int, used_s: float) -> bool:
        """Return whether the error is small enough, or another step would exceed the time limit."""
        budget_s, max_error = self._spec.time_budget_s, self._spec.max_error
        if budget_s is not None and done and used_s / done > time_left_s(budget_s, max_error, done, used_s):
            return True
        if max_error is None or done < self._next_look:
            return False
        self._next_look = done + done // LOOKS
        return self._running.is_known_to(max_error)

    def _one(self, number: int) -> None:
        for observer in self._observers:
            observer.before(number)
        began = self._clock()
        outcome = self._step(self.trained)
        self._taken(number, self._clock() - began, outcome)

    def _taken(self, number: int, seconds: float, outcome: StepOutcome) -> None:
        """Record a finished step: emit its event and call the observers."""
        self.trained += 1
        if number < 1:
            self._warmup_seconds.append(seconds)
        event = self.step_event(number, seconds, outcome)
        self._running.add(event)
        self._emit(event)
        for observer in self._observers:
            observer.after(event, outcome)

    def step_event(self, number: int, seconds: float, outcome: StepOutcome) -> Step:
        """Return the event of a step that took so many seconds."""
        loss = outcome.mean_loss
        images = self._spec.joint_batch
        if outcome.examples is not None:
            images = int(outcome.examples.sum())
        shares = None if outcome.hits is None or not images else outcome.hits.sum(axis=0) / images
        return Step(
            time_s=time.time(),
            step=number,
            seconds=seconds,
            images=images,
            loss=loss if math.isfinite(loss) else None,
            marks=tuple(
                TowerMarks(tower=tower, start_s=start, weights_s=ready - start, compute_s=done - ready)
                for tower, (start, ready, done) in enumerate(outcome.marks.tolist())
            ),
            waited_s=self._step.source.waited_s if outcome.waited_s is None else outcome.waited_s,
            global_step=self.trained,
            top1=None if shares is None else float(shares[0]),
            top5=None if shares is None else float(shares[1]),
            exchange=outcome.exchange,
        )


def longest_warmup(spec: RunSpec) -> int:
    """Return the maximum number of warm-up steps. A warm-up with a minimum time may have fewer steps."""
    return max(spec.num_warmup_batches, MAX_WARMUP) if spec.min_warmup_s else spec.num_warmup_batches


def is_warm(spec: RunSpec, seconds: Sequence[float]) -> bool:
    """Return whether the warm-up is over. `seconds`: the time of each of its steps so far, in order.

    It needs `num_warmup_batches` steps and `min_warmup_s` seconds, without the first step, which compiles.
    """
    if len(seconds) < spec.num_warmup_batches:
        return False
    return len(seconds) >= longest_warmup(spec) or sum(seconds[1:]) >= (spec.min_warmup_s or 0.0)


class LossError(GputopoError):
    """The loss is not finite, and training ends because of it. `lost`: the event that reported it."""

    exit_code = ExitCode.FINDINGS

    def __init__(self, lost: LossNotFinite, *, resumable: bool) -> None:
        since = f"step {lost.step}" if lost.step > 0 else "the warm-up"
        again = "continue from the last finite checkpoint (--resume)" if resumable else "start it again"
        super().__init__(
            f"the loss is {lost.value} from {since} on, and training ended there (--on-nan stop)",
            f"{again} with a lower --learning-rate, or train on with --on-nan warn",
        )


class LossWatch(Observer):
    """Reports the first loss that is not finite. `lost`: that event; None: all losses were finite.

    It does not end the training: speed is often measured on random data, with a learning rate for other data.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.lost: LossNotFinite | None = None

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Check the towers' losses."""
        bad = [tower for tower, loss in enumerate(outcome.losses) if not math.isfinite(loss)]
        if bad and self.lost is None:
            value = str(float(outcome.losses[bad[0]]))
            towers = bad if len(outcome.losses) > 1 else range(len(step.marks))  # all towers may share a loss
            self.lost = LossNotFinite(time_s=time.time(), step=step.step, value=value, towers=tuple(towers))
            self._emit(self.lost)


class ScaleWatch(Observer):
    """Reports the first step skipped by an automatic loss scale, and the total at the end.

    `report`: see `LossScale.report`.
    """

    def __init__(self, report: Callable[[], Scales | None], emit: Emit) -> None:
        self._report = report
        self._emit = emit
        self._reported = False

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Report the first skipped step."""
        if not self._reported:
            which = "A step of the warm-up" if step.warmup else f"Step {step.step}"
            self._reported = self._notice(lambda _: f"{which} was skipped: a gradient was not finite.")

    def close(self) -> None:
        """Report the number of skipped steps and the current scale."""
        self._notice(lambda counts: f"Steps skipped because a gradient was not finite: {counts}.")

    def _notice(self, says: Callable[[str], str]) -> bool:
        """Emit a notice with the current scales if a step was skipped; return whether one was.

        `says` makes the first sentence from the counts of skipped steps.
        """
        scales, skipped = self._report() or ((), ())
        if not any(skipped):
            return False
        by_tower = (f"{count} on device {tower}" for tower, count in enumerate(skipped) if count)
        counts = str(skipped[0]) if len(skipped) == 1 else ", ".join(by_tower)
        listed = ", ".join(f"{scale:g}" for scale in scales)
        current = f"Current loss scale{'' if len(scales) == 1 else 's'}: {listed}."
        self._emit(Noticed(time_s=time.time(), says=f"{says(counts)} {current}"))
        return True
