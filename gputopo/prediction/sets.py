"""The sets of GPUs of one question, what each does with each place for the variables, which are alike. Pure.

GPUs that are alike in speed, links and paths to all others can be exchanged: of the sets that differ only in
them the one with the lowest indices stands for all.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import comb, inf, prod
from typing import Any, NamedTuple

from gputopo.prediction.gradients import IN_ORDER, Stage, Traffic
from gputopo.prediction.links.flows import FlowTable, Resource
from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.rates import Rates, RateTable
from gputopo.prediction.links.rings import Rings, once_round
from gputopo.prediction.programs import Program
from gputopo.prediction.step import HOST, Model, Placing, Prediction, Stepper, stage_limits
from gputopo.topology.hops import Groups
from gputopo.values.errors import NoPlanError

DIGITS = 9  # of the seconds of a step that decide; the rest is noise of floating-point sums


RatesKind = Placing | Traffic | int
"""What places with the same rates on any set have in common."""


class Found(NamedTuple):
    """A candidate with its prediction; `alike`: how many sets it stands for, itself included."""

    gpus: tuple[int, ...]
    placing: Placing
    prediction: Prediction
    alike: int


class Question(NamedTuple):
    """What is searched for. `compute_s`: each GPU's own step; `nearness`: sort key of a pair.

    Of sets that are as fast, the one whose pairs are nearer wins: farthest first, then the next; then the one
    whose GPUs are nearer to a thing beside them, by the key of `aside`. `placings`
    has gpu:N once for every N, whether or not N is in a set. `last`: GPUs that are taken only where
    there are too few others; sets with fewer of them come first, however slow. `groups`: of the towers on a
    set of GPUs, for a hierarchical reduction.
    """

    paths: Paths
    model: Model
    program: Program
    compute_s: Mapping[int, float]
    placings: tuple[Placing, ...]
    size: int
    nearness: Callable[[int, int], Any]
    required: int | None = None
    last: Collection[int] = ()
    groups: Callable[[Sequence[int]], Groups] = lambda gpus: ()
    aside: Callable[[int], Any] = lambda gpu: 0


class Sets:
    """The sets of a question with GPUs of a pool, by the first of those that are alike."""

    def __init__(self, question: Question, pool: Sequence[int]) -> None:
        self.question, self.pool = question, pool
        self.last = set(question.last).intersection(pool) - {question.required}
        self.table = RateTable(question.paths, pool)
        self.rings = Rings(self.table)
        self.flows = FlowTable(question.paths)
        self.stepper = Stepper(question.model, question.program, question.size, question.paths.cpus)
        self.aside = {gpu: question.aside(gpu) for gpu in pool}
        self.near = {(a, b): question.nearness(a, b) for a in pool for b in pool if a != b}
        self.kind = self._kinds()
        self.members: dict[int, list[int]] = {}
        for gpu, kind in self.kind.items():
            self.members.setdefault(kind, []).append(gpu)
        self._limits: dict[tuple[int, RatesKind], tuple[Resource | None, Resource | None]] = {}

    def counts_of_last(self) -> range:
        """Return how many GPUs that are taken only where there are too few others a set may have."""
        others = len(self.pool) - len(self.last)
        return range(max(0, self.question.size - others), min(self.question.size, len(self.last)) + 1)

    def every(self) -> Iterator[tuple[int, ...]]:
        """Iterate over the first of each sets that are alike."""
        kinds = list(self.members.values())
        after = [sum(map(len, kinds[number + 1 :])) for number in range(len(kinds))]
        required = self.question.required

        def extend(number: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            missing = self.question.size - len(chosen)
            if not missing:
                if required is None or required in chosen:
                    yield tuple(sorted(chosen))
                return
            for count in range(max(0, missing - after[number]), min(missing, len(kinds[number])) + 1):
                yield from extend(number + 1, (*chosen, *kinds[number][:count]))

        return extend(0, ())

    def first_of_kinds(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the set that stands for all sets with as many GPUs of each kind."""
        taken = Counter(map(self.kind.__getitem__, gpus))
        return tuple(sorted(gpu for kind, count in taken.items() for gpu in self.members[kind][:count]))

    def alike(self, gpus: Sequence[int]) -> int:
        """Return how many sets there are with as many GPUs of each kind."""
        taken = Counter(map(self.kind.__getitem__, gpus))
        return prod(comb(len(self.members[kind]), count) for kind, count in taken.items())

    def compute(self, gpus: Sequence[int]) -> float:
        """Return the compute of the slowest GPU, for which a synchronous step waits."""
        return max(map(self.question.compute_s.__getitem__, gpus))

    def tie(self, gpus: Sequence[int]) -> tuple[Any, ...]:
        """Return the sort key of sets that are as fast."""
        pairs = sorted(map(self.near.__getitem__, combinations(gpus, 2)), reverse=True)
        return tuple(pairs), tuple(sorted(map(self.aside.__getitem__, gpus), reverse=True))

    def found(self, gpus: tuple[int, ...], placing: Placing, rates: Rates) -> Found:
        """Return a candidate with its parts and the links that limit it."""
        compute, mask = self.compute(gpus), mask_of(gpus)
        if len(gpus) == 1 or placing.traffic == "none":
            return Found(gpus, placing, Prediction(compute), self.alike(gpus))
        kind = rates_kind(placing)
        if (mask, kind) not in self._limits:
            self._limits[mask, kind] = self._limits_of(placing, gpus, mask, rates)
        weights_by, gradients_by = self._limits[mask, kind]
        if self.stepper.is_limited_by_host(placing, rates.gradients):
            gradients_by = HOST
        parts = self.stepper.predict(placing, compute, *rates)
        prediction = Prediction(compute, *parts, weights_by, gradients_by)
        return Found(gpus, placing, prediction, self.alike(gpus))

    def rates(self, placing: Placing, gpus: tuple[int, ...], mask: int, within: float = inf) -> Rates:
        """Return the rates of a set with a place for the variables; a ring of `within` or more has inf."""
        traffic, owner = placing.traffic, placing.owner
        if traffic == "host":
            return self.table.with_host(gpus, mask)
        if traffic == "spread":
            return self.table.spread(gpus, mask)
        if traffic in ("owner", "first"):
            return self.table.with_owner(gpus[0] if owner is None else owner, gpus, mask)
        if traffic == "groups":
            stages = self.stepper.stages(placing, self._groups(placing, gpus))
            return Rates(self._stages_s(gpus, stages.back), self._stages_s(gpus, stages.sums))
        if traffic == "order":
            around = once_round(self.rings.seconds(gpus), len(gpus))
            return Rates(around, around)
        if traffic == "ring":
            found = self.rings.best(gpus, mask, within)
            return Rates(0.0, found[0] if found else inf)
        return Rates(0.0, 0.0)

    def _limits_of(
        self, placing: Placing, gpus: tuple[int, ...], mask: int, rates: Rates
    ) -> tuple[Resource | None, Resource | None]:
        traffic, owner = placing.traffic, placing.owner
        if traffic == "ring":
            # The order that was found below a limit may be another one that is as fast.
            found = self.rings.best(gpus, mask)
            assert found is not None
            return None, self.rings.limit(found[1])
        if traffic == "host":
            return self.table.limits_of_host(gpus, mask, rates)
        if traffic in ("owner", "first"):
            return self.table.limits_of_owner(gpus[0] if owner is None else owner, gpus, mask, rates)
        if traffic == "groups":
            stages = self.stepper.stages(placing, self._groups(placing, gpus))
            (weights, _), (gradients, _) = stage_limits(self.question.paths, gpus, stages)
            return weights, gradients
        if traffic == "order":
            around = self.rings.limit(gpus)
            return around, around
        both = self.table.limit_of_spread(gpus, mask, rates)
        return both, both

    def _kinds(self) -> dict[int, int]:
        kinds: dict[int, int] = {}
        # Where the order of towers counts, only GPUs between which no other kind is can be exchanged.
        in_order = any(placing.traffic in IN_ORDER for placing in self.question.placings)
        for number, gpu in enumerate(self.pool):
            others = self.pool[max(0, number - 1) if in_order else 0 : number]
            kinds[gpu] = next((kinds[other] for other in others if self._are_alike(other, gpu)), gpu)
        return kinds

    def _groups(self, placing: Placing, gpus: Sequence[int]) -> Groups:
        return self.question.groups(gpus) if placing.reduction.name == "hierarchical" else ()

    def _stages_s(self, gpus: Sequence[int], stages: Iterable[Stage]) -> float:
        """Return the seconds a byte of copies in stages that follow one another."""
        named = ([(gpus[a], gpus[b], share) for a, b, share in stage] for stage in stages)
        return sum(map(self.flows.slowest_s, named))

    def _are_alike(self, a: int, b: int) -> bool:
        question, paths = self.question, self.question.paths
        return (
            question.required not in (a, b)
            and (a in self.last) == (b in self.last)
            and self.aside[a] == self.aside[b]
            and question.compute_s[a] == question.compute_s[b]
            and paths.hosts[a]._replace(basis="link") == paths.hosts[b]._replace(basis="link")
            and paths.ports.get(a) == paths.ports.get(b)
            and all((a in uplink.gpus) == (b in uplink.gpus) for uplink in paths.uplinks)
            and all((a in side) == (b in side) for socket in paths.sockets for side in socket.gpus)
            and all(
                paths.pair(a, c)._replace(basis="link") == paths.pair(b, c)._replace(basis="link")
                and self.near[a, c] == self.near[b, c]
                for c in self.pool
                if c not in (a, b)
            )
        )


def rates_kind(placing: Placing) -> RatesKind:
    """Return what is equal for places that have the same rates on any set."""
    if placing.owner is not None:
        return placing.owner
    return placing if placing.traffic == "groups" else placing.traffic


def mask_of(gpus: Sequence[int]) -> int:
    """Return the bits 1 << gpu of a set."""
    return sum(1 << gpu for gpu in gpus)


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
