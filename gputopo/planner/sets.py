"""The best sets of GPUs, exactly: every set is compared.

Equivalent GPUs can be exchanged. Of sets that differ only in such GPUs, the set with the lowest indices
represents all of them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import combinations, islice
from math import comb, prod
from typing import Any, NamedTuple

from gputopo.values.errors import NoPlanError

MAX_SETS = 20_000  # sets that differ: 8 of 16 GPUs are 12,870


class GpuSet(NamedTuple):
    """A set of GPUs, and the number of sets that it represents, itself included."""

    gpus: tuple[int, ...]
    alike: int = 1


class SetQuestion(NamedTuple):
    """How sets are compared: by the fewest GPUs of `last`, then the slowest GPU, then the farthest pairs.

    `ranks`: rank of each GPU by speed, the fastest 0; with `by_sum` the ranks of all GPUs are used, not only
    the rank of the slowest. `nearness`: sort key of each pair, low index first.
    """

    size: int
    nearness: Mapping[tuple[int, int], Any]
    ranks: Mapping[int, int]
    by_sum: bool = False
    required: int | None = None  # a GPU that every set contains
    last: Collection[int] = ()

    def order(self, gpus: tuple[int, ...]) -> tuple[object, ...]:
        """Return the sort key of a set, the best first. `gpus`: in ascending order."""
        whole = sum if self.by_sum else max
        pairs = sorted(map(self.nearness.__getitem__, combinations(gpus, 2)), reverse=True)
        avoided = sum(gpu in self.last and gpu != self.required for gpu in gpus)
        return avoided, whole([self.ranks[gpu] for gpu in gpus]), pairs, gpus


def best_sets(question: SetQuestion, pool: Sequence[int], keep: int) -> list[GpuSet]:
    """Return the `keep` best sets of a pool, the best first.

    The caller ensures `1 <= size <= len(pool)`. Raises NoPlanError if more than MAX_SETS sets differ.
    """
    kinds = _kinds(question, sorted(pool))
    sets = list(islice(_every(question, kinds), MAX_SETS + 1))
    if len(sets) > MAX_SETS:
        raise NoPlanError(
            f"more than {MAX_SETS} sets of {question.size} GPUs differ: too many to compare",
            "narrow the choice with --gpus or --exclude",
        )
    return [
        GpuSet(gpus, prod(comb(len(kind), len({*kind} & {*gpus})) for kind in kinds))
        for gpus in nsmallest(keep, sets, key=question.order)
    ]


def _kinds(question: SetQuestion, pool: Sequence[int]) -> list[list[int]]:
    """Return the GPUs grouped by equivalence."""
    kinds: list[list[int]] = []
    for gpu in pool:
        for kind in kinds:
            if _are_alike(question, pool, kind[0], gpu):
                kind.append(gpu)
                break
        else:
            kinds.append([gpu])
    return kinds


def _are_alike(question: SetQuestion, pool: Sequence[int], a: int, b: int) -> bool:
    def key(gpu: int, other: int) -> Any:
        return question.nearness[min(gpu, other), max(gpu, other)]

    return (
        question.required not in (a, b)
        and (a in question.last) == (b in question.last)
        and question.ranks[a] == question.ranks[b]
        and all(key(a, gpu) == key(b, gpu) for gpu in pool if gpu not in (a, b))
    )


def _every(question: SetQuestion, kinds: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the first set of each group of equivalent sets."""
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
