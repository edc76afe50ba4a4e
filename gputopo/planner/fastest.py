"""The sets of GPUs with places for their variables, by the predicted seconds of a step. Pure.

All sets with all places are compared (`gputopo.prediction.search`). Of those that are as fast, the set whose
GPUs are nearer to one another wins, then the lowest indices. Where no step can be predicted all sets are as
fast, so that the nearest wins.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import NamedTuple

from gputopo.planner.reasons import farthest_class
from gputopo.planner.request import Request, batches, speed_classes
from gputopo.planner.selection import ALL, LISTED, Selection
from gputopo.prediction.gradients import IN_ORDER, GradientBlock
from gputopo.prediction.links.paths import paths_of
from gputopo.prediction.one_gpu_speeds import Speed
from gputopo.prediction.programs import DEFAULT, ProgramConstants, require_program
from gputopo.prediction.search import DIGITS, FoundCandidate, SearchQuestion, fastest
from gputopo.prediction.step import FLOAT_BYTES, ModelCosts, Placement, StepPredictor, predict
from gputopo.topology.hops import Groups, GroupsOf
from gputopo.values.machine import Machine
from gputopo.values.run import all_reduce
from gputopo.values.run.batches import AUTO
from gputopo.values.run.plan import SPREAD, Learned, mode_name

# Of steps that differ by less the placement with the better record is chosen. Not of more: on boxes left out
# published decisions lose 0.6 % so, 1.2 % with 0.5 %, 1.4 % with 2 % (`tests.fits.decisions`).
TIE = 0.002
LARGE_VARIABLE = 1_000_000  # numbers, in the mean: of networks whose dense layers have most of them
# Placements by their speed in published decisions, the fastest first (`tests.fits.decisions`), of networks
# with large variables (alexnet, vgg16) and with small ones (resnet50, inception3).
RECORD: Mapping[bool, tuple[str, ...]] = {
    True: ("gpu", "nccl", "added", "cpu"),
    False: ("cpu", "added", "nccl", "gpu"),
}
NO_SHARE = 0.005  # of images/sec: less is no difference
# Found candidates for each that is listed: those that differ only in the GPU with the variables are one.
_FOUND_PER_LISTED = 4


def record_kind(placing: Placement) -> str:
    """Return what a placement is called in RECORD: where the variables are, or how replicas add."""
    if placing.ps_device is not None:
        return "cpu" if placing.ps_device == "cpu" else "gpu"
    return "nccl" if placing.traffic == "ring" else "added"


def has_large_variables(model: ModelCosts) -> bool:
    """Return whether a network's variables are large in the mean."""
    return model.bytes > FLOAT_BYTES * LARGE_VARIABLE * len(model.sizes)


class Basis(NamedTuple):
    """The facts that steps are predicted from, beside the machine."""

    model: ModelCosts
    program: ProgramConstants
    batch: int  # examples of a GPU, the mean where they differ
    speeds: Mapping[int, Speed]  # of each GPU alone with this batch
    speeds_with: Callable[[int], Mapping[int, Speed | None]]  # with another batch
    learned: Learned | None = None  # what earlier runs of this box changed in the program's constants
    missing: str | None = None  # why no step is predicted, empty where none is asked for; None: steps are

    def seconds(self, gpu: int, batch: int) -> float:
        """Return the seconds of a step of one GPU alone."""
        speed = (None if batch == self.batch else self.speeds_with(batch)[gpu]) or self.speeds[gpu]
        return batch / speed.images_per_sec


def without_prediction(machine: Machine, missing: str) -> Basis:
    """Return the basis where nothing can be predicted: a step that takes no time anywhere."""
    speed = Speed(inf, inf, inf, "assumed", missing)
    speeds = {gpu.index: speed for gpu in machine.gpus}
    return Basis(
        ModelCosts((GradientBlock(0, 1.0),), ()),
        require_program(DEFAULT),
        1,
        speeds,
        lambda batch: speeds,
        missing=missing,
    )


class Fastest(Selection):
    """The candidates of a request, those whose steps are shortest first."""

    def __init__(
        self, machine: Machine, request: Request, unavailable: Mapping[int, str], basis: Basis
    ) -> None:
        super().__init__(machine, request, unavailable)
        self.basis = basis
        self.paths = paths_of(machine)
        self.stepper = StepPredictor(basis.model, basis.program, self.size, self.paths.cpus)
        self._groups_of = GroupsOf(machine)
        self._groups_found: dict[tuple[int, ...], Groups] = {}
        self._searched: dict[
            object, tuple[int, tuple[FoundCandidate, ...]]
        ] = {}  # with how many were asked for
        self.is_assumed = self.predicts and any(basis.speeds[gpu].basis == "assumed" for gpu in self.pool)
        # With assumed speeds the set is the nearest one, and only the place of its variables is predicted.
        self.nearest: Fastest | None = None
        self.choose_from = self.pool
        if self.is_assumed and not self.exact:
            self.nearest = Fastest(machine, request, unavailable, without_prediction(machine, ""))
            self.choose_from = self.nearest.search(self.pool, 1, self.troubles)[0].gpus

    @property
    def predicts(self) -> bool:
        """Whether the seconds of steps are known, not only their order."""
        return self.basis.missing is None

    @property
    def _has_own_batches(self) -> bool:
        asked = self.request.batch_size
        return self.predicts and ((asked == AUTO and not self.is_assumed) or isinstance(asked, tuple))

    def batches(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the examples of each of these GPUs where they are known, in the order of their towers."""
        asked = self.request.batch_size
        if not self.predicts:
            return asked if isinstance(asked, tuple) else ()
        asked = None if asked == AUTO and self.is_assumed else asked
        return batches(asked, self.basis.batch, [self.basis.speeds[gpu].images_per_sec for gpu in gpus])

    def images_per_sec(self, found: FoundCandidate) -> float:
        """Return the predicted speed of a candidate."""
        return sum(self.batches(found.gpus)) / found.prediction.step_s

    def listed(self, keep: int | None) -> tuple[list[FoundCandidate], Sequence[FoundCandidate]]:
        """Return the `keep` fastest candidates, and the first of all candidates in order.

        None: up to LISTED, which the places on the fastest set and the ten fastest of all fill as a rule.
        Of the fastest set other places come before other sets. Candidates that differ only in the GPU with
        the variables are one.
        """
        count = LISTED if keep is None else max(keep, 1)
        searched = self.search(
            self.choose_from, LISTED if keep is None else count * _FOUND_PER_LISTED, self.troubles
        )
        listed: dict[object, FoundCandidate] = {}
        for one in (searched[0], *self.search(searched[0].gpus, ALL, self.troubles), *searched):
            owner = one.placing.owner is not None and one.placing.owner != self.required
            mode = "owner" if owner else one.placing
            listed.setdefault((one.gpus, mode, round(one.prediction.step_s, DIGITS)), one)
        first = sorted(list(listed.values())[:count], key=lambda one: self.order(one, self.troubles))
        return first, searched

    def by_record(self, found: Sequence[FoundCandidate]) -> list[FoundCandidate]:
        """Return candidates, of those on the fastest set that are a tie the one with the best record first.

        That of this box comes first: a mode whose runs here were as predicted.
        """
        fastest = found[0]
        learned = {} if self.basis.learned is None else self.basis.learned.range_shares
        record = RECORD[has_large_variables(self.basis.model)]

        def key(one: FoundCandidate) -> tuple[bool, int]:
            return learned.get(mode_name(*one.placing), inf) > 1, record.index(record_kind(one.placing))

        ties = [
            one
            for one in found
            if one.gpus == fastest.gpus
            and one.placing.variable_update != "independent"
            and (1 - TIE) * one.prediction.step_s <= fastest.prediction.step_s
        ]
        if not self.predicts or self.size == 1 or not ties:
            return list(found)
        best = min(ties, key=key)
        return [best, *(one for one in found if one is not best)]

    def every(self) -> tuple[Sequence[FoundCandidate], Sequence[FoundCandidate]]:
        """Return all candidates, the best first, then those that are never chosen unasked; and the first."""
        found = self.search(self.choose_from, ALL, self.troubles)
        return (*found, *self.search(self.choose_from, ALL, self.troubles, self._unchosen())), found

    def difference(self, chosen: Sequence[int], best: Sequence[int]) -> str:
        """Return what the chosen GPUs lack of others of the same number, empty for nothing."""
        if self.predicts:
            now, then = (self.images_per_sec(self.search(gpus, 1)[0]) for gpus in (chosen, best))
            slower = now < then * (1 - NO_SHARE)
            return f"{now:,.0f} instead of {then:,.0f} images/sec" if slower else ""
        here, there = farthest_class(self.links, chosen), farthest_class(self.links, best)
        return f"{here} instead of {there}" if here != there else ""

    def search(
        self,
        pool: Sequence[int],
        keep: int,
        deprioritized: Collection[int] = (),
        placings: Sequence[Placement] | None = None,
    ) -> tuple[FoundCandidate, ...]:
        """Return the `keep` fastest candidates by `_order`; what was found once is stored."""
        last = frozenset(deprioritized) - {self.required}
        key = tuple(pool), last, None if placings is None else tuple(placings)
        before, found = self._searched.get(key, (0, ()))
        if before < keep:
            found = self._search_anew(pool, keep, last, placings)
            self._searched[key] = keep, found
        return found[:keep]

    def _search_anew(
        self,
        pool: Sequence[int],
        keep: int,
        last: Collection[int],
        placings: Sequence[Placement] | None,
    ) -> tuple[FoundCandidate, ...]:
        parts = self._parts(pool, last)
        of_own, as_named = self._has_own_batches, self.exact and set(pool) == set(self.pool)
        if of_own:
            # Found with equal batches, then predicted with their own: enough to have each place of the best.
            keep_equal = max(
                keep, LISTED * _FOUND_PER_LISTED, len(self._placings(pool) if placings is None else placings)
            )
            parts = [faster for part in parts for faster in self._faster(part)]
        found: list[FoundCandidate] = []
        for part in parts:
            question = self._question(part, last, placings)
            # In the order that was named another candidate may be the fastest.
            found += fastest(question, part, ALL if as_named else keep_equal if of_own else keep)
        if as_named:
            found = [self._as_named(one) for one in found]
        if of_own:
            found = list({(one.gpus, one.placing): self._with_own_batches(one) for one in found}.values())
        found.sort(key=lambda one: self.order(one, last))
        return tuple(found[:keep])

    def _as_named(self, found: FoundCandidate) -> FoundCandidate:
        """Return a candidate of the GPUs that were named with towers in that order, where it counts."""
        step = found.prediction
        if found.placing.traffic in IN_ORDER and found.gpus != self.pool:
            groups = self.groups(self.pool)
            step = predict(self.stepper, self.paths, self.pool, step.compute_s, found.placing, groups)
        return found._replace(gpus=self.pool, prediction=step)

    def _question(
        self, pool: Sequence[int], last: Collection[int], placings: Sequence[Placement] | None = None
    ) -> SearchQuestion:
        basis = self.basis
        return SearchQuestion(
            self.paths,
            basis.model,
            basis.program,
            {gpu: basis.seconds(gpu, basis.batch) for gpu in pool},
            tuple(self._placings(pool) if placings is None else placings),
            min(self.size, len(pool)),
            self.key,
            self.required,
            last,
            self.groups,
        )

    def _faster(self, part: Sequence[int]) -> list[Sequence[int]]:
        """Return a part of the pool, and what is left of it without the GPUs of the slower speeds.

        With equal batches the slowest GPU of a set decides, with batches by speed all of them do.
        """
        found, taken = [part], list[int]()
        if self.request.batch_size == AUTO:
            for members in speed_classes({gpu: self.basis.speeds[gpu].images_per_sec for gpu in part}):
                taken += members
                required = self.required is None or self.required in taken
                if self.size <= len(taken) < len(part) and required:
                    found.append(sorted(taken))
        return found

    def _with_own_batches(self, found: FoundCandidate) -> FoundCandidate:
        own = zip(found.gpus, self.batches(found.gpus), strict=True)
        compute_s = max(self.basis.seconds(gpu, batch) for gpu, batch in own)
        gpus = found.gpus if found.placing.traffic in IN_ORDER else sorted(found.gpus)
        step = predict(self.stepper, self.paths, gpus, compute_s, found.placing, self.groups(gpus))
        return found._replace(prediction=step)

    def groups(self, gpus: Sequence[int]) -> Groups:
        """Return the groups of towers on these GPUs, for a hierarchical reduction."""
        key = tuple(gpus)
        if key not in self._groups_found:
            self._groups_found[key] = self._groups_of(gpus)
        return self._groups_found[key]

    def order(self, found: FoundCandidate, last: Collection[int]) -> tuple[object, ...]:
        """Return the sort key of a candidate; those with few GPUs of `last` come first."""
        nearness = sorted((self.key(a, b) for a, b in combinations(found.gpus, 2)), reverse=True)
        return (
            sum(gpu in last for gpu in found.gpus),
            round(found.prediction.step_s, DIGITS),
            nearness,
            found.gpus,
        )

    def _parts(self, pool: Sequence[int], last: Collection[int]) -> Sequence[Sequence[int]]:
        """Return the PIX islands to choose from where they are preferred and large enough, else the pool."""
        if not self.request.prefer_pix or self.exact:
            return [pool]
        fewest = max(0, self.size - len(set(pool) - set(last)))  # GPUs to avoid that every set has
        islands = [tuple(gpu for gpu in island if gpu in pool) for island in self.islands]
        return [
            island
            for island in islands
            if self.size - len(set(island) - set(last)) <= fewest and self.size <= len(island)
        ] or [pool]

    def _placings(self, pool: Sequence[int]) -> tuple[Placement, ...]:
        update, ps = self.variable_update, self.request.ps
        if not self.predicts:
            return (Placement("replicated", None, "copy"),)
        if update == "independent":
            return (Placement("independent"),)
        places = [f"gpu:{gpu}" for gpu in pool]
        if self.size > 1:
            places += [SPREAD, "cpu"]
        served = [Placement("parameter_server", place) for place in (places if ps == "auto" else [ps])]
        # Others are predicted by what they send, and no figures of them are published.
        reductions = (self.basis.program.adds, "nccl") if self.all_reduce is None else (self.all_reduce,)
        copied = [Placement("replicated", None, name) for name in reductions]
        if update == "parameter_server" or ps != "auto" or (update == "auto" and self.size == 1):
            return tuple(served)
        return tuple(copied if update == "replicated" else [*served, *copied])

    def _unchosen(self) -> tuple[Placement, ...]:
        """Return the other places that the request allows: predicted where asked for, never chosen."""
        update, every = self.request.variable_update, list[Placement]()
        if self.request.ps != "auto" or self.all_reduce is not None or not self.predicts:
            return ()
        if update in ("auto", "parameter_server"):
            every += [Placement("parameter_server", place) for place in (SPREAD, "cpu")]
        if update in ("auto", "replicated"):
            reductions = map(all_reduce.Reduction, all_reduce.NAMES)
            usable = (one.name for one in reductions if one.why_not("gpu", self.size) is None)
            every += [Placement("replicated", None, name) for name in usable]
        if update == "auto":
            every.append(Placement("independent"))
        chosen = self._placings(self.pool)
        return tuple(placing for placing in every if placing not in chosen)
