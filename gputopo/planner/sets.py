"""The best sets of GPUs, exactly: every set is compared. Pure.

GPUs that are alike can be exchanged: of the sets that differ only in them the one with the lowest indices
stands for all.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import combinations, islice
from math import comb, prod
from typing import Any, NamedTuple

from gputopo.values.errors import NoPlanError

MAX_SETS = 20_000  # that differ: 8 of 16 GPUs are 12,870


class GpuSet(NamedTuple):
    """A set of GPUs, and how many sets it stands for, itself included."""

    gpus: tuple[int, ...]
    alike: int = 1


class SetQuestion(NamedTuple):
    """What sets are compared by: the fewest GPUs of `last`, then the slowest GPU, then the farthest pairs.

    `ranks`: of the speed of each GPU, the fastest 0; with `by_sum` all GPUs of a set count, not only the
    slowest. `nearness`: sort key of a pair.
    """

    size: int
    nearness: Callable[[int, int], Any]
    ranks: Mapping[int, int]
    by_sum: bool = False
    required: int | None = None  # a GPU that every set has
    last: Collection[int] = ()


def best_sets(question: SetQuestion, pool: Sequence[int], keep: int) -> list[GpuSet]:
    """Return the `keep` best sets of a pool, the best first.

    The caller ensures `1 <= size <= len(pool)`. Raises NoPlanError if more than MAX_SETS sets differ.
    """
    members = _kinds(question, sorted(pool))
    sets = list(islice(_every(question, members), MAX_SETS + 1))
    if len(sets) > MAX_SETS:
        raise NoPlanError(
            f"more than {MAX_SETS} sets of {question.size} GPUs differ: too many to compare",
            "narrow the choice with --gpus or --exclude",
        )
    keys = {pair: question.nearness(*pair) for pair in combinations(sorted(pool), 2)}
    # Numbers in the order of the keys: they are faster to compare.
    numbers = {key: number for number, key in enumerate(sorted({*keys.values()}, reverse=True))}
    far = {pair: -numbers[key] for pair, key in keys.items()}
    last = {*question.last} - {question.required}
    whole = sum if question.by_sum else max

    def order(gpus: tuple[int, ...]) -> tuple[object, ...]:
        pairs = sorted([far[pair] for pair in combinations(gpus, 2)], reverse=True)
        return len(last.intersection(gpus)), whole([question.ranks[gpu] for gpu in gpus]), pairs, gpus

    best = nsmallest(keep, sets, key=order)
    kind = {gpu: first for first, alike in members.items() for gpu in alike}

    def count(gpus: tuple[int, ...]) -> int:
        return prod(comb(len(members[one]), taken) for one, taken in Counter(map(kind.get, gpus)).items())

    return [GpuSet(gpus, count(gpus)) for gpus in best]


def _kinds(question: SetQuestion, pool: Sequence[int]) -> dict[int | None, list[int]]:
    """Return the GPUs that are alike, by the lowest of them."""
    members: dict[int | None, list[int]] = {}
    for gpu in pool:
        first = next(
            (one for one in members if one is not None and _are_alike(question, pool, one, gpu)), gpu
        )
        members.setdefault(first, []).append(gpu)
    return members


def _are_alike(question: SetQuestion, pool: Sequence[int], a: int, b: int) -> bool:
    return (
        question.required not in (a, b)
        and (a in question.last) == (b in question.last)
        and question.ranks[a] == question.ranks[b]
        and all(question.nearness(a, gpu) == question.nearness(b, gpu) for gpu in pool if gpu not in (a, b))
    )


def _every(question: SetQuestion, members: Mapping[int | None, Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Iterate over the first of each sets that are alike."""
    kinds = list(members.values())
    after = [sum(map(len, kinds[number + 1 :])) for number in range(len(kinds))]

    def extend(number: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        missing = question.size - len(chosen)
        if not missing:
            if question.required is None or question.required in chosen:
                yield tuple(sorted(chosen))
            return
        for count in range(max(0, missing - after[number]), min(missing, len(kinds[number])) + 1):
            yield from extend(number + 1, (*chosen, *kinds[number][:count]))

    return extend(0, ())
