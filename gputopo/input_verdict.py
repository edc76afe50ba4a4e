"""Whether the input holds a run back, from this run and an earlier one of the same work. Pure.

One run cannot tell: its steps wait for the input and compute at the same time. The input alone
(`--input-only`) and training on data that is made on the devices are two runs, and here they meet.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gputopo.errors import UsageError
from gputopo.input_bound import judge
from gputopo.result import InputVerdict, Result

# What two runs must have in common to be the same work at the same place.
_SAME = ("model", "batch_size", "backend", "rehearsal_of")


def verdict(result: Result, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    """Judge by the first of the earlier runs that is the other half; None where there is none.

    `earlier`: where they lie and what they gave, latest first. Of training on data that costs nothing there
    is nothing to judge.
    """
    if result.status != "complete" or result.throughput is None:
        return None
    alone = result.spec.get("task") == "input"
    if not alone and (result.spec.get("task") != "train" or _is_free(result.spec)):
        return None
    for where, other in earlier:
        if other.throughput is None or other.status != "complete" or not _same_place(result.spec, other.spec):
            continue
        if alone and other.spec.get("task") == "train" and _is_free(other.spec):
            return _judged(result.throughput.mean, other.throughput.mean, where)
        if not alone and other.spec.get("task") == "input" and _data(other.spec) == _data(result.spec):
            return _judged(other.throughput.mean, result.throughput.mean, where)
    return None


def _judged(input_rate: float, training_rate: float, where: str) -> InputVerdict | None:
    try:
        found = judge(input_rate, training_rate)
    except UsageError:  # a run without any speed
        return None
    return InputVerdict(verdict=found.verdict, headroom=found.headroom, says=found.says, other=where)


def _same_place(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    same = all(a.get(name) == b.get(name) for name in _SAME)
    return same and len(a.get("devices", ())) == len(b.get("devices", ()))


def _data(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    data = spec.get("data")
    return data if isinstance(data, Mapping) else {}


def _is_free(spec: Mapping[str, Any]) -> bool:
    """Whether the examples are made once on the devices, so that the input takes no time."""
    data = _data(spec)
    return data.get("folder") is None and data.get("source", "gpu") == "gpu"
