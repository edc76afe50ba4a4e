"""Who takes the steps of a run: our own towers, a method of the Keras programs, a tf.distribute strategy."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from gputopo.launch.models.models import Model
from gputopo.launch.spec.numerics import remarks
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.inputs.source import Source
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.placements import place
from gputopo.launch.train.scale_watch import ScaleReport
from gputopo.launch.train.step import StepOutcome, TrainingStep


class Held(Protocol):
    """Where the variables of a run are: what is checked, compared, saved and restored."""

    @property
    def places(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables, each in the model's order: one for all, or one per tower."""

    @property
    def states(self) -> Sequence[Sequence[Any]]:
        """The sets of moving statistics, each in the model's order."""


class Stepper(Protocol):
    """What the training loop asks of whoever takes the steps. Made by `stepper_of`."""

    @property
    def placement(self) -> Held:
        """The variables."""

    @property
    def slots(self) -> Sequence[Sequence[Sequence[Any]]]:
        """The optimizer's variables, [place][variable][slot]: what a checkpoint holds beside `placement`."""

    @property
    def own_slots(self) -> int:
        """How many slots each variable has of its own; what stands behind these belongs to all variables."""

    @property
    def source(self) -> Source:
        """The input; who made the stepper closes it."""

    @property
    def says(self) -> tuple[str, ...]:
        """What must be said of this run: what was assumed, and what ran where that is not what was asked."""

    def __call__(self, number: int) -> StepOutcome:
        """Take step `number` (from 0) and wait for it. Raises StopIteration at the end of the input."""

    def check_variables(self) -> dict[str, int]:
        """Give the bytes of variables by device. Raises HardwareError if one is not where it should be."""

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Give the number of tower ops by device, from `checking.run_and_collect` of a step.

        Raises HardwareError if an op stands elsewhere.
        """


def stepper_of(model: Model, spec: RunSpec) -> Stepper:
    """Create the variables, the input and the step that a spec names; nothing runs yet.

    Raises UsageError for what does not go together, HardwareError if a device is not there or a reduction
    adds up wrongly.
    """
    if spec.method is not None:
        from gputopo.launch.compare.keras_methods.step import MethodStep  # loads Keras, which takes seconds

        return MethodStep(model, spec)
    if spec.strategy is not None:
        from gputopo.launch.compare.strategies import StrategyStep

        return StrategyStep(model, spec)
    return OwnTowers(model, spec)


class OwnTowers:
    """Our own towers: `TrainingStep` on the placement of the spec."""

    def __init__(self, model: Model, spec: RunSpec) -> None:
        self._spec = spec
        self.placement = place(model, spec)
        self.source = source_of(model, spec)
        self.step = TrainingStep(model, spec, self.placement, self.source)
        self.says: tuple[str, ...] = (*getattr(model, "says", ()), *remarks(spec))

    @property
    def slots(self) -> Sequence[Sequence[Sequence[Any]]]:
        """The updater's slots: [place][variable][slot]."""
        return self.step.updater.slots

    @property
    def own_slots(self) -> int:
        """How many slots each variable has of its own."""
        return self.step.updater.own_slots

    @property
    def scale_variables(self) -> Sequence[Sequence[Any]]:
        """The state of an automatic loss scale, which a checkpoint holds as well."""
        return self.step.updater.scale_variables

    def scale_report(self) -> ScaleReport | None:
        """Tell where the loss scale stands, after a step; None where nothing is scaled."""
        return self.step.updater.report()

    def __call__(self, number: int) -> StepOutcome:
        """Take one step."""
        return self.step(number)

    def check_variables(self) -> dict[str, int]:
        """Compare with the places that the spec names."""
        sizes = [variable.shape.num_elements() for variable in self.placement.places[0]]
        return checking.check_variables(self.placement, checking.wanted_places(self._spec, sizes))

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Compare with the towers' devices."""
        return checking.check_ops(counts, self._spec)
