"""Where the variables of a run are, for trainers that are not our own towers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gputopo.launch.train.placement.checking import short_name
from gputopo.values.errors import HardwareError


@dataclass(frozen=True)
class HeldVariables:
    """Trained variables [place][variable] and moving statistics [place][variable], in the model's order."""

    places: Sequence[Sequence[Any]]
    states: Sequence[Sequence[Any]]
    buffers: Sequence[Any] = ()

    def start_afresh(self) -> None:
        """Nothing is carried from step to step."""


def bytes_on(sets: Sequence[tuple[Sequence[Any], str]]) -> dict[str, int]:
    """Give the bytes of sets of variables by device, each set with the device that it has to be on.

    Raises HardwareError if a variable is elsewhere.
    """
    placed = Counter[str]()
    for variables, device in sets:
        for variable in variables:
            found = short_name(variable.device)
            if found != device:
                raise HardwareError(
                    f"variable {variable.name} is on {found}, not on {device}",
                    "report it with the run's worker.log",
                )
            placed[device] += variable.shape.num_elements() * variable.dtype.size
    return dict(placed)
