"""Every candidate of a machine in order: all sets of GPUs with all places for the variables. Pure.

What a set or a group of places has in common is worked out once. Of a candidate its step and two numbers are
stored, so that some hundred thousand fit into little memory; the rest is made as it is read.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from gputopo.prediction.links.rates import Rates
from gputopo.prediction.sets import DIGITS, Found, Question, Sets, mask_of, rates_kind
from gputopo.prediction.step import Placing, Prediction
from gputopo.values.errors import NoPlanError

MAX_SETS = 20_000  # that differ: 8 of 16 GPUs are 12,870
DETAILED = 1000  # of so many candidates, the first, the links that limit them are looked for
_NO_RATES = Rates(0.0, 0.0)


def every_candidate(
    question: Question, pool: Sequence[int], after: Sequence[Placing] = ()
) -> Iterator[Found]:
    """Iterate over all candidates, the best first; those with places of `after` follow all others.

    The caller ensures `1 <= size <= len(pool)`. Only the first DETAILED have the links that limit them.
    Raises NoPlanError where more than MAX_SETS sets differ.
    """
    listing = others = _Listing(Sets(question, sorted(pool)))
    sets = Sets(question._replace(placings=tuple(after)), sorted(pool))
    if sets.kind != listing.sets.kind:  # fewer sets are alike where the order of towers counts
        others = _Listing(sets)

    def found() -> Iterator[Found]:
        detailed = DETAILED
        for each, placings in ((listing, question.placings), (others, after)):
            for number, placing, rates in each.candidates(placings):
                yield each.found(number, placing, rates, detailed=detailed > 0)
                detailed -= 1

    return found()


class _Group(NamedTuple):
    """Places for the variables whose steps are the same in any set; `owner`: the GPU that has them all."""

    placings: tuple[Placing, ...]
    owner: int | None


class _Listing:
    """All sets of a question, by number, with the rates of each."""

    def __init__(self, sets: Sets) -> None:
        self.sets = sets
        gpus = list(islice(sets.every(), MAX_SETS + 1))
        if len(gpus) > MAX_SETS:
            raise NoPlanError(
                f"more than {MAX_SETS} sets of {sets.question.size} GPUs differ: too many to list",
                "narrow the choice with --gpus or --exclude, or list the best: --candidates 1000",
            )
        self._gpus = sorted(gpus, key=lambda one: (sets.tie(one), one))
        self._compute = [sets.compute(one) for one in self._gpus]
        self._alike = [sets.alike(one) for one in self._gpus]
        self._rates: dict[object, array[float]] = {}

    def candidates(self, placings: Sequence[Placing]) -> Iterator[tuple[int, Placing, Rates]]:
        """Iterate over sets with one of these places: those with few GPUs of `last` first, then by step."""
        groups = self._groups(placings)
        rates = [self._rates_of(group) for group in groups]
        last = [len(self.sets.last.intersection(gpus)) for gpus in self._gpus]
        for count in self.sets.counts_of_last():
            numbers = [number for number, there in enumerate(last) if there == count]
            entries = sorted(
                (step_s, number, place)
                for place, group in enumerate(groups)
                for number, step_s in self._steps(group, numbers, rates[place])
            )
            for _, number, place in entries:
                one = Rates(rates[place][2 * number], rates[place][2 * number + 1])
                for placing in groups[place].placings:
                    yield number, placing, one

    def found(self, number: int, placing: Placing, rates: Rates, *, detailed: bool) -> Found:
        """Return a candidate, `detailed`: with the links that limit it."""
        gpus, compute = self._gpus[number], self._compute[number]
        if detailed:
            return self.sets.found(gpus, placing, rates)
        parts = self.sets.stepper.predict(placing, compute, *rates)
        return Found(gpus, placing, Prediction(compute, *parts), self._alike[number])

    def _groups(self, placings: Sequence[Placing]) -> list[_Group]:
        """Return the places for the variables by what their steps depend on, in their order."""
        groups: dict[object, list[Placing]] = {}
        for placing in placings:
            key = rates_kind(placing), self.sets.stepper.terms(placing)
            groups.setdefault(key, []).append(placing)
        return [_Group(tuple(each), each[0].owner) for each in groups.values()]

    def _steps(
        self, group: _Group, numbers: Sequence[int], rates: Sequence[float]
    ) -> Iterator[tuple[int, float]]:
        """Iterate over the sets that can have a group of places, with the seconds of a step."""
        placing, predict = group.placings[0], self.sets.stepper.predict
        for number in numbers:
            if group.owner is None or group.owner in self._gpus[number]:
                compute = self._compute[number]
                parts = predict(placing, compute, rates[2 * number], rates[2 * number + 1])
                yield number, round(compute + sum(parts), DIGITS)

    def _rates_of(self, group: _Group) -> "array[float]":
        """Return the two rates of each set that can have a group of places, one after the other; else 0."""
        placing = group.placings[0]
        kind = rates_kind(placing)
        if kind not in self._rates:
            rates = self._rates[kind] = array("d")
            for gpus in self._gpus:
                there = group.owner is None or group.owner in gpus
                rates.extend(self.sets.rates(placing, gpus, mask_of(gpus)) if there else _NO_RATES)
        return self._rates[kind]
