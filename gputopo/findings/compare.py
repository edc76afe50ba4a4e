"""Compares values of devices or hosts: the value of more than half of them, and the values that differ."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from gputopo.values.fields import field_at
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu

Who = TypeVar("Who", bound=Hashable)


class Majority(NamedTuple, Generic[Who]):
    """`common`: the value of more than half, or None. `odd`: other values by owner (all if none is common).

    `others`: how many owners have the common value.
    """

    common: Any
    odd: dict[Who, Any]
    others: int


def majority(
    values: Mapping[Who, Any], same: Callable[[Any, Any], bool] | None = None
) -> Majority[Who] | None:
    """Compare facts by owner. Return None if all agree.

    A fact is equal or not, so most owners show what is usual. Rates of a run vary with noise and need bounds:
    see `gputopo.runs.devices.reference_of`.

    `same`: returns whether two values are the same; default: equality. If two values are equally frequent,
    the greater value comes first.
    """
    distinct = list(dict.fromkeys(values.values()))
    if len(distinct) < 2:
        return None
    count = dict.fromkeys(distinct, 0)
    for value in values.values():
        count[value] += 1
    near = {
        value: [other for other in distinct if other == value or (same is not None and same(other, value))]
        for value in distinct
    }
    having = {value: sum(count[other] for other in near[value]) for value in distinct}
    common = max(
        distinct, key=lambda value: (having[value], float(value) if isinstance(value, int | float) else 0.0)
    )
    if having[common] == len(values):
        return None
    if 2 * having[common] <= len(values):
        return Majority(None, dict(values), 0)
    odd = {who: value for who, value in values.items() if value not in near[common]}
    return Majority(common, odd, having[common])


class FactDifference(NamedTuple):
    """GPUs of one model that do not agree on a fact."""

    path: str
    common: Any  # the value of more than half, or None
    odd: Mapping[int, Any]  # the differing values by index; all values if none is common
    others: int  # how many GPUs have the common value

    def words(self, index: int) -> str:
        """Return the values of one GPU and of the others: `VBIOS version A (B on 7 GPUs of this model)`."""
        field = field_at(Gpu, self.path)
        others = f"{field.value_in_words(self.common)} on {self.others} GPUs of this model"
        return f"{field.words} {field.value_in_words(self.odd[index])} ({others})"

    def all_words(self) -> str:
        """Return the value of each GPU, if none is common: `VBIOS version A (GPU 0), B (GPU 1)`."""
        field = field_at(Gpu, self.path)
        gpus = grouped((field.value_in_words(value), index) for index, value in self.odd.items())
        return f"{field.words} " + ", ".join(
            f"{value} (GPU {index_ranges(indices)})" for value, indices in gpus.items()
        )


def known(group: Iterable[Gpu], path: str) -> dict[int, Any]:
    """Return the known values of a fact, by GPU."""
    read = attrgetter(path)
    return {gpu.index: value for gpu in group if (value := read(gpu)) is not None}


def differences(group: Sequence[Gpu], path: str, noise: float = 0.0) -> FactDifference | None:
    """Compare a fact between GPUs of one model. Return None if all GPUs that report it agree.

    `noise`: values within this share of the common value are the same.
    """
    values = known(group, path)
    disagreement = majority(values, (lambda a, b: abs(a - b) <= noise * max(a, b)) if noise else None)
    return (
        None
        if disagreement is None
        else FactDifference(path, disagreement.common, disagreement.odd, disagreement.others)
    )
