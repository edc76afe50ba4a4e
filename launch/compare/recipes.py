"""What sets the three methods apart: how the batch is cut and where, and where outputs come together. Pure.

Sources: `make_parallel` of kuza55/keras-extras, `make_parallel` and `ModelMGPU` of
avolkov1/keras_experiments, F. Chollet's `multi_gpu_model` of Keras 2.0.9.
"""

from dataclasses import dataclass
from typing import Literal

from gputopo.launch.spec.run_spec import Method
from gputopo.values.errors import UsageError

Cut = Literal["even", "rest"]


@dataclass(frozen=True)
class MethodRecipe:
    """One method.

    `cut`: even: sizes differ by one at most, the first towers have more; rest: the last tower takes what is
    left over. `slice_on`: tower: the whole batch goes to every tower, which takes its rows there; host: the
    CPU cuts, and each tower gets its rows alone. `merge_on`: server: outputs come together where the
    variables are; host: on the CPU.
    """

    name: Method
    cut: Cut
    slice_on: Literal["tower", "host"]
    merge_on: Literal["server", "host"]

    @property
    def says(self) -> str:
        """What moves, for the user."""
        moves = (
            "the whole batch goes from the CPU to every device, which takes its rows"
            if self.slice_on == "tower"
            else "the CPU cuts the batch"
        )
        merged = "where the variables are" if self.merge_on == "server" else "on the CPU"
        return f"Method {self.name}: {moves}; outputs come together {merged}, for one loss."


RECIPES: dict[Method, MethodRecipe] = {
    # keras-extras drops the rows that do not divide, so labels and outputs differ in number. Here none is.
    "kuza55": MethodRecipe("kuza55", "even", "tower", "server"),
    "avolkov1": MethodRecipe("avolkov1", "rest", "host", "server"),
    "fchollet": MethodRecipe("fchollet", "rest", "tower", "host"),
}


def rows_of_towers(batch: int, towers: int, cut: Cut) -> list[tuple[int, int]]:
    """Return (first row, rows) of each tower. Raises UsageError if a tower would get none."""
    if batch < towers:
        raise UsageError(
            f"a batch of {batch} does not give each of {towers} devices a row",
            f"use a batch of {towers} or more, or fewer devices",
        )
    each, left = divmod(batch, towers)
    found, first = [], 0
    for tower in range(towers):
        more = int(tower < left) if cut == "even" else (left if tower == towers - 1 else 0)
        found.append((first, each + more))
        first += each + more
    return found
