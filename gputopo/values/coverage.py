"""Which parts of a machine were not read: a missing fact makes no finding, so reports name them."""

from collections.abc import Iterator

import msgspec

from gputopo.values.fields import field_at
from gputopo.values.index_ranges import gpu_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import DOES_NOT_APPLY, at_gpu, reason_for, values_at

# Facts of a GPU that the first line of a report mentions if none of a part was read, by their name there.
_PARTS = {
    "clocks": ("clocks_mhz.graphics", "clocks_mhz.sm", "clocks_mhz.memory"),
    "power": ("power_w.draw", "power_w.limit"),
    "temperature": ("temperature_c.gpu",),
    "ECC": ("ecc.mode", "ecc.counts", "ecc.uncorrected_volatile", "remapped_rows.failure"),
    "PCIe links": ("pcie.width_now", "pcie.gen_now"),
}


def unread_parts(machine: Machine) -> Iterator[str]:
    """Yield the parts of which nothing was read: `temperature`; `temperature of GPU 3` if others have it.

    A part that a card does not have, such as ECC, is none.
    """
    gpus = [gpu for gpu in machine.gpus if not gpu.lost]
    for words, paths in _PARTS.items():
        unread = [
            gpu.index for gpu in gpus if not has_any(gpu, paths) and not _is_without(machine, gpu, paths)
        ]
        if unread:
            yield words if len(unread) == len(gpus) else f"{words} of {gpu_ranges(unread)}"
    if len(gpus) > 1 and not has_any(machine, ("links[*].hop", "links[*].nvlinks")):
        yield "topology"


def has_any(value: Machine | Gpu, paths: tuple[str, ...]) -> bool:
    """Return whether any of these facts is known."""
    return any(_is_known(type(value), path, one) for path in paths for one in values_at(value, path))


def _is_known(kind: type[Machine | Gpu], path: str, value: object) -> bool:
    if isinstance(value, msgspec.Struct):
        return value != type(value)()
    return value not in ((), {}) and field_at(kind, path).is_known(value)


def _is_without(machine: Machine, gpu: Gpu, paths: tuple[str, ...]) -> bool:
    return any(reason_for(machine.missing, at_gpu(gpu.index, path)) in DOES_NOT_APPLY for path in paths)
