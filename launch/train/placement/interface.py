"""What the training step asks of a placement: where variables live, and what moves in each step."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Tensor = Any
Waits = Literal["all", "own_copy", "each_tower", "nothing"]
"""What an update waits for: see `Placement.waits`."""


class Placement(Protocol):
    """A placement of variables. Each creates them, gives a tower its weights, and reduces the gradients.

    All of them build graph ops and write every device out; none decides when it runs.
    """

    @property
    def places(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables, in the model's order: one for all, or one per tower."""

    @property
    def stored(self) -> Sequence[Sequence[Any]]:
        """The same sets as tf.Variables: in place of a `CutVariable` its parts, in order."""

    @property
    def states(self) -> Sequence[Sequence[Any]]:
        """The sets of moving statistics. One: the first tower's are used, as in tf_cnn_benchmarks."""

    @property
    def buffers(self) -> Sequence[Any]:
        """Variables that carry something from one step to the next; a resumed run needs them too."""

    @property
    def waits(self) -> Waits:
        """What an update waits for.

        all: every tower's gradients. own_copy: its own tower's, which has a copy of all variables; the next
        towers start after these updates. each_tower: one update for each tower's gradients. nothing: it
        applies what the step before buffered. On CPUs a large variable of the first two waits for its own
        gradients and readers alone: see `TrainingStep`.
        """

    def weights(self, tower: int) -> list[Tensor]:
        """Return the weights on the tower's device. Moves: weights that are on another device."""

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce gradients to one total for each stored variable, on its device.

        [tower][variable] -> [place][stored variable]. Moves: gradients.
        """

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Return the ops that buffer something for the next step.

        `weights` and `gradients`: of this step's towers; `updates`: this step's changes of the variables.
        """

    def reset_buffers(self) -> None:
        """Bring the buffers in line with the variables, after these were set from outside (eagerly)."""
