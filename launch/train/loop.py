"""The training loop: warm-up steps, then counted steps, with observers between them. No TensorFlow here.

The first step builds and compiles the graph; it is the first of the warm-up, or counted where there is none.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.placement import checking
from gputopo.runs.speed import MAX_STEPS, steady_from
from gputopo.values.errors import ExitCode, GputopoError, InputError
from gputopo.values.run.events import (
    Event,
    HostExchange,
    LossNotFinite,
    Noticed,
    PlacementChecked,
    Step,
    TowerMarks,
    WarmupDone,
)

if TYPE_CHECKING:
    from gputopo.launch.compare.multi_worker import Hosts  # these load TensorFlow
    from gputopo.launch.train.inputs.source import InputSource
    from gputopo.launch.train.towers import LossScale

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]  # whether the run was asked to end after the current step
_LOOK_EVERY = 10  # steps of a warm-up between two searches for a steady state, each of which takes a few ms


def never() -> bool:
    """Return False: no one asks this run to end."""
    return False


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of one step: losses [towers], and marks [towers, 3] in seconds from the step's start.

    Marks: the tower starts; its weights are on its device; its gradients are done.
    """

    losses: np.ndarray[Any, Any]
    marks: np.ndarray[Any, Any]
    hits: np.ndarray[Any, Any] | None = None  # [towers, 2], of an evaluation: labels first, in the first five
    examples: np.ndarray[Any, Any] | None = None  # [towers]; None: a whole batch each, of one size
    exchange: tuple[HostExchange, ...] = ()  # of several hosts
    waited_s: float | None = None  # for the input; None: as the source has it

    @property
    def mean_loss(self) -> float:
        """Mean loss of the examples: batches may differ, and the last one of an evaluation be short."""
        if self.examples is None or not self.examples.any():
            return float(self.losses.mean())
        return float((self.losses * self.examples).sum() / self.examples.sum())

    @property
    def tower_times(self) -> list[tuple[float, float, float]]:
        """(start, waiting for weights, computing) of each tower, in seconds."""
        return [(start, ready - start, done - ready) for start, ready, done in self.marks.tolist()]


def unequal_batches(spec: RunSpec) -> np.ndarray[Any, Any] | None:
    """Return the towers' numbers of examples [towers] where they differ, as an outcome has them."""
    return np.array(spec.batches) if isinstance(spec.batch_size, tuple) else None


class VariableSets(Protocol):
    """Variables of a run: what is compared, saved, restored and exported."""

    @property
    def places(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables, each in the model's order: one for all, or one per tower."""

    @property
    def states(self) -> Sequence[Sequence[Any]]:
        """The sets of moving statistics, in the model's order. One: the first tower's are used."""

    @property
    def buffers(self) -> Sequence[Any]:
        """Variables that carry something from one step to the next; a resumed run needs them too."""

    def reset_buffers(self) -> None:
        """Bring the buffers in line with the variables, after these were set from outside (eagerly)."""


class Observer:
    """Something done between steps, outside of their time."""

    def before(self, number: int) -> None:
        """Get ready for step `number` (as in `events.Step`)."""

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Process a finished step."""

    def close(self) -> None:
        """The steps are over."""


class Stepper:
    """Takes the steps of a run, each as one graph. Made by `training.stepper_of`."""

    spec: RunSpec
    placement: VariableSets
    source: "InputSource"  # the input; whoever made the stepper closes it
    graph: Any  # the step as a wrapped function
    says: tuple[str, ...] = ()  # what was assumed, and what ran instead of what was asked
    slots: Sequence[Sequence[Sequence[Any]]] = ()  # the optimizer's variables, [place][variable][slot]
    own_slots: int = 0  # slots of each variable itself; those behind them belong to all variables
    scale: "LossScale | None" = None
    hosts: "Hosts | None" = None  # where each host of the run has a process

    def __call__(self, number: int) -> StepOutcome:
        """Take step `number` (from 0) and wait for it. Raises StopIteration at the end of the input."""
        raise NotImplementedError

    def check_variables(self) -> dict[str, int]:
        """Return the bytes of variables by device. Raises HardwareError if one is on another device."""
        raise NotImplementedError

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Return the number of tower ops by device, from `checking.run_and_collect` of a step.

        Raises HardwareError if an op is on another device.
        """
        return checking.check_ops(counts, self.spec)

    def graph_nodes(self) -> Sequence[Any]:
        """Return the nodes of the step as built, before TensorFlow rewrites it: name, op, device, attr."""
        nodes: Sequence[Any] = self.graph.graph.as_graph_def().node
        return nodes

    def observers(self, emit: Emit) -> list[Observer]:
        """Return what this way of taking steps does between them."""
        return [] if self.scale is None else [ScaleWatch(self.scale.report, emit)]


class Loop:
    """Takes the steps of one run and emits their events.

    Numbers: 1, 2, ... are counted; 0, -1, ... belong to the warm-up. `trained`: steps that the weights have
    been trained for, more than 0 after a checkpoint was restored; the stepper is called with it. `stopped` is
    asked before each step but the first: once it returns True, no more are taken.
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
        self._warmup = longest_warmup(spec)
        self._warmup_seconds: list[float] = []
        self._counted_seconds: list[float] = []
        self.trained = trained

    def run(self) -> bool:
        """Take all steps. Return True if the data ended first.

        Raises HardwareError if a variable or an op is on the wrong device, InputError if the data end before
        the first counted step.
        """
        self._first_step(1 - self._warmup)
        self._warm_up()
        return self._counted_steps()

    def run_evaluation(self) -> bool:
        """Take all steps of an evaluation: the first counts as one of its batches, but not in its time.

        Return True if the data ended first. Raises as `run`.
        """
        self._first_step(0)
        return self._counted_steps(already=1)

    def _first_step(self, number: int) -> None:
        """Take the step that builds and compiles the graph, and check where everything is."""
        for observer in self._observers:
            observer.before(number)
        began = time.perf_counter()
        try:
            outcome, counts = checking.run_and_collect(lambda: self._step(self.trained))
        except StopIteration as end:
            raise InputError("the data hold not one whole step", "use a smaller --batch-size") from end
        seconds = time.perf_counter() - began
        variables = self._step.check_variables()
        ops = {} if counts is None else self._step.check_ops(counts)
        if not np.isfinite(outcome.marks).all():
            raise GputopoError(
                "a time mark of the first step is no number", "report this as a fault of gputopo"
            )
        self._emit(PlacementChecked(time_s=time.time(), variables=variables, ops=ops, first_step_s=seconds))
        if number == 1:
            self._emit(WarmupDone(time_s=time.time(), steps=0, seconds=0.0))
        self._taken(number, seconds, outcome)

    def _warm_up(self) -> None:
        """Take the uncounted steps: so many, or until their times are steady."""
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
        """Take the counted steps: so many, as many as fit into the time budget, or to the end of the data.

        `already`: how many of them belong to the warm-up. Return True if the data ended first.
        """
        spec = self._spec
        limit = math.inf if spec.batch_limit is None else spec.batch_limit - already
        budget_s = spec.time_budget_s if spec.num_batches is None else None
        began = time.perf_counter() - sum(self._counted_seconds)
        while (done := len(self._counted_seconds)) < limit and not self._stopped():
            if budget_s is not None and done:
                used = time.perf_counter() - began
                if used + used / done > budget_s:
                    return False
            try:
                self._one(done + 1)
            except StopIteration:
                return True
        return False

    def _one(self, number: int) -> None:
        for observer in self._observers:
            observer.before(number)
        began = time.perf_counter()
        outcome = self._step(self.trained)
        self._taken(number, time.perf_counter() - began, outcome)

    def _taken(self, number: int, seconds: float, outcome: StepOutcome) -> None:
        """Record a step that was taken."""
        self.trained += 1
        (self._warmup_seconds if number < 1 else self._counted_seconds).append(seconds)
        event = self._event(number, seconds, outcome)
        self._emit(event)
        for observer in self._observers:
            observer.after(event, outcome)

    def _event(self, number: int, seconds: float, outcome: StepOutcome) -> Step:
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
                TowerMarks(tower=tower, start_s=start, weights_s=weights, compute_s=compute)
                for tower, (start, weights, compute) in enumerate(outcome.tower_times)
            ),
            waited_s=self._step.source.waited_s if outcome.waited_s is None else outcome.waited_s,
            global_step=self.trained,
            top1=None if shares is None else float(shares[0]),
            top5=None if shares is None else float(shares[1]),
            exchange=outcome.exchange,
        )


def longest_warmup(spec: RunSpec) -> int:
    """Return the maximum number of warm-up steps; a detected warm-up may end earlier."""
    min_steps = spec.num_warmup_batches
    return max(min_steps, MAX_STEPS) if spec.detect_warmup else min_steps


def is_warm(spec: RunSpec, seconds: Sequence[float]) -> bool:
    """Return whether a warm-up whose steps took these seconds, in order, is over.

    It is after so many steps, or once their times are steady. The first one compiles and is not judged.
    """
    done = len(seconds)
    if done < spec.num_warmup_batches:
        return False
    if done >= longest_warmup(spec):
        return True
    return done % _LOOK_EVERY == 1 and steady_from(seconds[1:]) is not None


class LossError(GputopoError):
    """The loss is no number, and training ends by it. `lost`: the event that reported it."""

    exit_code = ExitCode.FINDINGS

    def __init__(self, lost: LossNotFinite, *, resumable: bool) -> None:
        since = f"step {lost.step}" if lost.step > 0 else "the warm-up"
        again = "go on from the last finite checkpoint (--resume)" if resumable else "start it again"
        super().__init__(
            f"the loss is {lost.value} from {since} on, and training ended there (--on-nan stop)",
            f"{again} with a lower --learning-rate, or train on with --on-nan warn",
        )


class LossWatch(Observer):
    """Reports the first loss that is not finite. `lost`: that event, None: all were finite.

    Whether training ends there is the loop's business: speed is often measured on data that nothing can be
    learned from, with a learning rate for other data.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.lost: LossNotFinite | None = None

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Check the towers' losses."""
        bad = [tower for tower, loss in enumerate(outcome.losses) if not math.isfinite(loss)]
        if bad and self.lost is None:
            value = str(float(outcome.losses[bad[0]]))
            towers = bad if len(outcome.losses) > 1 else range(len(step.marks))  # one loss may be of all
            self.lost = LossNotFinite(time_s=time.time(), step=step.step, value=value, towers=tuple(towers))
            self._emit(self.lost)


@dataclass(frozen=True)
class ScaleReport:
    """Current loss scales of a run: one for all towers, or one per tower of independent ones."""

    loss_scales: tuple[float, ...]
    skipped_steps: tuple[int, ...]  # steps skipped so far because a gradient was not finite


class ScaleWatch(Observer):
    """Reports the first step skipped by an automatic loss scale, and the total at the end.

    `report` returns the current scale, None where there is none.
    """

    def __init__(self, report: Callable[[], ScaleReport | None], emit: Emit) -> None:
        self._report = report
        self._emit = emit
        self._reported = False

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Report the first skipped step."""
        report = None if self._reported else self._report()
        if report is None or not any(report.skipped_steps):
            return
        self._reported = True
        which = "A step of the warm-up" if step.warmup else f"Step {step.step}"
        self._notice(f"{which} was skipped: a gradient was not finite. {_scales(report)}")

    def close(self) -> None:
        """Report the number of skipped steps and the current scale."""
        report = self._report()
        if report is None or not any(report.skipped_steps):
            return
        counts = report.skipped_steps
        by_tower = ", ".join(f"{count} on device {tower}" for tower, count in enumerate(counts) if count)
        total = by_tower if len(counts) > 1 else str(counts[0])
        self._notice(f"Steps skipped because a gradient was not finite: {total}. {_scales(report)}")

    def _notice(self, says: str) -> None:
        self._emit(Noticed(time_s=time.time(), says=says))


def _scales(report: ScaleReport) -> str:
    listed = ", ".join(f"{scale:g}" for scale in report.loss_scales)
    return f"Current loss scale: {listed}." if len(report.loss_scales) == 1 else f"Loss scales: {listed}."
