"""The predicted step of a choice in words and milliseconds (`--explain`)."""

from collections.abc import Mapping, Sequence
from math import isclose

from gputopo.planner.chooser import Chooser
from gputopo.planner.reasons import in_words, ms
from gputopo.prediction.links.flows import Load, slowest_of
from gputopo.prediction.links.paths import Paths, Resource
from gputopo.prediction.step import FORWARD_SHARE, HOST, Placement, StepPredictor, loads_of
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.plan import BlockGradients, Candidate, Plan, ResourceLoad, StepLine

SAME = 0.02  # links of one kind that differ by less are shown as one: repeats of a copy differ as much
_DIRECTIONS = {"uplink up": ", to the host", "uplink down": ", from the host"}
_OF_A_GPU = ("up", "down", "nvlink out", "nvlink in")


def step_line(chooser: Chooser, choice: Candidate) -> StepLine:
    """Return the timeline of a candidate of this chooser."""
    placing = Placement(choice.variable_update, choice.ps_device, choice.all_reduce)
    compute_s = max(chooser.seconds_alone(choice.gpus).values())
    return timeline(chooser.stepper, chooser.paths, choice.gpus, compute_s, placing)


def timeline(
    stepper: StepPredictor, paths: Paths, gpus: Sequence[int], compute_s: float, placing: Placement
) -> StepLine:
    """Return the timeline of a step on these GPUs; the slowest one computes for `compute_s`.

    Every resource transfers the gradients in the order in which the backward pass produces them, at its speed
    while all copies of that kind run. The slowest resource decides when all are transferred.
    """
    loads = loads_of(paths, gpus, placing)
    (_, weights), (_, gradients) = map(slowest_of, loads)
    terms = stepper.terms(placing)
    weights_s, late_s, variables_s = stepper.predict(placing, compute_s, weights, gradients)
    forward_s, backward_s = FORWARD_SHARE * compute_s, (1 - FORWARD_SHARE) * compute_s
    begins = weights_s + forward_s

    def through(rate: float) -> list[float]:
        return [begins + backward_s * end for end in terms.line.through(rate / (backward_s or 1.0))]

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
            for down, up, resources in _loads(stepper, len(gpus), placing, loads)
        ),
        blocks=tuple(
            BlockGradients(
                block=name, mb=_mb(size), ready_ms=ms(begins + backward_s * ready), through_ms=ms(end)
            )
            for name, size, ready, end in zip(
                reversed(stepper.model.names), terms.line.bytes, terms.line.ready, ends, strict=True
            )
        ),
    )


def _loads(
    stepper: StepPredictor,
    towers: int,
    placing: Placement,
    loads: tuple[Mapping[Resource, Load], Mapping[Resource, Load]],
) -> list[tuple[Load, Load, list[Resource]]]:
    """Return what resources carry of weights and of gradients; resources with the same load are grouped."""
    terms, weights = stepper.terms(placing), loads[0]
    gradients = {
        resource: load._replace(seconds=load.seconds * terms.gradients) for resource, load in loads[1].items()
    }
    if placing.traffic == "host" and gradients:
        gradients[HOST] = Load(float(towers), terms.least)
    nothing = Load(0.0, 0.0)
    found: list[tuple[Load, Load, list[Resource]]] = []
    both = {one: (weights.get(one, nothing), gradients.get(one, nothing)) for one in (*gradients, *weights)}

    def longest(one: Resource) -> float:
        """Return the seconds of the step that a resource takes."""
        down, up = both[one]
        return max(down.seconds * terms.weights, up.seconds * stepper.bytes)

    for resource in sorted(both, key=longest, reverse=True):
        for down, up, resources in found:
            if resources[0][0] == resource[0] and _are_alike((down, up), both[resource]):
                resources.append(resource)
                break
        else:
            found.append((*both[resource], [resource]))
    return found


def _are_alike(slower: tuple[Load, Load], one: tuple[Load, Load]) -> bool:
    pairs = zip(slower, one, strict=True)
    return all(
        isclose(a.share, b.share) and (1 - SAME) * a.seconds <= b.seconds <= (1 + SAME) * a.seconds
        for a, b in pairs
    )


def require_prediction(plan: Plan, what: str) -> None:
    """Raise UsageError if nothing was predicted. `what`: the option, and why it needs a prediction."""
    if plan.prediction is None:
        whys = (reason for reason in plan.choice.reasons if reason.startswith("nothing predicted: "))
        why = next(whys, "nothing predicted for this job")
        raise UsageError(
            f"{what}: {why}", "add --single-gpu-images-per-sec X, or more of the machine: --from FILE"
        )


def words(alike: Sequence[Resource], placing: Placement, paths: Paths) -> str:
    """Return resources with the same load in words: `GPUs 0-3 to the host`, `NVLink 0 to 1 and 5 alike`."""
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
