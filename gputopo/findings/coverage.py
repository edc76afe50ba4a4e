"""What of a machine was checked: how many checks had facts to judge, and which facts were not read.

A missing fact makes no finding. So "no findings" alone would say the same of a capture that shows only the
topology and of a whole machine.
"""

from collections.abc import Callable, Iterator

import msgspec

from gputopo.findings.rule import by_model, present
from gputopo.values.fields import field_at
from gputopo.values.index_ranges import gpu_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import at_gpu, reason_for, values_at

Need = Callable[[Machine], bool]
"""Whether a machine has the facts that a check judges."""

# Facts of a GPU that the first line of a report mentions if none of a part was read, by their name there.
_PARTS = {
    "clocks": ("clocks_mhz.graphics", "clocks_mhz.sm", "clocks_mhz.memory"),
    "power": ("power_w.draw", "power_w.limit"),
    "temperature": ("temperature_c.gpu",),
    "ECC": ("ecc.mode", "ecc.counts", "ecc.uncorrected_volatile", "remapped_rows.failure"),
    "PCIe links": ("pcie.width_now", "pcie.gen_now"),
}
# Reasons of a missing fact by which the card does not have it: of NVML, and of nvidia-smi.
DOES_NOT_APPLY = ("NOT_SUPPORTED", "N/A", "Not Supported", "[N/A]", "[Not Supported]")


def never(machine: Machine) -> bool:
    """Need what no machine has: for a check that reports gaps of a reading, and judges no fact."""
    return False


def of_machine(*paths: str) -> Need:
    """Need any of these facts of the machine, `driver.status` or `pci[*].acs`."""
    return lambda machine: _has_any(machine, paths)


def of_gpus(*paths: str, when: Callable[[Gpu], bool] | None = None, peers: int = 1) -> Need:
    """Need any of these facts of a GPU that answers.

    `when`: only of such a GPU, one under load. `peers`: of so many GPUs of one model.
    """

    def is_met(machine: Machine) -> bool:
        groups = by_model(machine) if peers > 1 else [present(machine)]
        able = (
            [gpu for gpu in group if (when is None or when(gpu)) and _has_any(gpu, paths)] for group in groups
        )
        return any(len(gpus) >= peers for gpus in able)

    return is_met


def unread_parts(machine: Machine) -> Iterator[str]:
    """Yield the parts of which nothing was read: `temperature`; `temperature of GPU 3` if others have it.

    A part that a card does not have, such as ECC, is none.
    """
    gpus = present(machine)
    for words, paths in _PARTS.items():
        unread = [
            gpu.index for gpu in gpus if not _has_any(gpu, paths) and not _is_without(machine, gpu, paths)
        ]
        if unread:
            yield words if len(unread) == len(gpus) else f"{words} of {gpu_ranges(unread)}"
    if len(gpus) > 1 and not _has_any(machine, ("links[*].hop", "links[*].nvlinks")):
        yield "topology"


def _has_any(value: Machine | Gpu, paths: tuple[str, ...]) -> bool:
    return any(_is_known(type(value), path, one) for path in paths for one in values_at(value, path))


def _is_known(kind: type[Machine | Gpu], path: str, value: object) -> bool:
    if isinstance(value, msgspec.Struct):
        return value != type(value)()
    return value not in ((), {}) and field_at(kind, path).is_known(value)


def _is_without(machine: Machine, gpu: Gpu, paths: tuple[str, ...]) -> bool:
    return any(reason_for(machine.missing, at_gpu(gpu.index, path)) in DOES_NOT_APPLY for path in paths)
