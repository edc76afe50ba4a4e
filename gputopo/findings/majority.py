"""Values of several devices or hosts compared: what more than half of them have, and those that differ."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

Who = TypeVar("Who", bound=Hashable)


class Majority(NamedTuple, Generic[Who]):
    """`common`: the value of more than half, else None. `odd`: the values of the others, by who has them: of
    all where none is common. `others`: how many have the common value.
    """

    common: Any
    odd: dict[Who, Any]
    others: int


def majority(
    values: Mapping[Who, Any], same: Callable[[Any, Any], bool] | None = None
) -> Majority[Who] | None:
    """Compare values by who has them; None where all agree.

    `same`: whether two values are the same, where that is not equality. Of two values that as many have, the
    greater one is looked at first.
    """
    distinct = list(dict.fromkeys(values.values()))
    if len(distinct) < 2:
        return None
    count = dict.fromkeys(distinct, 0)
    for value in values.values():
        count[value] += 1
    near = {
        one: [other for other in distinct if other == one or (same is not None and same(other, one))]
        for one in distinct
    }
    having = {one: sum(count[other] for other in near[one]) for one in distinct}
    common = max(distinct, key=lambda one: (having[one], _number(one)))
    if having[common] == len(values):
        return None
    if 2 * having[common] <= len(values):
        return Majority(None, dict(values), 0)
    odd = {who: value for who, value in values.items() if value not in near[common]}
    return Majority(common, odd, having[common])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
