"""What of a machine was checked: how many checks had facts to judge, and which facts were not read.

A missing fact makes no finding. So "no findings" alone would say the same of a capture that shows only the
topology and of a whole machine.
"""

from collections.abc import Callable

from gputopo.findings.rule import by_model, present
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import has_any

Need = Callable[[Machine], bool]
"""Whether a machine has the facts that a check judges."""


def never(machine: Machine) -> bool:
    """Need what no machine has: for a check that reports gaps of a reading, and judges no fact."""
    return False


def of_machine(*paths: str) -> Need:
    """Need any of these facts of the machine, `driver.status` or `pci[*].acs`."""
    return lambda machine: has_any(machine, paths)


def of_gpus(*paths: str, when: Callable[[Gpu], bool] | None = None, peers: int = 1) -> Need:
    """Need any of these facts of a GPU that answers.

    `when`: only of such a GPU, one under load. `peers`: of so many GPUs of one model.
    """

    def is_met(machine: Machine) -> bool:
        groups = by_model(machine) if peers > 1 else [present(machine)]
        able = (
            [gpu for gpu in group if (when is None or when(gpu)) and has_any(gpu, paths)] for group in groups
        )
        return any(len(gpus) >= peers for gpus in able)

    return is_met
