"""Seconds of one training step: compute, weights that forward waits for, gradients after backward, variables.

A step of N towers lasts as long as the slowest of them computes, and longer by the weights that have not come
when forward needs them, by the gradients that are not through when backward ends
(`gputopo.prediction.gradients`), and by what each variable costs on each tower whatever its size. Pure.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

from gputopo.prediction.gradients import (
    TRAFFIC,
    GradientBlock,
    GradientLine,
    Stage,
    Stages,
    Traffic,
    line_of,
    parts_of,
    spread_parts,
    stages_of,
)
from gputopo.prediction.links.flows import GB, Flows
from gputopo.prediction.links.paths import Paths, Resource
from gputopo.prediction.links.rings import Rings
from gputopo.prediction.programs import ProgramConstants
from gputopo.topology.hops import Groups, halves
from gputopo.values.run.all_reduce import Reduction, parse
from gputopo.values.run.plan import VariableUpdate
from gputopo.workload.workloads import Workload

# A number of an output that training keeps, in the time of as many multiply-accumulates: memory traffic.
FEATURE_COST = 100
FLOAT_BYTES = 4
# Backward of a layer has two products, by its inputs and by its weights, for the one of forward.
FORWARD_SHARE = 1 / 3
HOST: Resource = ("host",)


class Placement(NamedTuple):
    """One place for the variables. `ps_device`: cpu, gpu:spread, gpu:N, or None for replicas."""

    variable_update: VariableUpdate
    ps_device: str | None = None
    all_reduce: str | None = None

    @property
    def owner(self) -> int | None:
        """The GPU that has all variables."""
        device = self.ps_device
        if device is None or not device.startswith("gpu:") or device == "gpu:spread":
            return None
        return int(device.removeprefix("gpu:"))

    @property
    def traffic(self) -> Traffic:
        """Where weights and gradients flow."""
        if self.variable_update == "independent":
            return "none"
        if self.ps_device is not None:
            return "host" if self.ps_device == "cpu" else "spread" if self.owner is None else "owner"
        return TRAFFIC[self.reduction.name]

    @property
    def reduction(self) -> Reduction:
        """How gradients of replicas are added."""
        return _reduction(self.all_reduce or "copy")


@cache
def _reduction(name: str) -> Reduction:
    return parse(name)


class ModelCosts(NamedTuple):
    """What is needed of a workload. `sizes`: bytes of each variable, in order; `names`: of the blocks."""

    blocks: tuple[GradientBlock, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all variables."""
        return sum(self.sizes)


class StepSeconds(NamedTuple):
    """Seconds of a step by part; `weights_by` and `gradients_by`: the resource that limits each."""

    compute_s: float
    weights_s: float = 0.0
    gradients_s: float = 0.0
    variables_s: float = 0.0
    weights_by: Resource | None = None
    gradients_by: Resource | None = None

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.weights_s + self.gradients_s + self.variables_s


def model_of(workload: Workload) -> ModelCosts:
    """Return what the prediction needs of a workload."""
    costs = [block.multiply_accumulates + FEATURE_COST * block.features for block in workload.blocks]
    whole = sum(costs) or 1
    return ModelCosts(
        tuple(
            GradientBlock(FLOAT_BYTES * block.parameters, cost / whole)
            for block, cost in zip(workload.blocks, costs, strict=True)
        ),
        tuple(FLOAT_BYTES * size for block in workload.blocks for size in block.variables),
        tuple(block.name for block in workload.blocks),
    )


Limit = tuple[Resource | None, float]
"""The link that a byte of the model occupies longest, and its seconds."""


class Terms(NamedTuple):
    """What a step of one placing needs, given seconds a byte of the slowest link."""

    weights: float  # seconds for each second a byte
    gradients: float  # the factor of the rate of gradients
    least: float  # minimum of that rate, seconds a byte
    variables_s: float
    line: GradientLine  # of the gradients
    more: float = 0.0  # seconds of the variables for each of the rate of gradients


@cache
def _numbers(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size // FLOAT_BYTES for size in sizes)


class StepPredictor:
    """The steps of one model, program and number of towers, from the rates of the slowest links.

    `sockets`: CPUs, whose cores add gradients and copy variables. `of_host`: towers of the host that has
    most, where several have their own copies of the variables.
    """

    def __init__(
        self,
        model: ModelCosts,
        program: ProgramConstants,
        towers: int,
        sockets: int = 1,
        of_host: int | None = None,
    ) -> None:
        self.program, self.towers = program, towers
        self.model, self.bytes = model, model.bytes
        self.line: GradientLine = line_of(model.blocks, 1.0, program.overlap)
        self.ring_line: GradientLine = line_of(model.blocks, 1.0, program.ring_overlap)
        self.numbers = _numbers(model.sizes)
        self.host_add = towers / (program.host_add_gb_per_s * sockets * GB)
        self._sockets = sockets
        self._of_host = towers if of_host is None else of_host
        self._terms: dict[Placement, Terms] = {}

    def predict(
        self, placing: Placement, compute_s: float, weights: float, gradients: float
    ) -> tuple[float, float, float]:
        """Return the seconds of weights, gradients and variables.

        `weights`, `gradients`: seconds for which a byte of the model occupies the slowest link.
        """
        terms = self._terms.get(placing) or self.terms(placing)
        rate = max(gradients * terms.gradients, terms.least)
        backward = (1 - FORWARD_SHARE) * compute_s
        late = backward * (terms.line.end(rate / backward) - 1.0) if backward > 0 else rate * self.bytes
        return terms.weights * weights, max(0.0, late), terms.variables_s + terms.more * gradients

    def step(self, placing: Placement, compute_s: float, weights: Limit, gradients: Limit) -> StepSeconds:
        """Return the step by the slowest links of weights and of gradients, and what these are."""
        if self.towers == 1 or placing.traffic == "none":
            return StepSeconds(compute_s)
        parts = self.predict(placing, compute_s, weights[1], gradients[1])
        by_host = placing.traffic == "host" and self.host_add > gradients[1] / self.program.link_share
        return StepSeconds(compute_s, *parts, weights[0], HOST if by_host else gradients[0])

    def stages(self, placing: Placement, groups: Groups) -> Stages:
        """Return the copies between towers of a reduction in groups; without groups in two halves."""
        return stages_of(placing.reduction.name, self.numbers, groups or halves(self.towers))

    def terms(self, placing: Placement) -> Terms:
        """Return what a step of this placing needs."""
        terms = self._terms[placing] = self._new_terms(placing)
        return terms

    def _new_terms(self, placing: Placement) -> Terms:
        program, traffic, towers = self.program, placing.traffic, self.towers
        if towers == 1 or traffic == "none":
            return Terms(0.0, 0.0, 0.0, 0.0, self.line)
        if traffic == "ring":
            variables = len(self.numbers)
            variables_s, more = 1e-6 * program.us_ring * variables, 1e6 * program.ring_mb * variables
            return Terms(0.0, 1 / program.ring_share, 0.0, variables_s, self.ring_line, more)
        weights = gradients = 1 / program.link_share
        by_ps, least, line = placing.ps_device is not None, 0.0, self.line
        wait = program.wait if by_ps else program.return_share
        cuts = program.cuts_variables
        if by_ps:
            parts = spread_parts(self.numbers, towers, cuts=cuts and traffic == "spread")
        else:
            parts = parts_of(placing.reduction, self.numbers, towers, cuts=cuts)
        if traffic == "host":
            each, least = program.us_cpu / self._sockets, self.host_add
        else:
            each = program.us_device if by_ps else program.us_add
            if traffic == "spread":
                uneven = towers * parts.largest
                weights *= uneven
                # One GPU receives from all others what else every GPU receives a part of.
                gradients *= towers if program.gathers and by_ps else uneven
            elif not by_ps and placing.reduction.name == "collective":
                # One op for both times round, and one variable after another, as NCCL.
                wait, gradients, line = 0.0, 2 * gradients, self.ring_line
            elif not by_ps and placing.reduction.name == "tf_hierarchical":
                line = line_of(self.model.blocks, 1.0, 0.0)  # joined to one tensor when backward has ended
        variables_s = 1e-6 * each * parts.pieces * (towers if by_ps else self._of_host)
        return Terms(wait * self.bytes * weights, gradients, least, variables_s, line)


def stage_flows(paths: Paths, gpus: Sequence[int], copies: Iterable[Stage]) -> list[Flows]:
    """Return the copies of each stage."""
    found = []
    for stage in copies:
        flows = Flows(paths)
        for sender, receiver, share in stage:
            flows.between(gpus[sender], gpus[receiver], share)
        found.append(flows)
    return found


def limits(
    paths: Paths,
    gpus: Sequence[int],
    placing: Placement,
    stages: Stages | None = None,
    rings: Rings | None = None,
) -> tuple[Limit, Limit]:
    """Return the link that a byte occupies longest, and its seconds, of weights and of gradients.

    `stages`: of a reduction in groups. `rings`: over these GPUs and others, where they are known.
    """
    traffic = placing.traffic
    if len(gpus) == 1 or traffic == "none":
        return (None, 0.0), (None, 0.0)
    if traffic == "ring" and paths.networks:
        return _ring_over_hosts(paths, gpus)
    if traffic == "order" and paths.networks:
        return _around_hosts(paths, gpus)
    if traffic in ("ring", "order"):
        rings = rings or Rings(paths, gpus)
        if traffic == "ring":
            seconds, order = rings.best(gpus)
            return (None, 0.0), (rings.limit(order), seconds)
        around = rings.limit(gpus), rings.seconds(gpus) * (len(gpus) - 1) / len(gpus)
        return around, around
    if traffic == "groups":
        assert stages is not None
        back, sums = (stage_flows(paths, gpus, copies) for copies in (stages.back, stages.sums))
        return _slowest_of(back), _slowest_of(sums)
    weights, gradients = flows_of(paths, gpus, placing)
    return weights.slowest, gradients.slowest


def _around_hosts(paths: Paths, gpus: Sequence[int]) -> tuple[Limit, Limit]:
    """Return the limits of a ring over all GPUs of several hosts in the order of the towers, once round."""
    flows, towers = Flows(paths), len(gpus)
    for place, gpu in enumerate(gpus):
        flows.between(gpu, gpus[(place + 1) % towers], (towers - 1) / towers)
    return flows.slowest, flows.slowest


def _ring_over_hosts(paths: Paths, gpus: Sequence[int]) -> tuple[Limit, Limit]:
    """Return the limits of NCCL's rings over all GPUs of several hosts: within one, or between two.

    `paths.networks` is what all its rings together carry between hosts.
    """
    twice = 2 * (len(gpus) - 1) / len(gpus)
    found: list[Limit] = [
        (("network out", number), twice / (one.gb_per_s * GB)) for number, one in enumerate(paths.networks)
    ]
    for _, of_host in groupby(gpus, paths.host_of):
        own = tuple(of_host)
        if len(own) > 1 and own not in paths.rings:
            rings = Rings(paths, own)
            _, order = rings.best(own)
            paths.rings[own] = rings.limit(order), rings.seconds(order)
        by, seconds = paths.rings.get(own, (None, 0.0))
        found.append((by, twice * seconds))
    return (None, 0.0), max(found, key=lambda one: one[1])


def _slowest_of(stages: Sequence[Flows]) -> Limit:
    """Return the slowest link of stages that follow one another, and the seconds of a byte in all of them."""
    slowest = [flows.slowest for flows in stages]
    worst = max(slowest, key=lambda one: one[1])
    return worst[0], sum(seconds for _, seconds in slowest)


def flows_of(paths: Paths, gpus: Sequence[int], placing: Placement) -> tuple[Flows, Flows]:
    """Return the copies of weights and of gradients, where they flow to and from owners or the host."""
    weights, gradients, traffic = Flows(paths), Flows(paths), placing.traffic
    if traffic == "host":
        for gpu in gpus:
            weights.from_host(gpu)
            gradients.to_host(gpu)
    else:
        owners = gpus if traffic == "spread" else (gpus[0] if placing.owner is None else placing.owner,)
        for owner in owners:
            for gpu in gpus:
                weights.between(owner, gpu, 1 / len(owners))
                gradients.between(gpu, owner, 1 / len(owners))
    return weights, gradients


def predict(
    stepper: StepPredictor,
    paths: Paths,
    gpus: Sequence[int],
    compute_s: float,
    placing: Placement,
    groups: Groups = (),
) -> StepSeconds:
    """Return the step of these GPUs, in the order of their towers; the slowest computes for `compute_s`.

    `groups`: of towers, for a hierarchical reduction; the two halves of the towers without.
    """
    stages = stepper.stages(placing, groups) if placing.traffic == "groups" else None
    return stepper.step(placing, compute_s, *limits(paths, gpus, placing, stages))
