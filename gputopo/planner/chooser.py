"""The sets of GPUs and the placements for a request: which are chosen, and their predicted steps."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from math import inf, log2
from typing import Any, NamedTuple

import msgspec

from gputopo.planner.evidence import Decision, measured, rule
from gputopo.planner.ranges import is_number, range_factor
from gputopo.planner.reasons import pairs_of
from gputopo.planner.request import Request, batches, speed_classes
from gputopo.planner.selection import LISTED, MachineFacts, Selection
from gputopo.planner.sets import GpuSet, SetQuestion, best_sets
from gputopo.prediction import (
    BY_NCCL,
    DEFAULT_PROGRAM,
    ModelCosts,
    Placement,
    ProgramConstants,
    Speed,
    StepPredictor,
    StepSeconds,
    require_program,
)
from gputopo.topology import class_name
from gputopo.values.machine import Gpu
from gputopo.values.run import all_reduce
from gputopo.values.run.batches import AUTO
from gputopo.values.run.plan import CLEARLY_FASTER, SPREAD, Learned, MeasuredSpeed

NO_SHARE = 0.005  # of images/sec: a smaller difference is treated as none


class Basis(NamedTuple):
    """The facts that steps are predicted from, in addition to the machine."""

    model: ModelCosts
    program: ProgramConstants
    batch: int  # examples per GPU; the mean if they differ
    speeds: Mapping[int, Speed]  # of each GPU by itself with this batch
    speeds_with: Callable[[int], Mapping[int, Speed]]  # the same with another batch
    learned: Learned | None = None  # from earlier runs on this machine
    measured: tuple[MeasuredSpeed, ...] = ()  # placements of this job on this machine
    missing: str | None = None  # why no step is predicted, "" if not requested; None: steps are

    def seconds(self, gpu: int, batch: int) -> float:
        """Return the seconds of a step of a single GPU."""
        speeds = self.speeds if batch == self.batch else self.speeds_with(batch)
        return batch / (speeds.get(gpu) or self.speeds[gpu]).images_per_sec


def without_prediction(missing: str) -> Basis:
    """Return a basis from which nothing can be predicted."""
    return Basis(
        ModelCosts((), ()), require_program(DEFAULT_PROGRAM), 1, {}, lambda batch: {}, missing=missing
    )


class PlacedGpus(NamedTuple):
    """A set of GPUs with a placement of the variables; `step` is None if it is not predicted."""

    gpu_set: GpuSet
    placing: Placement
    step: StepSeconds | None


class Chooser(Selection):
    """Chooses the set of GPUs and the placement of a request, and predicts steps."""

    def __init__(
        self, facts: MachineFacts, request: Request, unavailable: Mapping[int, str], basis: Basis
    ) -> None:
        super().__init__(facts, request, unavailable)
        self.basis = basis
        self.predictor = StepPredictor(basis.model, basis.program, self.paths)
        gpus = (gpu for gpu in self.machine.gpus if gpu.index in self.pool)
        unknown = next((gpu for gpu in gpus if gpu.index not in basis.speeds), None)
        # Why no step is predicted, "" if no prediction is requested; None: steps are predicted.
        self.missing = basis.missing
        if basis.missing is None and unknown is not None:
            self.missing = _why_unknown(unknown)

    @property
    def predicts(self) -> bool:
        """Whether the seconds of steps are known."""
        return self.missing is None

    # Sets

    @cached_property
    def speed_classes(self) -> list[list[int]]:
        """The GPUs to choose from, grouped by speed; all in one group if no speeds are known."""
        if not self.predicts:
            return [list(self.pool)]
        return speed_classes({gpu: self.basis.speeds[gpu].images_per_sec for gpu in self.pool})

    @cached_property
    def best(self) -> GpuSet:
        """The chosen set: the fastest GPUs, unless the nearest GPUs are clearly faster together."""
        best = self._first_sets[0]
        if len(self.speed_classes) == 1:
            return best
        nearest = self.sets(1, self.troubles, by_speed=False)[0]
        faster = self.speed_of_best(nearest.gpus) > CLEARLY_FASTER * self.speed_of_best(best.gpus)
        return nearest if faster else best

    @cached_property
    def _first_sets(self) -> list[GpuSet]:
        return self.sets(LISTED, self.troubles)

    def sets(self, keep: int, last: Collection[int] = (), *, by_speed: bool = True) -> list[GpuSet]:
        """Return the best sets. `last`: GPUs that are used only if there are too few others."""
        if self.exact:
            return [GpuSet(self.pool)]
        classes = self.speed_classes if by_speed else [self.pool]
        ranks = {gpu: rank for rank, members in enumerate(classes) for gpu in members}
        by_sum, last = self.request.batch_size == AUTO, {*last} - {self.required}
        question = SetQuestion(self.size, self._nearness, ranks, by_sum, self.required, last)
        # The best sets of each island, sorted together.
        sets = [gpu_set for part in self._parts(last) for gpu_set in best_sets(question, part, keep)]
        return sorted(sets, key=lambda gpu_set: question.order(gpu_set.gpus))[:keep]

    @cached_property
    def _nearness(self) -> dict[tuple[int, int], int]:
        """The pairs by the rank of their sort keys: ranks are faster to compare than keys."""
        keys = {pair: self.key(*pair) for pair in pairs_of(self.pool)}
        numbers = {key: number for number, key in enumerate(sorted({*keys.values()}))}
        return {pair: numbers[key] for pair, key in keys.items()}

    def key(self, a: int, b: int) -> tuple[int, ...]:
        """Return the sort key of a pair: by measured speed, else by its narrowest link, then by distance."""
        key = super().key(a, b)
        if self.measured is not None or key[0] < 0:  # NVLinks need no PCIe
            return (0, *key)
        return (max(self._narrow[a], self._narrow[b]), *key)

    @cached_property
    def _narrow(self) -> dict[int, int]:
        """How many times each GPU's link to the host is half as fast as the fastest one."""
        rates = {gpu: min(self.paths.hosts[gpu][:2]) for gpu in self.pool}
        return {gpu: round(log2(max(rates.values()) / rate)) for gpu, rate in rates.items()}

    def _parts(self, last: Collection[int]) -> Sequence[Sequence[int]]:
        """Return the PIX islands to choose from if they are preferred and large enough, else the pool."""
        if not self.request.prefer_pix:
            return [self.pool]
        fewest = max(0, self.size - len({*self.pool} - {*last}))  # GPUs to avoid that every set has
        return [
            island
            for island in self.islands
            if self.size - len({*island} - {*last}) <= fewest and self.size <= len(island)
        ] or [self.pool]

    def asked(self, basis: Basis | None = None, **changes: Any) -> "Chooser":
        """Return the chooser for a changed request. `basis`: a changed basis."""
        request = msgspec.structs.replace(self.request, **changes)
        return Chooser(self.facts, request, self.unavailable, basis or self.basis)

    # Placements

    def decide(self, gpus: Sequence[int]) -> Decision:
        """Return the placement on some GPUs: measured, else by rule, unless another is clearly faster."""
        allowed = self.allowed(gpus)
        if len(allowed) == 1:
            return Decision(allowed[0], "rule", ())
        by_rule, why = rule(self.machine, self.paths, gpus)
        if by_rule not in allowed:
            spread = Placement("parameter_server", SPREAD)
            by_rule = spread if self.paths.has_peer_access(gpus) and spread in allowed else allowed[0]
            why = f"by rule: {by_rule.words}"
        if decision := self._placed_before(gpus, allowed, by_rule):
            return decision
        return self._clearly_faster(gpus, allowed, by_rule) or Decision(by_rule, "rule", (why,))

    def _placed_before(
        self, gpus: Sequence[int], allowed: Sequence[Placement], by_rule: Placement
    ) -> Decision | None:
        """Return the fastest measured placement on these GPUs, or on others with the same distances."""
        classes = self._classes(gpus)
        speeds = [
            speed
            for speed in self.basis.measured
            if len(speed.gpus) == len(gpus) and self._classes(speed.gpus) == classes
            if Placement.of(speed) in allowed
            or speed.variable_update == by_rule.variable_update == "replicated"
        ]
        return measured(speeds, gpus, self.basis.batch, by_rule)

    def _classes(self, gpus: Sequence[int]) -> list[str]:
        """Return the distances between the pairs of a set, and its GPU models."""
        names = {gpu.index: gpu.name or "" for gpu in self.machine.gpus}
        pairs = [class_name(self.links.get(pair)) for pair in pairs_of(gpus)]
        return [*sorted(pairs), *sorted(names.get(gpu, "") for gpu in gpus)]

    def _clearly_faster(
        self, gpus: Sequence[int], allowed: Sequence[Placement], by_rule: Placement
    ) -> Decision | None:
        if not self.predicts:
            return None
        if by_rule == BY_NCCL and not self.paths.has_peer_access(gpus):
            return None  # no published figure compares NCCL through host memory with copies
        if not is_number(range_factor([self.basis.speeds[gpu] for gpu in gpus], exchanges=True)):
            return None  # an order of magnitude is too inaccurate to decide
        speeds = {
            placing: self.images_per_sec(gpus, placing) or 0.0
            for placing in (*allowed, by_rule)
            if placing.ps_device != "cpu" or not self.paths.has_peer_access(gpus) or placing == by_rule
        }
        best = max(speeds, key=speeds.__getitem__)
        if speeds[best] <= CLEARLY_FASTER * speeds[by_rule]:
            return None
        why = f"predicted {speeds[best] / speeds[by_rule]:.1f} times as fast as {by_rule.words}"
        return Decision(best, "predicted", (f"{best.words}: {why}; --autotune measures both here",))

    def allowed(self, gpus: Sequence[int]) -> tuple[Placement, ...]:
        """Return the placements on some GPUs that the request allows, the placement of the rule first."""
        update, ps, owners = self.variable_update, self.request.ps, [f"gpu:{gpu}" for gpu in gpus]
        if update == "independent":
            return (Placement("independent"),)
        places = owners if self.size == 1 else [SPREAD, "cpu", *owners]
        served = [Placement("parameter_server", place) for place in (places if ps == "auto" else [ps])]
        if not self.paths.has_peer_access(gpus):
            served.sort(key=lambda placing: placing.ps_device != "cpu")
        if self.all_reduce is not None:
            return (Placement("replicated", None, self.all_reduce),)
        if update == "parameter_server" or ps != "auto" or (update == "auto" and self.size == 1):
            return tuple(served)
        reductions = ("copy",) if self.size == 1 else ("nccl", self.basis.program.adds)
        copied = [Placement("replicated", None, name) for name in reductions]
        return tuple(copied if update == "replicated" else [*copied, *served])

    def never_chosen(self, gpus: Sequence[int]) -> tuple[Placement, ...]:
        """Return the placements that the request allows but that are listed only, never chosen."""
        update, every = self.request.variable_update, list[Placement]()
        if self.request.ps != "auto" or self.all_reduce is not None:
            return ()
        if update in ("auto", "parameter_server"):
            every += [Placement("parameter_server", place) for place in (SPREAD, "cpu")]
        if update in ("auto", "replicated"):
            reductions = map(all_reduce.Reduction, all_reduce.NAMES)
            usable = (reduction for reduction in reductions if reduction.why_not("gpu", self.size) is None)
            every += [Placement("replicated", None, reduction.name) for reduction in usable]
        if update == "auto":
            every.append(Placement("independent"))
        chosen = self.allowed(gpus)
        return tuple(placing for placing in every if placing not in chosen)

    # Steps

    def batches(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the examples of each of these GPUs, in tower order; () if they are not known."""
        asked = self.request.batch_size
        if not self.predicts:
            return asked if isinstance(asked, tuple) else ()
        return batches(asked, self.basis.batch, [self.basis.speeds[gpu].images_per_sec for gpu in gpus])

    def seconds_alone(self, gpus: Sequence[int]) -> dict[int, float]:
        """Return the seconds of a step of each GPU by itself."""
        sizes = zip(gpus, self.batches(gpus), strict=True)
        return {gpu: self.basis.seconds(gpu, batch) for gpu, batch in sizes}

    def step(self, gpus: Sequence[int], placing: Placement) -> StepSeconds | None:
        """Return the predicted step; None if it is not predicted."""
        if not self.predicts or placing.traffic is None:
            return None
        compute_s = max(self.seconds_alone(gpus).values())
        step, learned = self.predictor.step(gpus, compute_s, placing), self.basis.learned
        # The learned factor is for whole steps; the compute of a single GPU is known separately.
        return step if learned is None else step.lasting(max(compute_s, learned.step_factor * step.step_s))

    def images_per_sec(self, gpus: Sequence[int], placing: Placement) -> float | None:
        """Return the predicted speed of a placement; None if it is not predicted."""
        step = self.step(gpus, placing)
        return None if step is None else sum(self.batches(gpus)) / step.step_s

    def speed_of_best(self, gpus: Sequence[int] | None = None) -> float:
        """Return the predicted speed of the choice, or of the chosen placement on some GPUs."""
        gpus = self.best.gpus if gpus is None else gpus
        return self.images_per_sec(gpus, self.decide(gpus).placing) or 0.0

    def listed(self, count: int) -> list[PlacedGpus]:
        """Return up to `count` candidates: the choice, other placements on its GPUs, then other sets."""
        best, chosen = self.best, self.decide(self.best.gpus).placing
        first = self._first_sets if count <= LISTED else self.sets(count, self.troubles)
        sets = [gpu_set for gpu_set in first if gpu_set != best]
        owners = (None, self.required, best.gpus[0])
        others = [
            (best, placing)
            for placing in self.allowed(best.gpus)
            if placing.owner in owners and placing != chosen and self.predicts
        ]
        more = [self._placed(gpu_set, self.decide(gpu_set.gpus).placing) for gpu_set in sets]
        return [self._placed(best, chosen), *self._by_speed(others), *more][:count]

    def every(self, count: int) -> list[PlacedGpus]:
        """Return all candidates: the choice, then the others by predicted speed, unpredicted ones last."""
        chosen = self.best, self.decide(self.best.gpus).placing
        rest = [
            (gpu_set, placing)
            for gpu_set in self.sets(count, self.troubles)
            for placing in (*self.allowed(gpu_set.gpus), *self.never_chosen(gpu_set.gpus))
            if (gpu_set, placing) != chosen
        ]
        return [self._placed(*chosen), *self._by_speed(rest)]

    def _placed(self, gpu_set: GpuSet, placing: Placement) -> PlacedGpus:
        return PlacedGpus(gpu_set, placing, self.step(gpu_set.gpus, placing))

    def _by_speed(self, pairs: Sequence[tuple[GpuSet, Placement]]) -> list[PlacedGpus]:
        def seconds(placed: PlacedGpus) -> float:
            if placed.step is None or placed.placing.traffic == "none":
                return inf
            return placed.step.step_s / sum(self.batches(placed.gpu_set.gpus))

        return sorted((self._placed(*pair) for pair in pairs), key=seconds)


def _why_unknown(gpu: Gpu) -> str:
    """Return why the speed of a GPU is not known, and which option sets it."""
    if gpu.name is None and gpu.pci_device_id is None:
        why = f"the model of GPU {gpu.index} is unknown"
    else:
        name = (gpu.name or "").removeprefix("NVIDIA ") or f"PCI id {gpu.pci_device_id}"
        why = f"there is no reference data for {name}"
    return f"{why}: --single-gpu-images-per-sec sets its speed"
