"""The sets of GPUs that lie closest together, exactly, over all sets. Integers in, integers out."""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from math import comb, prod
from typing import Any, NamedTuple

Nearness = Callable[[int, int], Any]
"""The sort key of a pair of GPUs (smaller is nearer), the same for (a, b) and (b, a)."""

MAX_STEPS = 2_000_000  # a few seconds; sixteen GPUs need at most comb(17, 8) - 1 = 24 309


class TooManySetsError(Exception):
    """More sets than can be looked at; never for up to 16 GPUs."""


class FoundSet(NamedTuple):
    """A set of GPUs; how many sets (this one included) differ from it only by GPUs that are alike;
    and how many of all sets are as close, with as many deprioritized GPUs."""

    gpus: tuple[int, ...]
    alike: int
    equal: int


def closest_sets(
    gpus: Sequence[int],
    nearness: Nearness,
    size: int,
    *,
    keep: int,
    required: int | None = None,
    deprioritized: Collection[int] = (),
    aside: Callable[[int], Any] = lambda gpu: 0,
    max_steps: int = MAX_STEPS,
) -> tuple[FoundSet, ...]:
    """Return the `keep` closest sets of `size` GPUs, the best first.

    The order: the set with the fewest `deprioritized` GPUs comes first. Of those, the pairs of a set are
    sorted farthest first and compared one by one, so the set with the closest farthest pair wins, then the
    one with fewer such pairs, then by the next class; of equal sets the one whose GPUs are nearer to a thing
    beside them, by the key of `aside`, farthest first; then the one with the lowest indices. GPUs that are
    equally near to every other GPU and to that, and both deprioritized or not, are alike: of the sets that
    differ only in them, the first in this order stands for all. `required` is in every set.

    The caller ensures `1 <= size <= len(gpus)` and `keep >= 1`. Raises TooManySetsError after
    `max_steps` steps of the search.
    """
    last = set(deprioritized) - {required}
    order = sorted(gpus, key=lambda gpu: (gpu in last, gpu))
    search = _Search(order, nearness, size, keep, required, last, aside, max_steps)
    search.look(0, [], 0)
    return tuple(
        FoundSet(
            tuple(-gpu for gpu in entry.minus_gpus),
            search.alike(entry.chosen),
            search.equal[-entry.minus_cost],
        )
        for entry in sorted(search.best, reverse=True)
    )


class _Entry(NamedTuple):
    """A set among the best so far; the best is the greatest. `chosen`: positions."""

    minus_cost: int
    minus_gpus: tuple[int, ...]  # the lowest first
    chosen: tuple[int, ...]


class _Search:
    """A walk over the sets in rising order of positions, which cuts off what cannot be among the best."""

    def __init__(
        self,
        gpus: list[int],
        nearness: Nearness,
        size: int,
        keep: int,
        required: int | None,
        last: Collection[int],
        aside: Callable[[int], Any],
        max_steps: int,
    ) -> None:
        self.gpus, self.size, self.keep, self.max_steps = gpus, size, keep, max_steps
        self.required = None if required is None else gpus.index(required)
        beside = _own_weights([aside(gpu) for gpu in gpus], size)
        self.weights, above = _pair_weights(gpus, nearness, size, 1 + size * max(beside))
        self.own = [own + (above if gpu in last else 0) for gpu, own in zip(gpus, beside, strict=True)]
        self.twins = _twins(self.weights, self.own, self.required)
        self.kind = _kinds(self.twins)
        self.of_kind = Counter(self.kind)
        self.best: list[_Entry] = []  # a heap, the worst on top
        self.equal: Counter[int] = Counter()
        self.steps = 0

    def look(self, start: int, chosen: list[int], cost: int) -> None:
        """Complete `chosen` (positions) in all combinations with positions from `start` on."""
        missing = self.size - len(chosen)
        if missing == 0:
            self._take(chosen, cost)
            return
        for position in range(start, len(self.gpus) - missing + 1):
            if self._leaves_out_required(position, chosen):
                continue
            twin = self.twins[position]
            if twin is not None and twin not in chosen:
                continue  # the set with the lower twin in its place is exactly as good
            self.steps += 1
            if self.steps > self.max_steps:
                raise TooManySetsError
            row = self.weights[position]
            grown = cost + self.own[position] + sum(row[other] for other in chosen)
            if len(self.best) == self.keep and grown > -self.best[0].minus_cost:
                continue  # every further GPU only adds to it
            self.look(position + 1, [*chosen, position], grown)

    def alike(self, chosen: Sequence[int]) -> int:
        """Count the sets that come of this one (positions) by swapping GPUs that are alike."""
        taken = Counter(self.kind[position] for position in chosen)
        return prod(comb(self.of_kind[kind], count) for kind, count in taken.items())

    def _leaves_out_required(self, position: int, chosen: list[int]) -> bool:
        """Whether no set with this position next can still hold the required one."""
        if self.required is None or self.required in chosen or position == self.required:
            return False
        return position > self.required or len(chosen) + 1 == self.size

    def _take(self, chosen: list[int], cost: int) -> None:
        self.equal[cost] += self.alike(chosen)
        gpus = sorted(self.gpus[position] for position in chosen)
        entry = _Entry(-cost, tuple(-gpu for gpu in gpus), tuple(chosen))
        if len(self.best) < self.keep:
            heapq.heappush(self.best, entry)
        else:
            heapq.heappushpop(self.best, entry)


def _own_weights(keys: Sequence[Any], size: int) -> list[int]:
    """Turn the keys of GPUs into integers whose sum over a set orders sets of one size, farthest first."""
    place = {key: number for number, key in enumerate(sorted(set(keys)))}
    # The nearest weighs nothing: where all are as near, no set is heavier for it.
    return [(1 << (size.bit_length() * place[key])) - 1 for key in keys]


def _pair_weights(
    gpus: Sequence[int], nearness: Nearness, size: int, unit: int
) -> tuple[list[list[int]], int]:
    """Turn nearness into integers whose sum over the pairs orders sets of one size as `closest_sets` does.

    Return them and a number above the sum over any set: the weight of a deprioritized GPU. `unit`: of the
    lightest pair, above what the GPUs of a set weigh by themselves.

    A pair of the n-th nearest class weighs as much as one digit in place n of a number whose base is larger
    than the pairs of a set, so no number of nearer pairs can outweigh one that is farther.
    """
    keys = {(i, j): nearness(gpus[i], gpus[j]) for i, j in combinations(range(len(gpus)), 2)}
    digit_bits = comb(size, 2).bit_length()
    place = {key: number for number, key in enumerate(sorted(set(keys.values())))}
    weights = [[0] * len(gpus) for _ in gpus]
    for (i, j), key in keys.items():
        weights[i][j] = weights[j][i] = unit << (digit_bits * place[key])
    return weights, unit << (digit_bits * len(place))


def _twins(weights: list[list[int]], own: Sequence[int], required: int | None) -> list[int | None]:
    """Return for each position the next lower one that is alike: as heavy, and equally near to the others."""
    twins: list[int | None] = []
    for position, row in enumerate(weights):
        twins.append(
            next(
                (
                    lower
                    for lower in reversed(range(position))
                    if required not in (position, lower)
                    and own[position] == own[lower]
                    and all(
                        row[other] == weights[lower][other]
                        for other in range(len(weights))
                        if other not in (position, lower)
                    )
                ),
                None,
            )
        )
    return twins


def _kinds(twins: Sequence[int | None]) -> list[int]:
    """Return for each position the lowest one that is alike."""
    kinds: list[int] = []
    for position, twin in enumerate(twins):
        kinds.append(position if twin is None else kinds[twin])
    return kinds
