"""Whether the input holds a run back, from this run and, where there is one, an earlier one. Pure.

The input alone (`--input-only`) says nothing of training, so it is held against an earlier training on data
that is made on the devices. Training tells by itself: between two steps its devices do nothing but wait for
examples, and that time is measured. Its own rate says nothing: it is never above that of its input.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gputopo.runs.input_bound import NOISE, InputBound, judge, judge_waiting
from gputopo.runs.ran import what_ran
from gputopo.values.result import InputVerdict, Result

# What two runs must have in common to be the same work at the same place. How a training computed is told in
# words: a run of the input alone has no say in that.
_SAME = ("model", "batch_size", "backend", "rehearsal_of")
# Some batches are ready before the first counted step: so many steps show that more come as fast.
FEWEST_STEPS = 10


def verdict(result: Result, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    """Judge a run; None where there is nothing to judge, or nothing to judge it by.

    `earlier`: where other runs lie and what they gave, latest first. Of training on data that costs nothing
    there is nothing to judge.
    """
    rate = _rate(result)
    if rate is None:
        return None
    if result.spec.get("task") == "input":
        return _of_the_input(result, rate, earlier)
    if result.spec.get("task") == "train" and not _is_free(result.spec):
        return _of_training(result, rate, earlier)
    return None


def _of_the_input(result: Result, rate: float, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    for where, other, training in _rated(earlier):
        plain = other.spec.get("task") == "train" and not other.spec.get("extra_forward")
        if plain and _is_free(other.spec) and _same(result.spec, other.spec):
            return _told(judge(rate, training, _how(other.spec)), where)
    return None


def _of_training(result: Result, rate: float, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    share = result.input_waited_share
    if share is None or (share < NOISE and result.steps < FEWEST_STEPS):
        return None
    for where, other, alone in _rated(earlier):
        of_the_input = other.spec.get("task") == "input" and _data(other.spec) == _data(result.spec)
        if of_the_input and _same(result.spec, other.spec):
            return _told(judge_waiting(share, rate, alone), where)
    return _told(judge_waiting(share, rate), None)


def _rated(earlier: Iterable[tuple[str, Result]]) -> Iterator[tuple[str, Result, float]]:
    for where, other in earlier:
        rate = _rate(other)
        if rate is not None:
            yield where, other, rate


def _rate(result: Result) -> float | None:
    """Give a run's images/sec; None where it has none that could be compared."""
    if result.status != "complete" or result.throughput is None:
        return None
    rate = result.throughput.mean
    return rate if rate > 0 and math.isfinite(rate) else None


def _told(found: InputBound, where: str | None) -> InputVerdict:
    return InputVerdict(verdict=found.verdict, headroom=found.headroom, says=found.says, other=where)


def _how(spec: Mapping[str, Any]) -> str:
    ran = what_ran(spec)
    return ", ".join(str(ran[name]) for name in ("trainer", "variable_update", "precision") if name in ran)


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a.get(name) == b.get(name) for name in _SAME) and _cards(a) == _cards(b)


def _cards(spec: Mapping[str, Any]) -> list[Any]:
    """Give the GPU of every device, None for one that is a CPU."""
    devices = spec.get("devices", ())
    return [device.get("gpu") if isinstance(device, Mapping) else device for device in devices]


def _data(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    data = spec.get("data")
    return data if isinstance(data, Mapping) else {}


def _is_free(spec: Mapping[str, Any]) -> bool:
    """Whether the examples are made once on the devices, so that the input takes no time."""
    data = _data(spec)
    return data.get("folder") is None and data.get("source", "gpu") == "gpu"
