"""The order of sets of GPUs and places for their variables by the predicted seconds of a step. Pure.

All sets with all places are compared (`gputopo.prediction.search`). Of those that are as fast, the set whose
GPUs are nearer to one another wins, then the lowest indices.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice
from math import exp, hypot, inf, log
from typing import NamedTuple

import msgspec

from gputopo.planner.reasons import farthest_words, in_words, reduction_reasons, search_reason
from gputopo.planner.request import Request, batch_reasons, batches, gpus_in_words, speed_classes
from gputopo.planner.selection import ALL, LISTED, Selection
from gputopo.prediction.calibration import range_share
from gputopo.prediction.gradients import IN_ORDER
from gputopo.prediction.links.paths import paths_of, unknown_facts
from gputopo.prediction.one_gpu_speeds import Speed
from gputopo.prediction.programs import Program
from gputopo.prediction.search import fastest
from gputopo.prediction.sets import DETAILED, DIGITS, Found, Question, every_candidate
from gputopo.prediction.step import Model, Placing, Stepper, predict
from gputopo.topology.hops import Groups, GroupsOf
from gputopo.values.machine import Machine
from gputopo.values.run import all_reduce
from gputopo.values.run.batches import AUTO
from gputopo.values.run.plan import SPREAD, SURE_MARGIN, Candidate, Learned, Prediction, Price, runners_up

# Reductions of which gputopo chooses one. Others are predicted by what they send, and were never measured.
CHOSEN_REDUCTIONS = ("copy", "nccl", "pscpu")
# Found candidates for each that is listed: those that differ only in the GPU with the variables are one.
_FOUND_PER_LISTED = 4
_NO_SHARE = 0.005  # of images/sec: less is no price


class Basis(NamedTuple):
    """The facts that steps are predicted from, beside the machine.

    `batch`: per GPU, the mean where they differ; `speeds`: with it, `speeds_with`: with another batch.
    `learned`: what earlier runs of this box changed in the program's constants.
    """

    model: Model
    program: Program
    batch: int
    speeds: Mapping[int, Speed]
    speeds_with: Callable[[int], Mapping[int, Speed | None]]
    learned: Learned | None = None

    def seconds(self, gpu: int, batch: int) -> float:
        """Return the seconds of a step of one GPU alone."""
        speed = (None if batch == self.batch else self.speeds_with(batch)[gpu]) or self.speeds[gpu]
        return batch / speed.images_per_sec


class _OfSet(NamedTuple):
    """What all candidates of a set of GPUs have in common.

    `batch`: examples of a step; `batch_sizes`: of each GPU where they differ; `fastest`: images/sec of the
    fastest GPU alone; `alone`, `together`: ranges over the prediction of each GPU by itself, of all together;
    `slowest`: the GPU that the others wait for.
    """

    batch: int
    batch_sizes: tuple[int, ...]
    fastest: float
    alone: tuple[float, float]
    together: tuple[float, float]
    slowest: int | None


class Fastest(Selection):
    """The candidates whose steps are shortest."""

    def __init__(
        self, machine: Machine, request: Request, unavailable: Mapping[int, str], basis: Basis
    ) -> None:
        super().__init__(machine, request, unavailable)
        self.basis = basis
        self.paths = paths_of(machine)
        self.stepper = Stepper(basis.model, basis.program, self.size, self.paths.cpus)
        self._groups_of = GroupsOf(machine)
        self._groups_found: dict[tuple[int, ...], Groups] = {}
        self._searched: dict[object, tuple[int, tuple[Found, ...]]] = {}  # with how many were asked for
        self._of_sets: dict[tuple[tuple[int, ...], float], _OfSet] = {}

    @property
    def _has_own_batches(self) -> bool:
        return self.request.batch_size == AUTO or isinstance(self.request.batch_size, tuple)

    def batches(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the examples of each of these GPUs, in the order of their towers."""
        speeds = [self.basis.speeds[gpu].images_per_sec for gpu in gpus]
        return batches(self.request.batch_size, self.basis.batch, speeds)

    def images_per_sec(self, found: Found) -> float:
        """Return the predicted speed of a candidate."""
        return sum(self.batches(found.gpus)) / found.prediction.step_s

    def search(
        self, pool: Sequence[int], keep: int, deprioritized: Collection[int] = ()
    ) -> tuple[Found, ...]:
        """Return the `keep` fastest candidates of the pool, within one PIX island where that is preferred."""
        return self._search(pool, keep, deprioritized)

    def candidates(self, keep: int | None) -> tuple[Candidate, ...]:
        """Return the fastest candidates, `keep` at most; ALL: also those that are never chosen unasked.

        None: up to LISTED, which the places on the fastest set and the ten fastest of all fill as a rule.
        """
        if keep == ALL:
            return tuple(self.every_candidate())
        listed = LISTED if keep is None else max(keep, 1)
        wanted = LISTED if keep is None else listed * _FOUND_PER_LISTED
        searched = self._search(self.pool, wanted, self.troubles)
        found = self._listed(searched, listed)
        return tuple(self._listed_candidate(one, rank, searched) for rank, one in enumerate(found))

    def every_candidate(self) -> Iterator[Candidate]:
        """Iterate over all candidates, the best first, then those that are never chosen unasked.

        Of many only the first have the links that limit them, and reasons.
        """
        last, after = set(self.troubles) - {self.required}, self._unchosen()
        if self._has_own_batches or self.exact:
            listed = self._search(self.pool, ALL, self.troubles)
            listed += self._search(self.pool, ALL, self.troubles, after)
            return (self._listed_candidate(one, rank, listed) for rank, one in enumerate(listed))
        each = [
            every_candidate(self._question(part, last), part, after) for part in self._parts(self.pool, last)
        ]
        found = each[0]
        if len(each) > 1:
            found = heapq.merge(*each, key=lambda one: (one.placing in after, *self._order(one, last)))
        first = list(islice(found, DETAILED))
        detailed = (self._listed_candidate(one, rank, first) for rank, one in enumerate(first))
        return chain(detailed, map(self._candidate, found))

    def difference(self, chosen: Sequence[int], best: Sequence[int]) -> str:
        """Return how much slower the chosen GPUs are than the fastest ones."""
        now, then = (self.images_per_sec(self._search(gpus, 1)[0]) for gpus in (chosen, best))
        return f"{now:.0f} instead of {then:.0f} images/sec" if now < then * (1 - _NO_SHARE) else ""

    def prediction(self, candidates: Sequence[Candidate]) -> Prediction:
        """Return from what was predicted, how sure the choice is, and what the options cost."""
        choice = candidates[0]
        margin = tie = None
        runner_up = next(iter(runners_up(choice, candidates)), None)
        if runner_up is not None:
            margin = 1 - (runner_up.images_per_sec or 0.0) / (choice.images_per_sec or inf)
            if margin < SURE_MARGIN:
                facts = unknown_facts(self.machine, self.paths)[:1]
                tie = ", or ".join((*facts, "one short run of each (--autotune)"))
        return Prediction(
            program=self.basis.program.name,
            batch_size=self.basis.batch,
            single_gpu_images_per_sec={
                gpu: round(self.basis.speeds[gpu].images_per_sec, 2) for gpu in self.pool
            },
            single_gpu_source=" + ".join(dict.fromkeys(self.basis.speeds[gpu].source for gpu in choice.gpus)),
            margin=margin,
            tie=tie,
            learned=self.basis.learned,
            prices=tuple(self._prices(choice)),
        )

    def _search(
        self,
        pool: Sequence[int],
        keep: int,
        deprioritized: Collection[int] = (),
        placings: Sequence[Placing] | None = None,
    ) -> tuple[Found, ...]:
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
        placings: Sequence[Placing] | None,
    ) -> tuple[Found, ...]:
        parts = self._parts(pool, last)
        of_own, as_named = self._has_own_batches, self.exact and set(pool) == set(self.pool)
        if of_own:
            # Found with equal batches, then predicted with their own: enough to have each place of the best.
            keep_equal = max(
                keep, LISTED * _FOUND_PER_LISTED, len(self._placings(pool) if placings is None else placings)
            )
            parts = [faster for part in parts for faster in self._faster(part)]
        found: list[Found] = []
        for part in parts:
            question = self._question(part, last, placings)
            # In the order that was named another candidate may be the fastest.
            found += fastest(question, part, ALL if as_named else keep_equal if of_own else keep)
        if as_named:
            found = [self._as_named(one) for one in found]
        if of_own:
            found = list({(one.gpus, one.placing): self._with_own_batches(one) for one in found}.values())
        found.sort(key=lambda one: self._order(one, last))
        return tuple(found[:keep])

    def _as_named(self, found: Found) -> Found:
        """Return a candidate of the GPUs that were named with towers in that order, where it counts."""
        step = found.prediction
        if found.placing.traffic in IN_ORDER and found.gpus != self.pool:
            groups = self._groups(self.pool)
            step = predict(self.stepper, self.paths, self.pool, step.compute_s, found.placing, groups)
        return found._replace(gpus=self.pool, prediction=step)

    def _question(
        self, pool: Sequence[int], last: Collection[int], placings: Sequence[Placing] | None = None
    ) -> Question:
        basis = self.basis
        return Question(
            self.paths,
            basis.model,
            basis.program,
            {gpu: basis.seconds(gpu, basis.batch) for gpu in pool},
            tuple(self._placings(pool) if placings is None else placings),
            min(self.size, len(pool)),
            self.key,
            self.required,
            last,
            self._groups,
            self.cards.key,
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

    def _with_own_batches(self, found: Found) -> Found:
        """Return a candidate that was found with equal batches with the batches of its GPUs."""
        own = zip(found.gpus, self.batches(found.gpus), strict=True)
        compute_s = max(self.basis.seconds(gpu, batch) for gpu, batch in own)
        gpus = found.gpus if found.placing.traffic in IN_ORDER else sorted(found.gpus)
        step = predict(self.stepper, self.paths, gpus, compute_s, found.placing, self._groups(gpus))
        return found._replace(prediction=step)

    def _groups(self, gpus: Sequence[int]) -> Groups:
        key = tuple(gpus)
        if key not in self._groups_found:
            self._groups_found[key] = self._groups_of(gpus)
        return self._groups_found[key]

    def _order(self, found: Found, last: Collection[int]) -> tuple[object, ...]:
        nearness = sorted((self.key(a, b) for a, b in combinations(found.gpus, 2)), reverse=True)
        return (
            sum(gpu in last for gpu in found.gpus),
            round(found.prediction.step_s, DIGITS),
            nearness,
            sorted(map(self.cards.key, found.gpus), reverse=True),
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

    def _placings(self, pool: Sequence[int]) -> tuple[Placing, ...]:
        """Return the places for the variables among which gputopo chooses, as the request leaves them."""
        update, ps = self.variable_update, self.request.ps
        if update == "independent":
            return (Placing("independent"),)
        places = [f"gpu:{gpu}" for gpu in pool]
        if self.size > 1:
            places += [SPREAD, "cpu"]
        served = [Placing("parameter_server", place) for place in (places if ps == "auto" else [ps])]
        reductions = CHOSEN_REDUCTIONS if self.all_reduce is None else (self.all_reduce,)
        copied = [Placing("replicated", None, name) for name in reductions]
        if update == "parameter_server" or ps != "auto" or (update == "auto" and self.size == 1):
            return tuple(served)
        return tuple(copied if update == "replicated" else [*served, *copied])

    def _unchosen(self) -> tuple[Placing, ...]:
        """Return the other places that the request allows: predicted where asked for, never chosen."""
        update, every = self.request.variable_update, list[Placing]()
        if self.request.ps != "auto" or self.all_reduce is not None:
            return ()
        if update in ("auto", "parameter_server"):
            every += [Placing("parameter_server", place) for place in (SPREAD, "cpu")]
        if update in ("auto", "replicated"):
            reductions = map(all_reduce.Reduction, all_reduce.NAMES)
            usable = (one.name for one in reductions if one.why_not("gpu", self.size) is None)
            every += [Placing("replicated", None, name) for name in usable]
        if update == "auto":
            every.append(Placing("independent"))
        chosen = self._placings(self.pool)
        return tuple(placing for placing in every if placing not in chosen)

    def _listed(self, found: Sequence[Found], keep: int) -> tuple[Found, ...]:
        """Return the fastest one, other places on its GPUs, and as many others as are listed.

        Those that differ only in the GPU with the variables are one.
        """
        listed: dict[object, Found] = {}
        for one in (found[0], *self._search(found[0].gpus, ALL, self.troubles), *found):
            owner = one.placing.owner is not None and one.placing.owner != self.required
            mode = "owner" if owner else one.placing
            listed.setdefault((one.gpus, mode, round(one.prediction.step_s, DIGITS)), one)
        return tuple(sorted(list(listed.values())[:keep], key=lambda one: self._order(one, self.troubles)))

    def _listed_candidate(self, found: Found, rank: int, searched: Sequence[Found]) -> Candidate:
        """Return a found candidate; the first one with all its reasons, the others in short."""
        reasons = self._reasons(found, searched) if rank == 0 else self._short_reasons(found)
        return msgspec.structs.replace(self._candidate(found), reasons=tuple(reasons))

    def _candidate(self, found: Found) -> Candidate:
        gpus, placing, step = found.gpus, found.placing, found.prediction
        share = 1.0 if self.basis.learned is None else range_share(self.basis.learned, placing)
        known = self._of_sets.get((gpus, share)) or self._of_set(gpus, share)
        speed = known.batch / step.step_s
        low, high = known.alone if len(gpus) == 1 or placing.traffic == "none" else known.together
        links = {"weights": step.weights_by, "gradients": step.gradients_by}
        return Candidate(
            gpus=gpus,
            variable_update=placing.variable_update,
            ps_device=placing.ps_device,
            all_reduce=placing.all_reduce,
            alike=found.alike,
            images_per_sec=round(speed, 2),
            images_per_sec_low=round(speed * low, 2),
            images_per_sec_high=round(speed * high, 2),
            speedup=round(speed / known.fastest, 3),
            step_ms=_ms(step.step_s),
            batch_sizes=known.batch_sizes,
            compute_ms=_ms(step.compute_s),
            exposed_ms={
                "weights": _ms(step.weights_s),
                "gradients": _ms(step.gradients_s),
                "variables": _ms(step.variables_s),
            },
            links={part: in_words(by, placing, self.paths) for part, by in links.items() if by is not None},
            limited_by=self._limited_by(found, known.slowest),
        )

    def _of_set(self, gpus: tuple[int, ...], share: float) -> "_OfSet":
        """Return what all candidates of a set have in common.

        The range of GPUs together is that of the program, `share` times as wide, and of the slowest GPU's
        speed. Their errors are independent: logarithms add up as squares do.
        """
        program, speeds = self.basis.program, [self.basis.speeds[gpu] for gpu in gpus]
        slowest = min(speeds)
        low, high = log(slowest.low / slowest.images_per_sec), log(slowest.high / slowest.images_per_sec)
        each = self.batches(gpus)
        found = self._of_sets[gpus, share] = _OfSet(
            sum(each),
            each if len(set(each)) > 1 else (),
            max(speeds).images_per_sec,
            (exp(low), exp(high)),
            (exp(-hypot(share * log(program.low), low)), exp(hypot(share * log(program.high), high))),
            self._slowest(gpus, each),
        )
        return found

    def _slowest(self, gpus: Sequence[int], batches: Sequence[int]) -> int | None:
        """Return the GPU that the others wait for; None where all are as fast."""
        own = zip(gpus, batches, strict=True)
        seconds = {gpu: self.basis.seconds(gpu, batch) for gpu, batch in own}
        slowest = max(gpus, key=seconds.__getitem__)
        return slowest if min(seconds.values()) < (1 - _NO_SHARE) * seconds[slowest] else None

    def _limited_by(self, found: Found, slowest: int | None) -> str:
        step = found.prediction
        if step.step_s - step.compute_s < SURE_MARGIN * step.step_s:
            return "compute" if slowest is None else f"compute of GPU {slowest}"
        if step.variables_s > max(step.weights_s, step.gradients_s):
            return "cost of variables"
        by, largest = step.weights_by, "weights"
        if step.gradients_s > step.weights_s:
            by, largest = step.gradients_by, "gradients"
        return largest if by is None else in_words(by, found.placing, self.paths)

    def _reasons(self, found: Found, searched: Sequence[Found]) -> list[str]:
        gpus = found.gpus
        reasons = self.distance_reasons(gpus, self.pool)
        reasons.append(
            "the GPUs were named by --gpus" if self.exact else self._search_reason(found, searched)
        )
        if len(gpus) > 1:
            unknown = unknown_facts(self.machine, self.paths)
            reasons.append(f"not known: {'; '.join(unknown)}" if unknown else "link speeds: measured")
        reasons += batch_reasons(self.request, self.batches(gpus), known=True)
        reduction = reduction_reasons(self.machine, gpus, found.placing.all_reduce)
        return [*reasons, *self.reasons_of_request(gpus), *reduction]

    def _search_reason(self, found: Found, searched: Sequence[Found]) -> str:
        """Return among how many sets this is the best; `searched`: the first of all candidates, in order."""
        first = self._order(found, self.troubles)[:2]
        same = {one.gpus: one.alike for one in searched if self._order(one, self.troubles)[:2] == first}
        equal = sum(same.values())
        # Sets that are as fast may follow a list that ends with one.
        at_least = self._order(searched[-1], self.troubles)[:2] == first and equal < self.sets
        if self.size == 1 < self.sets:
            count = f"at least {equal}" if at_least else f"{equal}"
            which = "the nearest to the network card" if self.cards.decide(self.pool) else "the lowest index"
            more = f"; {count} are as fast, {which} was chosen" if equal > 1 else ""
            idle = "of those with the least use and errors " if self.troubles else ""
            return f"one GPU of {self.sets} to choose from: {idle}the fastest by prediction{more}"
        return search_reason(
            self.sets,
            equal,
            self.size,
            by="predicted seconds of a step",
            good="fast",
            chosen="the nearest with the lowest indices was chosen",
            troubled=bool(self.troubles),
            at_least=at_least,
            by_card=self.cards.decide(self.pool),
        )

    def _short_reasons(self, found: Found) -> Iterator[str]:
        short = farthest_words(self.links, found.gpus)
        if troubled := sorted(self.troubles.keys() & set(found.gpus)):
            short += f"; {gpus_in_words(troubled)} in use or in error"
        yield short if found.alike == 1 else f"{short}; represents {found.alike} equivalent sets"

    def _prices(self, choice: Candidate) -> Iterator[Price]:
        """Return what each option costs that leaves fewer candidates to choose from."""
        for option, request in self._without_options(choice).items():
            other = Fastest(self.machine, request, self.unavailable, self.basis)
            bases = {self.basis.speeds[gpu].basis if gpu in self.basis.speeds else None for gpu in other.pool}
            if None in bases or ("given" in bases and len(bases) > 1):
                continue  # a speed that was given is not to be compared with those of other sources
            if isinstance(request.batch_size, tuple) and other.size != self.size:
                continue  # the batches are those of so many GPUs
            best = other.search(other.pool, 1, other.troubles)[0]
            speed = other.images_per_sec(best)
            share = 1 - (choice.images_per_sec or 0.0) / speed
            yield Price(
                option=option,
                share=round(share, 4) if share > _NO_SHARE else 0.0,
                images_per_sec=round(speed, 2),
                instead=best.gpus,
                mode=" ".join(filter(None, best.placing)),
            )

    def _without_options(self, choice: Candidate) -> dict[str, Request]:
        """Return the request without each option that leaves fewer candidates, by that option."""
        request = self.request
        freed: dict[str, dict[str, object]] = {}
        if request.prefer_pix and self.in_one_island(choice.gpus) and self.size > 1:
            freed["--prefer-pix"] = {"prefer_pix": False}
        if request.ps != "auto":
            freed[f"--ps {request.ps}"] = {"ps": "auto"}
        if request.all_reduce is not None:
            freed[f"--all-reduce {request.all_reduce}"] = {"all_reduce": None}
        elif request.variable_update in ("parameter_server", "replicated"):
            freed[f"--variable-update {request.variable_update}"] = {"variable_update": "auto"}
        if self.exact and self.required is None:
            freed["--gpus"] = {"gpus": None, "num_gpus": self.size}
        return {option: msgspec.structs.replace(request, **fields) for option, fields in freed.items()}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)
