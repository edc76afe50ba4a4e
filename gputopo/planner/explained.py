"""The predicted step of a choice in words and milliseconds (`--explain`). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from math import isclose

from gputopo.planner.fastest import Fastest
from gputopo.planner.reasons import in_words, ms
from gputopo.prediction.gradients import Stages
from gputopo.prediction.links.flows import Flows, Load
from gputopo.prediction.links.paths import Paths, Resource
from gputopo.prediction.links.rings import Rings
from gputopo.prediction.step import (
    FORWARD_SHARE,
    HOST,
    Placement,
    StepPredictor,
    flows_of,
    limits,
    stage_flows,
)
from gputopo.topology.hops import Groups
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.plan import BlockGradients, Candidate, Plan, ResourceLoad, StepLine

SAME = 0.02  # Links of one kind within this are shown as one: measured copies repeat as well. Ours.
_DIRECTIONS = {"uplink up": ", to the host", "uplink down": ", from the host"}
_OF_A_GPU = ("up", "down", "nvlink out", "nvlink in")


def step_line(selection: Fastest, choice: Candidate) -> StepLine:
    """Return the step of a candidate of this selection."""
    basis, gpus = selection.basis, choice.gpus
    placing = Placement(choice.variable_update, choice.ps_device, choice.all_reduce)
    own = zip(gpus, selection.batches(gpus), strict=True)
    compute_s = max(basis.seconds(gpu, batch) for gpu, batch in own)
    return timeline(selection.stepper, selection.paths, gpus, compute_s, placing, selection.groups(gpus))


def timeline(
    stepper: StepPredictor,
    paths: Paths,
    gpus: Sequence[int],
    compute_s: float,
    placing: Placement,
    groups: Groups = (),
) -> StepLine:
    """Return the step of these GPUs, in the order of their towers; the slowest computes for `compute_s`.

    It is the step of `gputopo.prediction.step`, laid out in time. Every resource serves the gradients in the
    order in which backward makes them, at the speed that it has while all copies of that kind are made; the
    slowest one decides when they are through. `groups`: of towers, for a hierarchical reduction.
    """
    terms = stepper.terms(placing)
    stages = stepper.stages(placing, groups) if placing.traffic == "groups" else None
    (_, weights), (_, gradients) = limits(paths, gpus, placing, stages)
    weights_s, late_s, variables_s = stepper.predict(placing, compute_s, weights, gradients)
    forward_s, backward_s = FORWARD_SHARE * compute_s, (1 - FORWARD_SHARE) * compute_s
    begins = weights_s + forward_s
    line, per_s = terms.line, 1 / (backward_s or 1.0)

    def through(rate: float) -> list[float]:
        return [begins + end / per_s for end in line.through(rate * per_s)]

    ends = through(max(gradients * terms.gradients, terms.least))
    return StepLine(
        weights_ms=ms(weights_s),
        forward_ms=ms(forward_s),
        backward_ms=ms(backward_s),
        gradients_ms=ms(late_s),
        variables_ms=ms(variables_s),
        resources=tuple(
            ResourceLoad(
                resource=words(resources, placing, paths),
                count=len(resources),
                weights_mb=_mb(down.share * stepper.bytes),
                wait_ms=ms(down.seconds * terms.weights),
                gradients_mb=_mb(up.share * stepper.bytes),
                busy_ms=ms(up.seconds * stepper.bytes),
                through_ms=ms(through(up.seconds)[-1] if up.share else begins),
            )
            for down, up, resources in _loads(stepper, paths, gpus, placing, stages)
        ),
        blocks=tuple(
            BlockGradients(block=name, mb=_mb(size), ready_ms=ms(begins + ready / per_s), through_ms=ms(end))
            for name, size, ready, end in zip(
                reversed(stepper.model.names), line.bytes, line.ready, ends, strict=True
            )
        ),
    )


def _loads(
    stepper: StepPredictor, paths: Paths, gpus: Sequence[int], placing: Placement, stages: Stages | None
) -> list[tuple[Load, Load, tuple[Resource, ...]]]:
    if len(gpus) == 1 or placing.traffic == "none":
        return []
    terms = stepper.terms(placing)
    weights: Mapping[Resource, Load] = {}
    if placing.traffic == "ring":
        rings = Rings(paths, gpus)
        gradients = rings.loads(rings.best(gpus)[1], 2)
    elif placing.traffic == "order":
        weights = gradients = Rings(paths, gpus).loads(gpus, 1)
    elif stages is not None:
        weights, gradients = (
            _together(stage_flows(paths, gpus, copies)) for copies in (stages.back, stages.sums)
        )
    else:
        weights, gradients = (flows.loads for flows in flows_of(paths, gpus, placing))
    gradients = {
        resource: load._replace(seconds=load.seconds * terms.gradients)
        for resource, load in gradients.items()
    }
    if placing.traffic == "host":
        gradients[HOST] = Load(float(len(gpus)), terms.least)
    nothing = Load(0.0, 0.0)
    found: list[tuple[Load, Load, list[Resource]]] = []
    both = {one: (weights.get(one, nothing), gradients.get(one, nothing)) for one in (*gradients, *weights)}

    def longest(one: Resource) -> float:
        """Return the seconds of the step that it takes."""
        down, up = both[one]
        return max(down.seconds * terms.weights, up.seconds * stepper.bytes)

    for resource in sorted(both, key=longest, reverse=True):
        for down, up, resources in found:
            if resources[0][0] == resource[0] and _are_alike((down, up), both[resource]):
                resources.append(resource)
                break
        else:
            found.append((*both[resource], [resource]))
    return [(down, up, tuple(resources)) for down, up, resources in found]


def _together(flows: Iterable[Flows]) -> dict[Resource, Load]:
    """Return what resources carry in stages that follow one another."""
    found: dict[Resource, Load] = {}
    for resource, load in (item for one in flows for item in one.loads.items()):
        share, seconds = found.get(resource, (0.0, 0.0))
        found[resource] = Load(share + load.share, seconds + load.seconds)
    return found


def _are_alike(slower: tuple[Load, Load], one: tuple[Load, Load]) -> bool:
    pairs = zip(slower, one, strict=True)
    return all(
        isclose(a.share, b.share) and (1 - SAME) * a.seconds <= b.seconds <= (1 + SAME) * a.seconds
        for a, b in pairs
    )


def require_prediction(plan: Plan, what: str) -> None:
    """Raise UsageError where nothing was predicted. `what`: the option, and for what it needs that."""
    if plan.prediction is None:
        whys = (reason for reason in plan.choice.reasons if reason.startswith("nothing predicted: "))
        why = next(whys, "nothing predicted for this job")
        raise UsageError(
            f"{what}: {why}", "add --single-gpu-images-per-sec X, or more of the machine: --from FILE"
        )


def words(alike: Sequence[Resource], placing: Placement, paths: Paths) -> str:
    """Return resources that carry the same in words: `GPUs 0-3 to the host`, `NVLink 0 to 1 and 5 alike`."""
    first = in_words(alike[0], placing, paths) + _DIRECTIONS.get(str(alike[0][0]), "")
    if len(alike) == 1:
        return first
    kind, *_ = alike[0]
    if kind in _OF_A_GPU and all(one[0] == kind for one in alike):
        gpus = sorted(int(one[1]) for one in alike)
        return first.replace(f"GPU {alike[0][1]}", f"GPUs {index_ranges(gpus)}")
    return f"{first} and {len(alike) - 1} alike"


def _mb(size: float) -> float:
    return round(size / 1e6, 4)
