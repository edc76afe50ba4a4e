"""The fastest candidates of a machine: every set of GPUs with every place for the variables, exactly. Pure.

Sets are put together GPU by GPU, slow ones first, and left as soon as what one of their GPUs needs at least
is more than the candidates found so far take. What is left is looked at by rising bound.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from gputopo.prediction.gradients import Traffic
from gputopo.prediction.links.rates import Rates
from gputopo.prediction.sets import DIGITS, Found, Question, RatesKind, Sets, mask_of, rates_kind
from gputopo.prediction.step import Placing

MAX_EXCHANGED = 20  # sets whose neighbours are looked at before all sets are
_NOTHING = Rates(0.0, 0.0)  # what a reduction needs at least of which no bound is known
_SLACK = 1e-9  # a bound is lower by this than its sums


def fastest(question: Question, pool: Sequence[int], keep: int) -> tuple[Found, ...]:
    """Return the `keep` fastest candidates over all sets of `size` GPUs of the pool, the best first.

    The caller ensures `1 <= size <= len(pool)`. A candidate is a set and a place for the variables.
    """
    search = _Search(question, sorted(pool))
    found: list[Found] = []
    for last in search.counts_of_last():
        found += search.fastest(last, keep - len(found))
        if len(found) >= keep:
            break
    return tuple(found)


class _Floor(NamedTuple):
    """What a GPU brings to any set at least: seconds of its own step, seconds a byte of the slowest link."""

    compute: float
    down: float
    up: float
    spread: float
    ring: float

    def or_more(self, other: "_Floor") -> "_Floor":
        """Return the larger number of each."""
        return _Floor(*map(max, self, other))


class _Entry(NamedTuple):
    """A candidate as it is sorted: by seconds, then by the pairs of its GPUs, their numbers, its place."""

    step_s: float
    tie: tuple[Any, ...]
    gpus: tuple[int, ...]
    rank: int
    rates: Rates


class _Search(Sets):
    """The bounds of the sets of one question."""

    def __init__(self, question: Question, pool: Sequence[int]) -> None:
        super().__init__(question, pool)
        self.owner_floor = {gpu: self._owner_floor(gpu) for gpu in pool}
        self.least_owner = Rates(*map(min, zip(*self.owner_floor.values(), strict=True)))
        self.placings = [
            (rank, placing, placing.owner, placing.traffic, rates_kind(placing))
            for rank, placing in enumerate(question.placings)
        ]
        firsts: dict[object, tuple[Placing, Traffic]] = {}
        for _, placing, owner, traffic, _ in self.placings:
            firsts.setdefault(placing if owner is None else "owner", (placing, traffic))
        self.distinct = tuple(firsts.values())
        # Shared links: GPUs of one side, whether they are behind it, seconds up, down, and around where every
        # pair of two sides uses it.
        self.crossed = [
            (one.group, bool(one.members), one.up, one.down, one.round if use.group else 0.0)
            for use in self.rings.uses
            for one in (use.shared,)
        ]
        around = 2 * (question.size - 1) / question.size
        self.joined = [(around * seconds, cluster) for seconds, cluster in self.rings.clusters]
        self.a_ring = next(
            (placing for _, placing, _, traffic, _ in self.placings if traffic == "ring"), None
        )
        self._owned = next((one for _, one, owner, *_ in self.placings if owner is not None), None)
        self._most: dict[tuple[float, float], float] = {}
        self._bounds: dict[tuple[float, ...], float] = {}
        self.floor = {gpu: self._floor(gpu) for gpu in pool}

    def fastest(self, last: int, keep: int) -> list[Found]:
        """Return the fastest candidates of all sets with so many GPUs of `last`, the best first."""
        best: list[_Entry] = []
        seen = self._likely(last)
        for gpus in seen:
            self._look_at(gpus, best, keep)
        if len(best) == keep:
            self._exchange(best, keep, seen)
        for bound, gpus in sorted(self._sets(last, best[-1].step_s if len(best) == keep else inf)):
            if len(best) == keep and bound > best[-1].step_s:
                break
            if gpus not in seen:
                self._look_at(gpus, best, keep)
        best.sort()
        return [self.found(entry.gpus, self.question.placings[entry.rank], entry.rates) for entry in best]

    def _exchange(self, best: list[_Entry], keep: int, seen: set[tuple[int, ...]]) -> None:
        """Look at the sets that differ in one GPU from one of the best, the best first."""
        done: set[tuple[int, ...]] = set()
        while len(done) < MAX_EXCHANGED:
            before = next((entry.gpus for entry in best if entry.gpus not in done), None)
            if before is None:
                return
            done.add(before)
            for leaves in before:
                for enters in self.pool:
                    alike = (leaves in self.last) == (
                        enters in self.last
                    ) and leaves != self.question.required
                    if enters not in before and alike:
                        gpus = self.first_of_kinds((*(gpu for gpu in before if gpu != leaves), enters))
                        if gpus not in seen:
                            seen.add(gpus)
                            self._look_at(gpus, best, keep)

    def _look_at(self, gpus: tuple[int, ...], best: list[_Entry], keep: int) -> None:
        """Add the candidates of a set that are among the `keep` best."""
        mask = mask_of(gpus)
        below = best[-1].step_s if len(best) == keep else inf
        floor = _Floor(*map(max, zip(*map(self.floor.__getitem__, gpus), strict=True)))
        compute = floor.compute
        if below < inf:
            floor = self._of_set(mask, floor, below)
            if self._bound(floor) > below:
                return
        least = {
            "host": Rates(floor.down, floor.up),
            "spread": Rates(floor.spread, floor.spread),
            "ring": Rates(0.0, floor.ring),
            "order": self._in_order(floor),
            "first": self.owner_floor[gpus[0]],
        }
        shared: dict[RatesKind, Rates] = {"none": Rates(0.0, 0.0)}
        tie = None
        no_owner = self._owned is not None and below < inf and self._owned_step(compute, gpus) > below
        for rank, placing, owner, traffic, kind in self.placings:
            if owner is not None and (no_owner or not mask >> owner & 1):
                continue
            if below < inf and (owner is not None or kind not in shared):
                low = self.owner_floor[owner] if owner is not None else least.get(traffic, _NOTHING)
                if compute + sum(self.stepper.predict(placing, compute, *low)) - _SLACK > below:
                    continue
            if owner is not None:
                rates = self.table.with_owner(owner, gpus, mask)
            else:
                if kind not in shared:
                    within = inf
                    if traffic == "ring" and below < inf:
                        within = self._most_of_ring(compute, below)
                    shared[kind] = self.rates(placing, gpus, mask, within)
                rates = shared[kind]
            step_s = round(compute + sum(self.stepper.predict(placing, compute, *rates)), DIGITS)
            if step_s > below:
                continue
            tie = self.tie(gpus) if tie is None else tie
            best.append(_Entry(step_s, tie, gpus, rank, rates))
            if len(best) >= keep:
                best.sort()
                del best[keep:]
                below = best[-1].step_s

    def _owned_step(self, compute: float, gpus: tuple[int, ...]) -> float:
        """Return the seconds that no step of a set is below where one of its GPUs has the variables."""
        assert self._owned is not None
        least = map(min, zip(*map(self.owner_floor.__getitem__, gpus), strict=True))
        return compute + sum(self.stepper.predict(self._owned, compute, *least)) - _SLACK

    def _sets(self, last: int, limit: float) -> list[tuple[float, tuple[int, ...]]]:
        """Return the sets that may be as fast as `limit`, with bounds of their steps."""
        order = sorted(self.members.values(), key=lambda members: -self._bound(self.floor[members[0]]))
        # By kind: how many GPUs come after it, and how many of them are avoided.
        after = [sum(map(len, order[number + 1 :])) for number in range(len(order))]
        avoidable = [
            sum(len(members) for members in order[number + 1 :] if members[0] in self.last)
            for number in range(len(order))
        ]
        # By kind: its first GPUs and their mask for each number of them.
        taken = [
            [(members[:count], mask_of(members[:count])) for count in range(len(members) + 1)]
            for members in order
        ]
        avoids = [members[0] in self.last for members in order]
        floors = [self.floor[members[0]] for members in order]
        needed = [members[0] == self.question.required for members in order]
        found: list[tuple[float, tuple[int, ...]]] = []

        def extend(number: int, chosen: list[int], mask: int, floor: _Floor, avoided: int) -> None:
            missing = self.question.size - len(chosen)
            with_these = floor.or_more(floors[number])
            possible = with_these == floor or self._bound(with_these) <= limit
            for count in range(min(missing, len(order[number])), -1, -1):
                if missing - count > after[number] or (needed[number] and not count):
                    return
                if count and not possible:
                    continue
                still = avoided - count if avoids[number] else avoided
                if not 0 <= still <= avoidable[number]:
                    continue
                sure = with_these if count else floor
                gpus, bits = taken[number][count]
                if count < missing:
                    extend(number + 1, chosen + gpus, mask | bits, sure, still)
                elif not still and self._may_be_complete(mask | bits):
                    bound = self._bound(self._of_set(mask | bits, sure, limit))
                    if bound <= limit:
                        found.append((bound, tuple(sorted(chosen + gpus))))

        extend(0, [], 0, _Floor(0.0, 0.0, 0.0, 0.0, 0.0), last)
        return found

    def _may_be_complete(self, mask: int) -> bool:
        """Return whether a set has the GPU that it must have."""
        return self.question.required is None or bool(mask >> self.question.required & 1)

    def _likely(self, last: int) -> set[tuple[int, ...]]:
        """Return a few sets that are probably fast: the nearest of each GPU, and the fastest."""
        orders = [
            sorted(self.pool, key=lambda gpu: (gpu != near, self.rings.edges[near].get(gpu, 0.0)))
            for near in self.pool
        ]
        orders.append(sorted(self.pool, key=lambda gpu: self._bound(self.floor[gpu])))
        found = set()
        for order in orders:
            avoided = [gpu for gpu in order if gpu in self.last][:last]
            others = [gpu for gpu in order if gpu not in self.last and gpu != self.question.required]
            required = [] if self.question.required is None else [self.question.required]
            gpus = (*required, *avoided, *others)[: self.question.size]
            found.add(self.first_of_kinds(gpus))
        return found

    def _bound(self, floor: _Floor) -> float:
        """Return the seconds that no candidate of a set with these floors is below."""
        if floor not in self._bounds:
            self._bounds[floor] = self._lowest(
                floor.compute,
                {
                    "none": Rates(0.0, 0.0),
                    "host": Rates(floor.down, floor.up),
                    "owner": self.least_owner,
                    "spread": Rates(floor.spread, floor.spread),
                    "ring": Rates(0.0, floor.ring),
                    "order": self._in_order(floor),
                    "first": self.least_owner,
                },
            )
        return self._bounds[floor]

    def _in_order(self, floor: _Floor) -> Rates:
        """Return what a ring in the order of towers needs: half of what any ring needs, each time round."""
        half = floor.ring / 2 if self.a_ring is None else 0.0  # else that floor is of fast enough rings
        return Rates(half, half)

    def _of_set(self, mask: int, floor: _Floor, limit: float) -> _Floor:
        """Return what a set needs at least, from what its GPUs do and the links that they share.

        Its ring needs infinitely long where it cannot make a step of `limit` seconds.
        """
        compute, down, up, spread, ring = floor
        towers = self.question.size
        if self.a_ring is not None and limit < inf:
            most = self._most_of_ring(compute, limit)
            if ring >= most or not self.rings.may_be_below(most, mask, towers):
                ring = inf
                floor = _Floor(compute, down, up, spread, ring)
                if self._bound(floor) > limit:
                    return floor
        for group, members, up_cost, down_cost, around in self.crossed:
            among = (group & mask).bit_count()
            if not among:
                continue
            if members:
                if down_cost * among > down:
                    down = down_cost * among
                if up_cost * among > up:
                    up = up_cost * among
            if around and among < towers:
                crossing = around * among * (towers - among)
                if crossing > spread * towers:
                    spread = crossing / towers
        return _Floor(compute, down, up, spread, ring)

    def _most_of_ring(self, compute: float, limit: float) -> float:
        """Return seconds a byte from which on a ring makes a step of more than `limit`."""
        key = compute, limit
        if key not in self._most:
            assert self.a_ring is not None
            self._most[key] = self.stepper.most(self.a_ring, compute, limit + 2 * _SLACK) * (1 + _SLACK)
        return self._most[key]

    def _lowest(self, compute: float, rates: Mapping[str, Rates]) -> float:
        lowest = min(
            sum(self.stepper.predict(placing, compute, *rates.get(traffic, _NOTHING)))
            for placing, traffic in self.distinct
        )
        return round(compute + lowest - _SLACK, DIGITS)

    def _floor(self, gpu: int) -> _Floor:
        """Return what a set with this GPU needs at least, whichever its others are."""
        table, towers = self.table, self.question.size
        others = [other for other in self.pool if other != gpu]
        out = sum(sorted(table.out[gpu][other] for other in others)[: towers - 1])
        into = sum(sorted(table.into[gpu][other] for other in others)[: towers - 1])
        edges = sorted(self.rings.edges[gpu].values())[:2] if towers > 1 else [0.0]
        joined = [
            seconds
            for seconds, cluster in self.joined
            if cluster >> gpu & 1 and cluster.bit_count() >= towers
        ]
        return _Floor(
            self.question.compute_s[gpu],
            table.down[gpu],
            table.up[gpu],
            (max(out, into) + table.more[gpu] * min(out, into)) / towers,
            max(edges[-1 if towers > 2 else 0] * 2 * (towers - 1) / towers, min(joined, default=0.0)),
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
