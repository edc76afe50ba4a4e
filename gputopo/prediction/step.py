"""Seconds of one training step: compute, weights that forward waits for, gradients after backward, variables.

A step of N towers lasts as long as the slowest of them computes, and longer by the weights that have not come
when forward needs them, by the gradients that are not through when backward ends (`gputopo.prediction.line`),
and by what each variable costs on each tower whatever its size. Pure.
"""

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

from gputopo.prediction.flows import GB, Flows, Resource
from gputopo.prediction.line import Block, Line, line_of
from gputopo.prediction.paths import Paths
from gputopo.prediction.programs import Program
from gputopo.prediction.rings import ring_rate
from gputopo.values.run.plan import VariableUpdate
from gputopo.workload.spreading import largest_share
from gputopo.workload.workloads import Workload

# A number of an output that training keeps, in the time of as many multiply-accumulates: memory traffic.
FEATURE_COST = 100
FLOAT_BYTES = 4
# Backward of a layer has two products, by its inputs and by its weights, for the one of forward.
FORWARD_SHARE = 1 / 3
HOST: Resource = ("host",)
RINGS = ("nccl", "nccl_op", "ring", "collective")

Traffic = Literal["none", "host", "owner", "spread", "ring"]


class Placing(NamedTuple):
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
        reduction = (self.all_reduce or "copy").partition("#")[0]
        if self.variable_update == "independent":
            return "none"
        if self.ps_device == "cpu" or (self.ps_device is None and reduction == "pscpu"):
            return "host"
        if self.ps_device is not None:
            return "spread" if self.owner is None else "owner"
        return "ring" if reduction in RINGS else "spread"


class Model(NamedTuple):
    """What is needed of a workload. `sizes`: bytes of each variable, in order."""

    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all variables."""
        return sum(self.sizes)


class Prediction(NamedTuple):
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


def model_of(workload: Workload) -> Model:
    """Return what the prediction needs of a workload."""
    costs = [block.multiply_accumulates + FEATURE_COST * block.features for block in workload.blocks]
    whole = sum(costs) or 1
    return Model(
        tuple(
            Block(FLOAT_BYTES * block.parameters, cost / whole)
            for block, cost in zip(workload.blocks, costs, strict=True)
        ),
        tuple(FLOAT_BYTES * size for block in workload.blocks for size in block.variables),
    )


class _Terms(NamedTuple):
    """What a step of one placing needs, given seconds a byte of the slowest link.

    `weights`: seconds for each; `gradients`: the factor of their rate, `least`: its minimum; `line`: theirs;
    `more`: seconds of the variables for each of the rate of gradients.
    """

    weights: float
    gradients: float
    least: float
    variables_s: float
    line: Line
    more: float = 0.0


class Stepper:
    """The steps of one model, program and number of towers, from the rates of the slowest links.

    `sockets`: CPUs, whose cores add gradients and copy variables.
    """

    def __init__(self, model: Model, program: Program, towers: int, sockets: int = 1) -> None:
        self.program, self.towers = program, towers
        self.bytes = model.bytes
        self.line: Line = line_of(model.blocks, 1.0, program.overlap)
        self.ring_line: Line = line_of(model.blocks, 1.0, program.ring_overlap)
        # Where variables are spread: how much more than its part the GPU has that has most of them.
        sizes = [size // FLOAT_BYTES for size in model.sizes]
        self.uneven = towers * largest_share(sizes, towers, cuts=program.cuts_variables)
        self.host_add = towers / (program.host_add_gb_per_s * sockets * GB)
        self._variables, self._sockets = 1e-6 * len(model.sizes), sockets
        self._terms: dict[Placing, _Terms] = {}

    def predict(
        self, placing: Placing, compute_s: float, weights: float, gradients: float
    ) -> tuple[float, float, float]:
        """Return the seconds of weights, gradients and variables.

        `weights`, `gradients`: seconds for which a byte of the model occupies the slowest link.
        """
        terms = self._terms.get(placing) or self._terms_of(placing)
        rate = max(gradients * terms.gradients, terms.least)
        backward = (1 - FORWARD_SHARE) * compute_s
        late = backward * (terms.line.end(rate / backward) - 1.0) if backward > 0 else rate * self.bytes
        return terms.weights * weights, max(0.0, late), terms.variables_s + terms.more * gradients

    def most(self, placing: Placing, compute_s: float, step_s: float) -> float:
        """Return seconds a byte of the slowest link with which gradients alone make a step of `step_s`."""
        terms = self._terms.get(placing) or self._terms_of(placing)
        if not terms.gradients:
            return inf
        late, more = step_s - compute_s - terms.variables_s, terms.more / terms.gradients
        backward = (1 - FORWARD_SHARE) * compute_s
        if backward > 0:
            return backward * terms.line.rate(1.0 + late / backward, more) / terms.gradients
        return late / ((self.bytes + more) or 1) / terms.gradients

    def _terms_of(self, placing: Placing) -> _Terms:
        terms = self._terms[placing] = self._new_terms(placing)
        return terms

    def _new_terms(self, placing: Placing) -> _Terms:
        program, traffic, towers = self.program, placing.traffic, self.towers
        if towers == 1 or traffic == "none":
            return _Terms(0.0, 0.0, 0.0, 0.0, self.line)
        in_turn = towers if program.serial else 1
        if traffic == "ring":
            variables_s, more = program.us_ring * self._variables, 1e12 * program.ring_mb * self._variables
            return _Terms(0.0, in_turn / program.ring_share, 0.0, variables_s, self.ring_line, more)
        weights = gradients = in_turn / program.link_share
        by_ps, least = placing.ps_device is not None, 0.0
        if traffic == "host":
            wait, each = (
                (program.wait_cpu, program.us_cpu) if by_ps else (program.return_share, program.us_host)
            )
            each /= self._sockets
            least = self.host_add
        else:
            wait, each = program.wait_gpu if by_ps else program.return_share, program.us_device
            if traffic == "spread":
                weights *= self.uneven
                # One GPU receives from all others what else every GPU receives a part of.
                gradients *= towers if program.gathers and by_ps else self.uneven
        return _Terms(
            wait * self.bytes * weights, gradients, least, each * self._variables * towers, self.line
        )

    def is_limited_by_host(self, placing: Placing, gradients: float) -> bool:
        """Return whether the host adds gradients more slowly than links bring them."""
        return placing.traffic == "host" and self.host_add > gradients / self.program.link_share


def limits(
    paths: Paths, gpus: Sequence[int], placing: Placing
) -> tuple[tuple[Resource | None, float], tuple[Resource | None, float]]:
    """Return the link that a byte occupies longest, and its seconds, of weights and of gradients."""
    traffic = placing.traffic
    if len(gpus) == 1 or traffic == "none":
        return (None, 0.0), (None, 0.0)
    if traffic == "ring":
        return (None, 0.0), ring_rate(paths, gpus)
    weights, gradients = Flows(paths), Flows(paths)
    if traffic == "host":
        for gpu in gpus:
            weights.from_host(gpu)
            gradients.to_host(gpu)
    else:
        owners = gpus if placing.owner is None else (placing.owner,)
        for owner in owners:
            for gpu in gpus:
                weights.between(owner, gpu, 1 / len(owners))
                gradients.between(gpu, owner, 1 / len(owners))
    return weights.slowest, gradients.slowest


def predict(
    stepper: Stepper, paths: Paths, gpus: Sequence[int], compute_s: float, placing: Placing
) -> Prediction:
    """Return the step of these GPUs, in the order of their towers; the slowest computes for `compute_s`."""
    if len(gpus) == 1 or placing.traffic == "none":
        return Prediction(compute_s)
    (weights_by, weights_rate), (gradients_by, gradients_rate) = limits(paths, gpus, placing)
    if stepper.is_limited_by_host(placing, gradients_rate):
        gradients_by = HOST
    parts = stepper.predict(placing, compute_s, weights_rate, gradients_rate)
    return Prediction(compute_s, *parts, weights_by, gradients_by)
