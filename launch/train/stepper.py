"""The interface of a training step, its outcome, and observers between steps. No TensorFlow here."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gputopo.launch.train.placement import checking
from gputopo.values.run.events import Event, HostExchange, Step
from gputopo.values.run.spec import RunSpec

if TYPE_CHECKING:
    from gputopo.launch.train.inputs.source import InputSource  # these load TensorFlow
    from gputopo.launch.train.loss_scale import LossScale

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]  # returns whether the run must end after the current step


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of one step: losses [towers], and marks [towers, 3] in seconds from the step's start.

    Marks: the tower started; its weights were on its device; its gradients were done.
    """

    losses: np.ndarray[Any, Any]
    marks: np.ndarray[Any, Any]
    hits: np.ndarray[Any, Any] | None = None  # [towers, 2], in an evaluation: top-1 and top-5 hits
    examples: np.ndarray[Any, Any] | None = None  # [towers]; None: equal, whole batches
    exchange: tuple[HostExchange, ...] = ()  # between several hosts
    waited_s: float | None = None  # for the input; None: use the source's `waited_s`

    @property
    def mean_loss(self) -> float:
        """Mean loss of the examples. Batches may differ, and an evaluation's last batch may be short."""
        if self.examples is None or not self.examples.any():
            return float(self.losses.mean())
        return float((self.losses * self.examples).sum() / self.examples.sum())


def unequal_batches(spec: RunSpec) -> np.ndarray[Any, Any] | None:
    """Return the towers' numbers of examples [towers] as in `StepOutcome`, or None if they are equal."""
    return np.array(spec.batches) if isinstance(spec.batch_size, tuple) else None


class VariableSets(Protocol):
    """Variables of a run, which are compared, saved, restored and exported."""

    @property
    def places(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables, each in the model's order: one set for all, or one per tower."""

    @property
    def states(self) -> Sequence[Sequence[Any]]:
        """The sets of moving statistics, in the model's order. A single set holds the first tower's."""

    def reset_buffers(self) -> None:
        """Update the buffers for the next step after variables were set from outside."""


class Observer:
    """An action between steps, outside of their measured time."""

    def before(self, number: int) -> None:
        """Get ready for step `number` (as in `events.Step`)."""

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Process a finished step."""

    def close(self) -> None:
        """Finish after the last step."""


class Stepper:
    """Takes the steps of a run, each as one graph. Made by `training.stepper_of`."""

    spec: RunSpec
    placement: VariableSets
    source: "InputSource"  # the input; whoever made the stepper closes it
    graph: Any  # the step as a wrapped function
    says: tuple[str, ...] = ()  # assumptions, and replacements of what was requested
    slots: Sequence[Sequence[Sequence[Any]]] = ()  # the optimizer's variables, [place][variable][slot]
    scale: "LossScale | None" = None
    # If each host of the run has a process: returns rank 0's values of some tensors.
    from_first: Callable[[Iterable[Any]], list[Any]] | None = None

    def __call__(self, number: int) -> StepOutcome:
        """Take step `number` (from 0) and wait for it. Raises StopIteration at the end of the input."""
        raise NotImplementedError

    def first(self, number: int) -> tuple[StepOutcome, Counter[tuple[int, str]] | None]:
        """Take a step that builds and compiles the graph. Return its ops by tower and device, if known."""
        return checking.run_and_collect(lambda: self(number))

    def check_variables(self) -> dict[str, int]:
        """Return the bytes of variables by device. Raises HardwareError if one is on another device."""
        raise NotImplementedError

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Return the number of tower ops by device, from `first`.

        Raises HardwareError if an op is on another device.
        """
        return checking.check_ops(counts, self.spec)

    def graph_nodes(self) -> Sequence[Any]:
        """Return the nodes of the step as built, before TensorFlow rewrites it: name, op, device, attr."""
        nodes: Sequence[Any] = self.graph.graph.as_graph_def().node
        return nodes

    def observers(self, emit: Emit) -> list[Observer]:
        """Return the observers that this stepper needs."""
        return []
