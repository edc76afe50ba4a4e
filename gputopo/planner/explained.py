"""The predicted step of a choice in words and milliseconds (`--explain`). Pure."""

from collections.abc import Sequence

from gputopo.planner.fastest import Fastest
from gputopo.planner.reasons import in_words
from gputopo.prediction.links.flows import Resource
from gputopo.prediction.links.paths import Paths
from gputopo.prediction.step import Placing
from gputopo.prediction.timeline import timeline
from gputopo.topology.reduction_groups import reduction_groups
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.plan import BlockGradients, Candidate, Plan, ResourceLoad, StepLine

_DIRECTIONS = {"uplink up": ", to the host", "uplink down": ", from the host"}
_OF_A_GPU = ("up", "down", "nvlink out", "nvlink in")


def step_line(selection: Fastest, choice: Candidate) -> StepLine:
    """Return the step of a candidate of this selection."""
    basis, gpus = selection.basis, choice.gpus
    placing = Placing(choice.variable_update, choice.ps_device, choice.all_reduce)
    own = zip(gpus, selection.batches(gpus), strict=True)
    compute_s = max(basis.seconds(gpu, batch) for gpu, batch in own)
    groups = reduction_groups(selection.machine, gpus)
    found = timeline(selection.stepper, selection.paths, gpus, compute_s, placing, groups)
    names = basis.model.names
    return StepLine(
        weights_ms=_ms(found.weights_s),
        forward_ms=_ms(found.forward_s),
        backward_ms=_ms(found.backward_s),
        gradients_ms=_ms(found.gradients_s),
        variables_ms=_ms(found.variables_s),
        resources=tuple(
            ResourceLoad(
                resource=words(one.resources, placing, selection.paths),
                count=len(one.resources),
                weights_mb=_mb(one.weights_bytes),
                wait_ms=_ms(one.wait_s),
                gradients_mb=_mb(one.gradients_bytes),
                busy_ms=_ms(one.busy_s),
                through_ms=_ms(one.through_s),
            )
            for one in found.resources
        ),
        blocks=tuple(
            BlockGradients(
                block=names[one.number],
                mb=_mb(one.bytes),
                ready_ms=_ms(one.ready_s),
                through_ms=_ms(one.through_s),
            )
            for one in found.blocks
        ),
    )


def require_prediction(plan: Plan, what: str) -> None:
    """Raise UsageError where nothing was predicted. `what`: the option, and for what it needs that."""
    if plan.prediction is None:
        whys = (reason for reason in plan.choice.reasons if reason.startswith("nothing predicted: "))
        why = next(whys, "nothing predicted for this job")
        raise UsageError(
            f"{what}: {why}", "add --single-gpu-images-per-sec X, or more of the machine: --from FILE"
        )


def words(alike: Sequence[Resource], placing: Placing, paths: Paths) -> str:
    """Return resources that carry the same in words: `GPUs 0-3 to the host`, `NVLink 0 to 1 and 5 alike`."""
    first = in_words(alike[0], placing, paths) + _DIRECTIONS.get(str(alike[0][0]), "")
    if len(alike) == 1:
        return first
    kind, *_ = alike[0]
    if kind in _OF_A_GPU and all(one[0] == kind for one in alike):
        gpus = sorted(int(one[1]) for one in alike)
        return first.replace(f"GPU {alike[0][1]}", f"GPUs {index_ranges(gpus)}")
    return f"{first} and {len(alike) - 1} alike"


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def _mb(size: float) -> float:
    return round(size / 1e6, 4)
