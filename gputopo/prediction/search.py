"""The fastest candidates of a machine: every set of GPUs with every place for the variables, exactly. Pure.

Sets are looked at by what their GPUs and the links that they share need at least, until that is more than the
candidates found so far take. GPUs that are alike in speed, links and paths to all others can be exchanged: of
the sets that differ only in them the one with the lowest indices stands for all.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice, permutations
from math import comb, inf, prod
from typing import Any, NamedTuple

from gputopo.prediction.gradients import IN_ORDER, Stages, Traffic
from gputopo.prediction.links.flows import GB, pair_costs
from gputopo.prediction.links.paths import Paths, Resource
from gputopo.prediction.links.rings import Rings, mask_of
from gputopo.prediction.programs import ProgramConstants
from gputopo.prediction.step import Limit, ModelCosts, Placement, StepPredictor, StepSeconds, limits
from gputopo.topology.hops import Groups
from gputopo.values.errors import NoPlanError

DIGITS = 9  # of the seconds of a step that decide; the rest is noise of floating-point sums
MAX_SETS = 20_000  # that differ: 8 of 16 GPUs are 12,870
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
    return tuple(_Search(question, sorted(pool)).found(keep))


class _Floor(NamedTuple):
    """What a GPU brings to any set at least: seconds of its own step, seconds a byte of the slowest link."""

    compute: float
    down: float
    up: float
    spread: float
    ring: float


# A candidate as it is sorted: by seconds, then by the pairs of its GPUs, their numbers, its place.
_Entry = tuple[float, tuple[Any, ...], tuple[int, ...], int, StepSeconds]

_Kind = Placement | Traffic | int
"""What places with the same rates on any set have in common."""

_Rates = tuple[float, float]
"""Seconds a byte of the slowest link while weights flow, and while gradients do."""


class _Search:
    """The sets of one question with GPUs of a pool, and the bounds of their steps."""

    def __init__(self, question: SearchQuestion, pool: Sequence[int]) -> None:
        self.question, self.pool = question, pool
        self.last = set(question.last).intersection(pool) - {question.required}
        self.rings = Rings(question.paths, pool)
        self.stepper = StepPredictor(question.model, question.program, question.size, question.paths.cpus)
        self.near = {(a, b): question.nearness(a, b) for a in pool for b in pool if a != b}
        self.placings = [(rank, one, one.owner, _kind(one)) for rank, one in enumerate(question.placings)]
        self.kind = self._kinds()
        self.members: dict[int, list[int]] = {}
        for gpu, kind in self.kind.items():
            self.members.setdefault(kind, []).append(gpu)
        self._bounds: dict[_Floor, float] = {}
        # Places of which the least step is looked for: one of those that some GPU has.
        firsts = {one if owner is None else "owner": one for _, one, owner, _ in reversed(self.placings)}
        self._distinct = [(one, one.traffic) for one in firsts.values()]
        self._own = self._own_links()
        self._owner_floors = {gpu: self._owner_floor(gpu) for gpu in pool}
        least = zip(*self._owner_floors.values(), strict=True)
        self._least_owner = min(next(least)), min(next(least))
        self._floors = {gpu: self._floor(gpu) for gpu in pool}
        self._sets = self._bounded() if question.placings else []

    def found(self, keep: float) -> Iterator[FoundCandidate]:
        count = 0
        others = len(self.pool) - len(self.last)
        for last in range(max(0, self.question.size - others), min(self.question.size, len(self.last)) + 1):
            for _, _, gpus, rank, step in self._fastest(last, keep - count):
                taken = Counter(map(self.kind.__getitem__, gpus))
                alike = prod(comb(len(self.members[kind]), count) for kind, count in taken.items())
                yield FoundCandidate(gpus, self.question.placings[rank], step, alike)
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
        best: list[_Entry] = []
        for bound, gpus, floor in self._sets:
            if len(best) >= keep and bound > best[-1][0]:
                break
            if len(self.last.intersection(gpus)) == last:
                self._look_at(gpus, floor, best, keep)
        return sorted(best)

    def _look_at(self, gpus: tuple[int, ...], floor: _Floor, best: list[_Entry], keep: float) -> None:
        compute, below = floor.compute, best[-1][0] if len(best) >= keep else inf
        least: dict[Traffic, _Rates] = {}
        if below < inf:
            floor = floor._replace(ring=max(floor.ring, self.rings.least(gpus)))
            if self._bound(floor) > below:
                return
            least = self._least(floor, self._owner_floors[gpus[0]])
        known: dict[_Kind, tuple[Limit, Limit]] = {}
        tie: tuple[Any, ...] = ()
        for rank, placing, owner, kind in self.placings:
            if owner is not None and owner not in gpus:
                continue
            if least and kind not in known:
                low = least.get(placing.traffic, (0.0, 0.0)) if owner is None else self._owner_floors[owner]
                if compute + sum(self.stepper.predict(placing, compute, *low)) - _SLACK > below:
                    continue
            if kind not in known:
                known[kind] = limits(
                    self.question.paths, gpus, placing, self._stages(placing, gpus), self.rings
                )
            step = self.stepper.step(placing, compute, *known[kind])
            step_s = round(step.step_s, DIGITS)
            if step_s > below:
                continue
            tie = tie or tuple(sorted(map(self.near.__getitem__, combinations(gpus, 2)), reverse=True))
            best.append((step_s, tie, gpus, rank, step))
            if len(best) >= keep:
                best.sort()
                del best[int(keep) :]
                below = best[-1][0]

    def _stages(self, placing: Placement, gpus: Sequence[int]) -> Stages | None:
        if placing.traffic != "groups":
            return None
        hierarchical = placing.reduction.name == "hierarchical"
        return self.stepper.stages(placing, self.question.groups(gpus) if hierarchical else ())

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
                sum(self.stepper.predict(placing, floor.compute, *least.get(traffic, (0.0, 0.0))))
                for placing, traffic in self._distinct
            )
            self._bounds[floor] = round(floor.compute + lowest - _SLACK, DIGITS)
        return self._bounds[floor]

    def _least(self, floor: _Floor, first: _Rates) -> dict[Traffic, _Rates]:
        """Return what each traffic needs at least; of reductions in groups no bound is known."""
        # A ring in the order of towers needs half of what any ring needs, each time round.
        return {
            "host": (floor.down, floor.up),
            "owner": self._least_owner,
            "spread": (floor.spread, floor.spread),
            "ring": (0.0, floor.ring),
            "order": (floor.ring / 2, floor.ring / 2),
            "first": first,
        }

    def _floor_of(self, gpus: Sequence[int]) -> _Floor:
        mask, towers = mask_of(gpus), len(gpus)
        compute, down, up, spread, ring = map(max, zip(*map(self._floors.__getitem__, gpus), strict=True))
        for use in self.rings.uses:
            among = (use.group & mask).bit_count()
            spread = max(spread, use.round * among * (towers - among) / towers)
        for uplink in self.question.paths.uplinks:
            among = len(uplink.gpus.intersection(gpus))
            down, up = max(down, among / (uplink.down * GB)), max(up, among / (uplink.up * GB))
        return _Floor(compute, down, up, spread, ring)

    def _own_links(self) -> dict[Resource, list[float]]:
        """Return seconds a byte of each GPU's own links, to or from each other GPU, the fastest first."""
        found: dict[Resource, list[float]] = {}
        for a, b in permutations(self.pool, 2):
            costs = {cost[0]: 1 / (cost[1] * GB) for cost in pair_costs(self.question.paths, a, b)}
            for kind, gpu in (("up", a), ("nvlink out", a), ("down", b), ("nvlink in", b)):
                found.setdefault((kind, gpu), []).append(costs.get((kind, gpu), 0.0))
        return {resource: sorted(costs) for resource, costs in found.items()}

    def _least_of(self, kind: str, gpu: int) -> float:
        """Return what a link of a GPU needs at least to serve as many others as a set has."""
        return sum(self._own.get((kind, gpu), ())[: self.question.size - 1])

    def _floor(self, gpu: int) -> _Floor:
        host, towers = self.question.paths.hosts[gpu], self.question.size
        out, into = self._least_of("up", gpu), self._least_of("down", gpu)
        edges = sorted(self.rings.edges[gpu].values())[:2] if towers > 1 else [0.0]
        return _Floor(
            self.question.compute_s[gpu],
            1 / (host.down * GB),
            1 / (host.up * GB),
            (max(out, into) + (1 / host.both - 1) * min(out, into)) / towers,
            edges[-1 if towers > 2 else 0] * 2 * (towers - 1) / towers,
        )

    def _owner_floor(self, gpu: int) -> _Rates:
        return (
            max(self._least_of("up", gpu), self._least_of("nvlink out", gpu)),
            max(self._least_of("down", gpu), self._least_of("nvlink in", gpu)),
        )


def _kind(placing: Placement) -> _Kind:
    """Return what is equal for places that have the same rates on any set."""
    if placing.owner is not None:
        return placing.owner
    return placing if placing.traffic == "groups" else placing.traffic
