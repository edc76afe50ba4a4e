"""Seconds of one training step: compute, waiting for weights, gradients after the backward pass, variables.

A step of N towers lasts as long as the compute of the slowest tower, plus the exposed times: weights that
arrive after the forward pass needs them, gradients that are not transferred when the backward pass ends
(`gputopo.prediction.gradients`), and a cost for each variable on each tower whatever its size.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from gputopo.prediction.gradients import (
    TRAFFIC,
    GradientBlock,
    GradientLine,
    Traffic,
    line_of,
    parts_of,
    spread_parts,
)
from gputopo.prediction.links import (
    GB,
    Flows,
    Limit,
    Load,
    Paths,
    Resource,
    in_words,
    ring_loads,
    slowest_of,
)
from gputopo.prediction.programs import ProgramConstants
from gputopo.values.run.all_reduce import Reduction, parse
from gputopo.values.run.plan import Candidate, MeasuredSpeed, VariableUpdate
from gputopo.workload import Workload

# The memory traffic of one output number that training keeps, as a number of multiply-accumulates.
FEATURE_COST = 100
FLOAT_BYTES = 4
# The backward pass of a layer has two products, by inputs and by weights; the forward pass has one.
FORWARD_SHARE = 1 / 3
HOST: Resource = ("host",)


class Placement(NamedTuple):
    """A placement of the variables. `ps_device`: cpu, gpu:spread, gpu:N, or None for replicas."""

    variable_update: VariableUpdate
    ps_device: str | None = None
    all_reduce: str | None = None

    @classmethod
    def of(cls, placed: Candidate | MeasuredSpeed) -> "Placement":
        """Return the placement of a candidate or of a measurement."""
        return cls(placed.variable_update, placed.ps_device, placed.all_reduce)

    @property
    def owner(self) -> int | None:
        """The GPU that has all variables."""
        device = self.ps_device
        if device is None or not device.startswith("gpu:") or device == "gpu:spread":
            return None
        return int(device.removeprefix("gpu:"))

    @property
    def words(self) -> str:
        """`parameter_server cpu`, `replicated nccl`."""
        return " ".join(filter(None, self))

    @property
    def traffic(self) -> Traffic | None:
        """Where weights and gradients flow; None if this is not predicted."""
        if self.variable_update == "independent":
            return "none"
        if self.ps_device is not None:
            return "host" if self.ps_device == "cpu" else "spread" if self.owner is None else "owner"
        return TRAFFIC.get(self.reduction.name)

    @property
    def reduction(self) -> Reduction:
        """The method that adds the gradients of replicas."""
        return _reduction(self.all_reduce or "copy")


BY_NCCL = Placement("replicated", None, "nccl")


@cache
def _reduction(name: str) -> Reduction:
    return parse(name)


class ModelCosts(NamedTuple):
    """The costs of a workload. `sizes`: numbers in each variable, in order; `names`: of the blocks."""

    blocks: tuple[GradientBlock, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, workload: Workload) -> "ModelCosts":
        """Return the costs of a workload."""
        costs = [block.multiply_accumulates + FEATURE_COST * block.features for block in workload.blocks]
        total = sum(costs) or 1
        return cls(
            tuple(
                GradientBlock(FLOAT_BYTES * block.parameters, cost / total)
                for block, cost in zip(workload.blocks, costs, strict=True)
            ),
            tuple(size for block in workload.blocks for size in block.variables),
            tuple(block.name for block in workload.blocks),
        )

    @property
    def bytes(self) -> int:
        """Bytes of all variables."""
        return FLOAT_BYTES * sum(self.sizes)


class StepSeconds(NamedTuple):
    """Seconds of a step by part. `weights_by` and `gradients_by`: the resource that limits each."""

    compute_s: float
    weights_s: float = 0.0
    gradients_s: float = 0.0
    variables_s: float = 0.0
    weights_by: Resource | None = None
    gradients_by: Resource | None = None

    @property
    def step_s(self) -> float:
        """The seconds of the whole step."""
        return self.compute_s + self.weights_s + self.gradients_s + self.variables_s

    def lasting(self, step_s: float) -> "StepSeconds":
        """Return the step scaled to a duration: the parts other than the compute change in proportion."""
        compute_s, exposed_s = min(self.compute_s, step_s), self.step_s - self.compute_s
        share = (step_s - compute_s) / exposed_s if exposed_s else 0.0
        return self._replace(
            compute_s=compute_s,
            weights_s=share * self.weights_s,
            gradients_s=share * self.gradients_s,
            variables_s=share * self.variables_s,
        )


class Terms(NamedTuple):
    """What a step of one placement needs, as factors of the seconds per byte of the slowest link."""

    weights: float  # seconds for each second per byte
    gradients: float  # factor of the seconds per byte of gradients
    least: float  # minimum of that rate, in seconds per byte
    variables_s: float
    line: GradientLine  # of the gradients
    more: float = 0.0  # seconds of the variables for each second per byte of gradients


class StepPredictor:
    """Predicts the steps of a model with a program on GPUs of one machine."""

    def __init__(self, model: ModelCosts, program: ProgramConstants, paths: Paths) -> None:
        self.model, self.program, self.paths = model, program, paths

    def step(self, gpus: Sequence[int], compute_s: float, placing: Placement) -> StepSeconds:
        """Return the step on these GPUs, with what limits each part; the slowest GPU needs `compute_s`."""
        terms = self.terms(placing, len(gpus))
        weights, gradients = limits(self.paths, gpus, placing)
        rate = gradients.seconds * terms.gradients
        return StepSeconds(
            compute_s,
            terms.weights * weights.seconds,
            terms.line.late_s((1 - FORWARD_SHARE) * compute_s, max(rate, terms.least)),
            terms.variables_s + terms.more * gradients.seconds,
            weights.resource,
            HOST if terms.least > rate else gradients.resource,
        )

    def links(self, step: StepSeconds, placing: Placement) -> dict[str, str]:
        """Return the links that limit the weights and the gradients of a step, in words."""
        by = {"weights": step.weights_by, "gradients": step.gradients_by}
        on_host = placing.traffic == "host"
        return {
            part: in_words(link, self.paths, on_host=on_host) for part, link in by.items() if link is not None
        }

    def terms(self, placing: Placement, towers: int) -> Terms:
        """Return the terms of a step with this placement on some GPUs."""
        program, traffic = self.program, placing.traffic
        line = line_of(self.model.blocks, program.overlap)
        if towers == 1 or traffic == "none":
            return Terms(0.0, 0.0, 0.0, 0.0, line)
        if traffic == "ring":
            variables = 1e-6 * len(self.model.sizes)
            line = line_of(self.model.blocks, program.ring_overlap)
            more = 1e12 * program.ring_mb * variables
            return Terms(0.0, 1 / program.ring_share, 0.0, program.us_ring * variables, line, more)
        weights = gradients = 1 / program.link_share
        by_ps, least = placing.ps_device is not None, 0.0
        wait = program.wait if by_ps else program.return_share
        cuts = program.cuts_variables
        if by_ps:
            parts = spread_parts(self.model.sizes, towers, cuts=cuts and traffic == "spread")
        else:
            parts = parts_of(placing.reduction, self.model.sizes, towers, cuts=cuts)
        if traffic == "host":
            each = program.us_cpu / self.paths.cpus
            least = towers / (program.host_add_gb_per_s * self.paths.cpus * GB)
        else:
            each = program.us_device if by_ps else program.us_add
            if traffic == "spread":
                uneven = towers * parts.largest
                weights *= uneven
                # One GPU receives everything from all others; otherwise every GPU receives a part.
                gradients *= towers if program.gathers and by_ps else uneven
        variables_s = 1e-6 * each * parts.pieces * towers
        return Terms(wait * self.model.bytes * weights, gradients, least, variables_s, line)


def loads_of(
    paths: Paths, gpus: Sequence[int], placing: Placement
) -> tuple[Mapping[Resource, Load], Mapping[Resource, Load]]:
    """Return the loads of each resource by weights and by gradients."""
    traffic = placing.traffic
    if len(gpus) == 1 or traffic in ("none", None):
        return {}, {}
    if traffic == "ring":
        return {}, ring_loads(paths, gpus)
    weights, gradients = Flows(paths), Flows(paths)
    owners: Sequence[int | None] = gpus  # None: the host
    if traffic != "spread":
        home = gpus[0] if placing.owner is None else placing.owner
        owners = (None if traffic == "host" else home,)
    for owner in owners:
        for gpu in gpus:
            weights.between(owner, gpu, 1 / len(owners))
            gradients.between(gpu, owner, 1 / len(owners))
    return weights.loads, gradients.loads


def limits(paths: Paths, gpus: Sequence[int], placing: Placement) -> tuple[Limit, Limit]:
    """Return what limits the weights, and what limits the gradients."""
    key = (tuple(gpus), placing)
    if key not in paths.limits:
        weights, gradients = loads_of(paths, gpus, placing)
        paths.limits[key] = slowest_of(weights), slowest_of(gradients)
    return paths.limits[key]


def network_exchange_s(
    model: ModelCosts, program: ProgramConstants, alone_s: float, hosts: int, gb_per_s: float, *, nccl: bool
) -> float:
    """Return the seconds by which the exchange between `hosts` hosts makes a step longer.

    By the formula of a ring, every host sends 2 (H - 1) / H of the bytes of a model: half as gradients, half
    as sums. `alone_s`: the step without the network. `gb_per_s`: rate of the network. `nccl`: one ring
    exchanges gradients and sums, else TensorFlow's copies send one after the other.
    """
    byte_s = (hosts - 1) / hosts / (gb_per_s * GB)
    backward_s = (1 - FORWARD_SHARE) * alone_s
    if nccl:
        more_s = 1e6 * program.ring_mb * len(model.sizes) * 2 * byte_s
        return line_of(model.blocks, program.ring_overlap).late_s(backward_s, 2 * byte_s) + more_s
    late_s = line_of(model.blocks, program.overlap).late_s(backward_s, byte_s)
    return late_s + program.return_share * model.bytes * byte_s
