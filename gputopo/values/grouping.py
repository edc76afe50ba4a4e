"""Items grouped by key, in the order of their first items."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from statistics import median
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Number = TypeVar("Number", int, float)


def grouped(items: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in the order of the first value of each."""
    by_key: dict[K, list[V]] = {}
    for key, value in items:
        by_key.setdefault(key, []).append(value)
    return by_key


def best(items: Iterable[tuple[K, V]], rank: Callable[[V], Any]) -> dict[K, V]:
    """Return the value of each key with the highest rank, the first of equal ones."""
    return {key: max(values, key=rank) for key, values in grouped(items).items()}


def maxima(items: Iterable[tuple[K, Number]]) -> dict[K, Number]:
    """Return the largest number of each key."""
    return {key: max(values) for key, values in grouped(items).items()}


def medians_of_others(values: Mapping[K, float]) -> dict[K, float]:
    """Return for each key the median of the values of the other keys; empty if there are no other keys.

    For clocks, power and counters, which are rarely equal: the value of most devices
    (`gputopo.findings.compare.majority`) does not exist there.
    """
    if len(values) < 2:
        return {}
    return {key: median(value for other, value in values.items() if other != key) for key in values}
