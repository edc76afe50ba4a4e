"""The GPUs of one model compared by a fact: the value of the majority, and those that differ."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from gputopo.findings.majority import majority
from gputopo.values.fields import field_at
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu


class Difference(NamedTuple):
    """GPUs of one model that do not agree on a fact. `common`: the value of more than half, else None.

    `odd`: the values of the others, by index: of all of them where none is common. `others`: how many GPUs
    have the common value.
    """

    path: str
    common: Any
    odd: Mapping[int, Any]
    others: int

    def words(self, index: int) -> str:
        """Return what one GPU has and the others have: `VBIOS version A (B on 7 GPUs of this model)`."""
        field = field_at(Gpu, self.path)
        others = f"{field.value_in_words(self.common)} on {self.others} GPUs of this model"
        return f"{field.words} {field.value_in_words(self.odd[index])} ({others})"

    def all_words(self) -> str:
        """Return what each GPU has where no value is common: `VBIOS version A (GPU 0), B (GPU 1)`."""
        field = field_at(Gpu, self.path)
        gpus: dict[str, list[int]] = {}
        for index, value in self.odd.items():
            gpus.setdefault(field.value_in_words(value), []).append(index)
        return f"{field.words} " + ", ".join(
            f"{value} (GPU {index_ranges(indices)})" for value, indices in gpus.items()
        )


def known(group: Iterable[Gpu], path: str) -> dict[int, Any]:
    """Return the values of a fact by GPU, where they are known."""
    read = attrgetter(path)
    return {gpu.index: value for gpu in group if (value := read(gpu)) is not None}


def differences(group: Sequence[Gpu], path: str, noise: float = 0.0) -> Difference | None:
    """Compare the GPUs of one model by a fact; None where all that report it agree.

    `noise`: values within this share of the common one are the same.
    """
    values = known(group, path)
    found = majority(values, (lambda a, b: abs(a - b) <= noise * max(a, b)) if noise else None)
    return None if found is None else Difference(path, found.common, found.odd, found.others)
