"""The fastest candidates of a machine: every set of GPUs with every place for the variables, exactly. Pure.

Sets are looked at by what their GPUs and the links that they share need at least, until that is more than the
candidates found so far take. GPUs that are alike in speed, links and paths to all others can be exchanged: of
the sets that differ only in them the one with the lowest indices stands for all.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import comb, inf, prod
from typing import Any, NamedTuple

from gputopo.prediction.gradients import IN_ORDER, Stage, Traffic
from gputopo.prediction.links.flows import Flows, PairCosts, Resource
from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.rates import Rates, RateTable
from gputopo.prediction.links.rings import Rings, once_round
from gputopo.prediction.programs import ProgramConstants
from gputopo.prediction.step import HOST, ModelCosts, Placement, StepPredictor, StepSeconds, limits
from gputopo.topology.hops import Groups
from gputopo.values.errors import NoPlanError

DIGITS = 9  # of the seconds of a step that decide; the rest is noise of floating-point sums
DETAILED = 1000  # of so many candidates, the first, the links that limit them are looked for
MAX_SETS = 20_000  # that differ: 8 of 16 GPUs are 12,870
_NOTHING = Rates(0.0, 0.0)
_SLACK = 1e-9  # a bound is lower by this than its sums


class FoundCandidate(NamedTuple):
    """A candidate with its prediction; `alike`: how many sets it stands for, itself included."""

    gpus: tuple[int, ...]
    placing: Placement
    prediction: StepSeconds
    alike: int


class SearchQuestion(NamedTuple):
    """What is searched for.

    Of sets that are as fast, the one whose pairs are nearer wins: farthest first, then the next.
    """

    paths: Paths
    model: ModelCosts
    program: ProgramConstants
    compute_s: Mapping[int, float]  # each GPU's own step
    placings: tuple[Placement, ...]  # gpu:N once for every N, whether or not N is in a set
    size: int
    nearness: Callable[[int, int], Any]  # sort key of a pair
    required: int | None = None  # a GPU that every set has
    last: Collection[int] = ()  # sets with fewer of these GPUs come first, however slow
    groups: Callable[[Sequence[int]], Groups] = lambda gpus: ()  # of the towers, for a hierarchical reduction


def fastest(question: SearchQuestion, pool: Sequence[int], keep: int) -> tuple[FoundCandidate, ...]:
    """Return the `keep` fastest candidates over all sets of `size` GPUs of the pool, the best first.

    The caller ensures `1 <= size <= len(pool)`. A candidate is a set and a place for the variables.
    Raises NoPlanError where more than MAX_SETS sets differ.
    """
    return tuple(_Search(question, sorted(pool)).found(keep, detailed=keep))


def every_candidate(
    question: SearchQuestion, pool: Sequence[int], after: Sequence[Placement] = ()
) -> Iterator[FoundCandidate]:
    """Iterate over all candidates, the best first; those with places of `after` follow all others.

    As `fastest`, but only the first DETAILED have the links that limit them.
    """
    first = _Search(question, sorted(pool))
    others = _Search(question._replace(placings=tuple(after)), sorted(pool))

    def found() -> Iterator[FoundCandidate]:
        yield from first.found(inf, DETAILED)
        yield from others.found(inf, 0)

    return found()


class _Floor(NamedTuple):
    """What a GPU brings to any set at least: seconds of its own step, seconds a byte of the slowest link."""

    compute: float
    down: float
    up: float
    spread: float
    ring: float


class _Entry(NamedTuple):
    """A candidate as it is sorted: by seconds, then by the pairs of its GPUs, their numbers, its place."""

    step_s: float
    tie: tuple[Any, ...]
    gpus: tuple[int, ...]
    rank: int
    rates: Rates


_Kind = Placement | Traffic | int
"""What places with the same rates on any set have in common."""


class _Search:
    """The sets of one question with GPUs of a pool, and the bounds of their steps."""

    def __init__(self, question: SearchQuestion, pool: Sequence[int]) -> None:
        self.question, self.pool = question, pool
        self.last = set(question.last).intersection(pool) - {question.required}
        self.table = RateTable(question.paths, pool)
        self.rings = Rings(self.table)
        self.stepper = StepPredictor(question.model, question.program, question.size, question.paths.cpus)
        self._costs: PairCosts = {}
        self._limits: dict[tuple[tuple[int, ...], _Kind], tuple[Resource | None, Resource | None]] = {}
        self.near = {(a, b): question.nearness(a, b) for a in pool for b in pool if a != b}
        self.placings = [(rank, one, one.owner, _kind(one)) for rank, one in enumerate(question.placings)]
        self.kind = self._kinds()
        self.members: dict[int, list[int]] = {}
        for gpu, kind in self.kind.items():
            self.members.setdefault(kind, []).append(gpu)
        self._bounds: dict[_Floor, float] = {}
        self._most: dict[tuple[float, float], float] = {}
        self._ring = next((one for one in question.placings if one.traffic == "ring"), None)
        # Places of which the least step is looked for: one of those that some GPU has.
        firsts = {one if owner is None else "owner": one for _, one, owner, _ in reversed(self.placings)}
        self._distinct = [(one, one.traffic) for one in firsts.values()]
        self._owner_floors = {gpu: self._owner_floor(gpu) for gpu in pool}
        self._least_owner = Rates(*map(min, zip(*self._owner_floors.values(), strict=True)))
        # Shared links: GPUs of one side, whether they are behind it, seconds up, down, and around where every
        # pair of two sides uses it.
        self._crossed = [
            (one.group, bool(one.members), one.up, one.down, one.round if use.group else 0.0)
            for use in self.rings.uses
            for one in (use.shared,)
        ]
        self._floors = {gpu: self._floor(gpu) for gpu in pool}
        self._sets = self._bounded() if question.placings else []

    def found(self, keep: float, detailed: int) -> Iterator[FoundCandidate]:
        """Iterate over the `keep` best; the first ones have the links that limit them."""
        count = 0
        others = len(self.pool) - len(self.last)
        for last in range(max(0, self.question.size - others), min(self.question.size, len(self.last)) + 1):
            for entry in self._fastest(last, keep - count):
                yield self._found(entry, detailed=count < detailed)
                count += 1
            if count >= keep:
                return

    def _bounded(self) -> list[tuple[float, tuple[int, ...], _Floor]]:
        """Return all sets that differ, by rising bound of their steps. Raises NoPlanError for too many."""
        sets = list(islice(self._every(), MAX_SETS + 1))
        if len(sets) > MAX_SETS:
            raise NoPlanError(
                f"more than {MAX_SETS} sets of {self.question.size} GPUs differ: too many to compare",
                "narrow the choice with --gpus or --exclude",
            )
        return sorted((self._bound(floor), gpus, floor) for gpus in sets for floor in (self._floor_of(gpus),))

    def _every(self) -> Iterator[tuple[int, ...]]:
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

    def _fastest(self, last: int, keep: float) -> list[_Entry]:
        """Return the fastest candidates of all sets with so many GPUs of `last`, the best first."""
        best: list[_Entry] = []
        for bound, gpus, floor in self._sets:
            if len(best) >= keep and bound > best[-1].step_s:
                break
            if len(self.last.intersection(gpus)) == last:
                self._look_at(gpus, floor, best, keep)
        return sorted(best)

    def _look_at(self, gpus: tuple[int, ...], floor: _Floor, best: list[_Entry], keep: float) -> None:
        """Add the candidates of a set that are among the `keep` best."""
        mask, compute = mask_of(gpus), floor.compute
        below = best[-1].step_s if len(best) >= keep else inf
        if below < inf and self._ring is not None:
            most = self._most_of_ring(compute, below)
            if floor.ring >= most or not self.rings.may_be_below(most, mask, len(gpus)):
                floor = floor._replace(ring=inf)
                if self._bound(floor) > below:
                    return
        least, predict = self._least(floor, self._owner_floors[gpus[0]]), self.stepper.predict
        known: dict[_Kind, Rates] = {}
        tie = None
        for rank, placing, owner, kind in self.placings:
            if owner is not None and not mask >> owner & 1:
                continue
            if below < inf and kind not in known:
                low = least.get(placing.traffic, _NOTHING) if owner is None else self._owner_floors[owner]
                if compute + sum(predict(placing, compute, *low)) - _SLACK > below:
                    continue
            if kind not in known:
                within = self._most_of_ring(compute, below) if kind == "ring" and below < inf else inf
                known[kind] = self._rates(placing, gpus, mask, within)
            rates = known[kind]
            step_s = round(compute + sum(predict(placing, compute, *rates)), DIGITS)
            if step_s > below:
                continue
            tie = self._tie(gpus) if tie is None else tie
            best.append(_Entry(step_s, tie, gpus, rank, rates))
            if len(best) >= keep:
                best.sort()
                del best[int(keep) :]
                below = best[-1].step_s

    def _tie(self, gpus: Sequence[int]) -> tuple[Any, ...]:
        """Return the sort key of sets that are as fast."""
        return tuple(sorted(map(self.near.__getitem__, combinations(gpus, 2)), reverse=True))

    def _found(self, entry: _Entry, *, detailed: bool) -> FoundCandidate:
        """Return a candidate with its parts, `detailed`: and the links that limit it."""
        gpus, placing = entry.gpus, self.question.placings[entry.rank]
        compute = max(map(self.question.compute_s.__getitem__, gpus))
        taken = Counter(map(self.kind.__getitem__, gpus))
        alike = prod(comb(len(self.members[kind]), count) for kind, count in taken.items())
        if len(gpus) == 1 or placing.traffic == "none":
            return FoundCandidate(gpus, placing, StepSeconds(compute), alike)
        parts = self.stepper.predict(placing, compute, *entry.rates)
        if not detailed:
            return FoundCandidate(gpus, placing, StepSeconds(compute, *parts), alike)
        key = gpus, _kind(placing)
        if key not in self._limits:
            self._limits[key] = self._limits_of(placing, gpus)
        weights_by, gradients_by = self._limits[key]
        if self.stepper.is_limited_by_host(placing, entry.rates.gradients):
            gradients_by = HOST
        return FoundCandidate(gpus, placing, StepSeconds(compute, *parts, weights_by, gradients_by), alike)

    def _limits_of(
        self, placing: Placement, gpus: tuple[int, ...]
    ) -> tuple[Resource | None, Resource | None]:
        if placing.traffic == "ring":
            # The order that was found below a limit may be another one that is as fast.
            found = self.rings.best(gpus, mask_of(gpus))
            assert found is not None
            return None, self.rings.limit(found[1])
        if placing.traffic == "order":
            around = self.rings.limit(gpus)
            return around, around
        stages = (
            self.stepper.stages(placing, self._groups(placing, gpus)) if placing.traffic == "groups" else None
        )
        (weights, _), (gradients, _) = limits(self.question.paths, gpus, placing, stages)
        return weights, gradients

    def _rates(self, placing: Placement, gpus: tuple[int, ...], mask: int, within: float = inf) -> Rates:
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
        return _NOTHING

    def _groups(self, placing: Placement, gpus: Sequence[int]) -> Groups:
        return self.question.groups(gpus) if placing.reduction.name == "hierarchical" else ()

    def _stages_s(self, gpus: Sequence[int], stages: Sequence[Stage]) -> float:
        """Return the seconds a byte of copies in stages that follow one another."""
        seconds = 0.0
        for stage in stages:
            flows = Flows(self.question.paths, self._costs)
            for a, b, share in stage:
                flows.between(gpus[a], gpus[b], share)
            seconds += flows.slowest[1]
        return seconds

    def _kinds(self) -> dict[int, int]:
        """Return for each GPU the lowest one that is alike."""
        kinds: dict[int, int] = {}
        # Where the order of towers counts, only GPUs between which no other kind is can be exchanged.
        in_order = any(placing.traffic in IN_ORDER for placing in self.question.placings)
        for number, gpu in enumerate(self.pool):
            others = self.pool[max(0, number - 1) if in_order else 0 : number]
            kinds[gpu] = next((kinds[other] for other in others if self._are_alike(other, gpu)), gpu)
        return kinds

    def _are_alike(self, a: int, b: int) -> bool:
        question, paths = self.question, self.question.paths
        others = [gpu for gpu in self.pool if gpu not in (a, b)]
        near = (
            question.required not in (a, b)
            and (a in self.last) == (b in self.last)
            and question.compute_s[a] == question.compute_s[b]
            and all(self.near[a, gpu] == self.near[b, gpu] for gpu in others)
        )
        if not near or not question.model.bytes:  # of no bytes no link counts
            return near
        return (
            paths.hosts[a]._replace(basis="link") == paths.hosts[b]._replace(basis="link")
            and paths.ports.get(a) == paths.ports.get(b)
            and all((a in uplink.gpus) == (b in uplink.gpus) for uplink in paths.uplinks)
            and all((a in side) == (b in side) for socket in paths.sockets for side in socket.gpus)
            and all(
                paths.pair(a, gpu)._replace(basis="link") == paths.pair(b, gpu)._replace(basis="link")
                for gpu in others
            )
        )

    def _bound(self, floor: _Floor) -> float:
        """Return the seconds that no candidate of a set with these floors is below."""
        if floor not in self._bounds:
            least = self._least(floor, self._least_owner)
            lowest = min(
                sum(self.stepper.predict(placing, floor.compute, *least.get(traffic, _NOTHING)))
                for placing, traffic in self._distinct
            )
            self._bounds[floor] = round(floor.compute + lowest - _SLACK, DIGITS)
        return self._bounds[floor]

    def _least(self, floor: _Floor, first: Rates) -> dict[Traffic, Rates]:
        """Return what each traffic needs at least; of reductions in groups no bound is known."""
        # A ring in the order of towers needs half of what any ring needs, each time round.
        half = floor.ring / 2 if self._ring is None else 0.0  # else that floor is of fast enough rings
        return {
            "host": Rates(floor.down, floor.up),
            "owner": self._least_owner,
            "spread": Rates(floor.spread, floor.spread),
            "ring": Rates(0.0, floor.ring),
            "order": Rates(half, half),
            "first": first,
        }

    def _floor_of(self, gpus: Sequence[int]) -> _Floor:
        """Return what a set needs at least, from what its GPUs do and the links that they share."""
        mask, towers = mask_of(gpus), len(gpus)
        compute, down, up, spread, ring = map(max, zip(*map(self._floors.__getitem__, gpus), strict=True))
        for group, members, up_cost, down_cost, around in self._crossed:
            among = (group & mask).bit_count()
            if members:
                down, up = max(down, down_cost * among), max(up, up_cost * among)
            spread = max(spread, around * among * (towers - among) / towers)
        return _Floor(compute, down, up, spread, ring)

    def _most_of_ring(self, compute: float, limit: float) -> float:
        """Return seconds a byte from which on a ring makes a step of more than `limit`."""
        key = compute, limit
        if key not in self._most:
            assert self._ring is not None
            self._most[key] = self.stepper.most(self._ring, compute, limit + 2 * _SLACK) * (1 + _SLACK)
        return self._most[key]

    def _floor(self, gpu: int) -> _Floor:
        """Return what a set with this GPU needs at least, whichever its others are."""
        table, towers = self.table, self.question.size
        others = [other for other in self.pool if other != gpu]
        out = sum(sorted(table.out[gpu][other] for other in others)[: towers - 1])
        into = sum(sorted(table.into[gpu][other] for other in others)[: towers - 1])
        edges = sorted(self.rings.edges[gpu].values())[:2] if towers > 1 else [0.0]
        around = 2 * (towers - 1) / towers
        joined = [
            around * seconds
            for seconds, cluster in self.rings.clusters
            if cluster >> gpu & 1 and cluster.bit_count() >= towers
        ]
        return _Floor(
            self.question.compute_s[gpu],
            table.down[gpu],
            table.up[gpu],
            (max(out, into) + table.more[gpu] * min(out, into)) / towers,
            max(edges[-1 if towers > 2 else 0] * around, min(joined, default=0.0)),
        )

    def _owner_floor(self, gpu: int) -> Rates:
        """Return what a set with its variables on this GPU needs at least."""
        table, others = self.table, self.question.size - 1
        from_it = (table.out, table.port_out), (table.into, table.port_in)
        weights, gradients = (
            max(sum(sorted(row[gpu][other] for other in self.pool if other != gpu)[:others]) for row in rows)
            for rows in from_it
        )
        return Rates(weights, gradients)


def _kind(placing: Placement) -> _Kind:
    """Return what is equal for places that have the same rates on any set."""
    if placing.owner is not None:
        return placing.owner
    return placing if placing.traffic == "groups" else placing.traffic


def mask_of(gpus: Sequence[int]) -> int:
    """Return the bits 1 << gpu of a set."""
    return sum(1 << gpu for gpu in gpus)
