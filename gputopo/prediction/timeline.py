"""The timeline of a predicted step in milliseconds (`--explain`): the links in words, and each gradient."""

from collections.abc import Mapping, Sequence
from math import isclose

from gputopo.prediction.links import Load, Paths, Resource, in_words
from gputopo.prediction.step import FORWARD_SHARE, HOST, Placement, StepPredictor, limits, loads_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.plan import BlockGradients, ResourceLoad, StepLine, rounded_ms

SAME = 0.02  # links of one kind that differ by less are shown as one: repeats of a copy differ as much
_DIRECTIONS = {"uplink up": ", to the host", "uplink down": ", from the host"}
_OF_A_GPU = ("up", "down", "nvlink out", "nvlink in")
_NOTHING = Load(0.0, 0.0)


def step_timeline(
    predictor: StepPredictor, gpus: Sequence[int], compute_s: float, placing: Placement
) -> StepLine:
    """Return the timeline of a step on these GPUs; the slowest one computes for `compute_s`.

    Every link transfers the gradients in the order in which the backward pass produces them, at its speed
    while all copies of that kind run. The slowest link decides when all are transferred.
    """
    step, terms = predictor.step(gpus, compute_s, placing), predictor.terms(placing, len(gpus))
    forward_s, backward_s = FORWARD_SHARE * compute_s, (1 - FORWARD_SHARE) * compute_s
    begins = step.weights_s + forward_s
    size = predictor.model.bytes

    def ends_of(seconds_per_byte: float) -> list[float]:
        """Return when each block's gradients are transferred over a link."""
        return [begins + backward_s * end for end in terms.line.through(seconds_per_byte / backward_s)]

    weights, gradients = loads_of(predictor.paths, gpus, placing)
    gradients = {
        resource: load._replace(seconds=load.seconds * terms.gradients)
        for resource, load in gradients.items()
    }
    if placing.traffic == "host" and gradients:
        gradients[HOST] = Load(float(len(gpus)), terms.least)
    loads = {
        resource: (weights.get(resource, _NOTHING), gradients.get(resource, _NOTHING))
        for resource in (*gradients, *weights)
    }

    def seconds_of(resource: Resource) -> float:
        """Return the seconds of the step that a link takes."""
        of_weights, of_gradients = loads[resource]
        return max(of_weights.seconds * terms.weights, of_gradients.seconds * size)

    resources = []
    for group in _groups(sorted(loads, key=seconds_of, reverse=True), loads):
        of_weights, of_gradients = loads[group[0]]
        resources.append(
            ResourceLoad(
                resource=group_in_words(group, predictor.paths, on_host=placing.traffic == "host"),
                count=len(group),
                weights_mb=_mb(of_weights.share * size),
                wait_ms=rounded_ms(of_weights.seconds * terms.weights),
                gradients_mb=_mb(of_gradients.share * size),
                busy_ms=rounded_ms(of_gradients.seconds * size),
                through_ms=rounded_ms(ends_of(of_gradients.seconds)[-1] if of_gradients.share else begins),
            )
        )
    slowest = limits(predictor.paths, gpus, placing)[1].seconds * terms.gradients
    blocks = zip(
        reversed(predictor.model.names),
        terms.line.bytes,
        terms.line.ready,
        ends_of(max(slowest, terms.least)),
        strict=True,
    )
    return StepLine(
        weights_ms=rounded_ms(step.weights_s),
        forward_ms=rounded_ms(forward_s),
        backward_ms=rounded_ms(backward_s),
        gradients_ms=rounded_ms(step.gradients_s),
        variables_ms=rounded_ms(step.variables_s),
        resources=tuple(resources),
        blocks=tuple(
            BlockGradients(
                block=name,
                mb=_mb(block_bytes),
                ready_ms=rounded_ms(begins + backward_s * ready),
                through_ms=rounded_ms(end),
            )
            for name, block_bytes, ready, end in blocks
        ),
    )


def _groups(
    resources: Sequence[Resource], loads: Mapping[Resource, tuple[Load, Load]]
) -> list[list[Resource]]:
    """Return these links, each with the links of its kind that have the same loads."""
    groups: list[list[Resource]] = []
    for resource in resources:
        for group in groups:
            if group[0][0] == resource[0] and _are_alike(loads[group[0]], loads[resource]):
                group.append(resource)
                break
        else:
            groups.append([resource])
    return groups


def _are_alike(first: tuple[Load, Load], second: tuple[Load, Load]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(isclose(a.share, b.share) and abs(b.seconds - a.seconds) <= SAME * a.seconds for a, b in pairs)


def group_in_words(group: Sequence[Resource], paths: Paths, *, on_host: bool) -> str:
    """Return links with the same load in words: `GPUs 0-3 to the host`, `NVLink 0 to 1 and 5 alike`.

    `on_host`: whether the host stores the variables.
    """
    kind, *ends = group[0]
    first = in_words(group[0], paths, on_host=on_host) + _DIRECTIONS.get(str(kind), "")
    if len(group) == 1:
        return first
    if kind in _OF_A_GPU:
        gpus = sorted(int(resource[1]) for resource in group)
        return first.replace(f"GPU {ends[0]}", f"GPUs {index_ranges(gpus)}")
    return f"{first} and {len(group) - 1} alike"


def _mb(size: float) -> float:
    return round(size / 1e6, 4)
