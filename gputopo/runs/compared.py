"""A run compared with the prediction of its plan.

The parts of a step, in the prediction and by the time marks of the slowest device:

| part      | predicted                              | measured                                         |
|-----------|----------------------------------------|--------------------------------------------------|
| compute   | batch / images/sec of one GPU          | from the last weights to the gradients           |
| weights   | their copies that forward waits for    | from the start of the step to the last weights   |
| rest      | gradients after backward, variables    | the step without the two                         |

The network time of several hosts is part of the rest, or of the weights if one host has the variables.
Forward starts before the last weights have arrived, so the marks show more weights and less compute than
predicted. To find the longer part, compute uses only its own mark, and weights use the sum of both.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.runs.past_runs import why_not_of_plan
from gputopo.values.run.plan import Candidate, Plan
from gputopo.values.run.result import AgainstPrediction, DeviceResult, PartMs, Result
from gputopo.values.run.verdict import EVEN_PERCENT

UPDATE = "update of the variables"
VARIABLES = "cost of variables"
# The command that shows whether a link or a GPU has its assumed speed.
_CHECK_LINK = "gputopo bandwidth --save measures the links"
_CHECK_NETWORK = "gputopo bandwidth --network --save measures it"
_CHECK_GPU = "gputopo inspect shows its clocks and what limits them"

# Two runs of the same work differ by a few percent: below this difference, neither is called slower.
NOISE = 0.05


def with_prediction(result: Result, plan: Plan) -> Result:
    """Return the result of a run with the comparison to the prediction of its plan, if there is one.

    If the run's speed differs from the short runs of `--autotune`, it is compared with them too.
    """
    says = (*result.says, *_against_autotune(result, plan))
    return msgspec.structs.replace(result, prediction=against(result, plan), says=says)


def _against_autotune(result: Result, plan: Plan) -> Iterator[str]:
    """Yield how far a run is from the speed that was measured for its placement, and why."""
    tuned, speed, load = plan.autotune, result.throughput, result.host_load
    if tuned is None or tuned.winner is None or speed is None or result.replanned is not None:
        return
    gap = 1 - speed.median / (tuned.measured[tuned.winner].images_per_sec or speed.median)
    if abs(gap) > NOISE:
        busy = None if load is None else load.busy
        why = busy or "the samples do not show why; repeat the run"
        share = f"{100 * abs(gap):.0f}% {'less' if gap > 0 else 'more'}"
        yield f"This run reached {speed.median:.4g} images/sec, {share} than --autotune measured: {why}."


def against(result: Result, plan: Plan) -> AgainstPrediction | None:
    """Compare a run with the prediction of its plan; None if nothing was predicted or measured."""
    if result.replanned is not None:
        plan = msgspec.structs.replace(plan, choice=result.replanned.choice)
    choice, speed = plan.choice, result.throughput
    low, high = choice.images_per_sec_low, choice.images_per_sec_high
    if choice.images_per_sec is None or low is None or high is None or speed is None:
        return None
    measured = speed.median
    comparison = AgainstPrediction(
        verdict="not compared",
        says="",
        images_per_sec=choice.images_per_sec,
        images_per_sec_low=low,
        images_per_sec_high=high,
        measured=round(measured, 2),
    )
    why_not = why_not_of_plan(result.job, plan, [row.batch_size for row in result.devices])
    if result.rehearsal_of is not None:
        why_not = f"predicted for {result.rehearsal_of}, measured on CPU devices (a rehearsal)"
    if why_not is not None:
        return msgspec.structs.replace(comparison, says=f"not compared: {why_not}")
    devices = result.devices
    slowest = max(devices, key=lambda row: (row.weights_ms or 0.0) + (row.compute_ms or 0.0), default=None)
    if any(row.weights_ms is None or row.compute_ms is None for row in devices):
        slowest = None  # a device has no marks
    parts = {} if slowest is None else _parts(slowest, choice, result)
    if low <= measured <= high:
        return msgspec.structs.replace(comparison, verdict="within", says="within the range", parts=parts)
    verdict = "slower" if measured < low else "faster"
    if slowest is None:
        says = f"{verdict} than predicted; there are no time marks to locate the cause"
        return msgspec.structs.replace(comparison, verdict=verdict, says=says)
    # The part whose time exceeds the prediction most; of a faster run, the part that falls below it most.
    sign, first, other = (1, "weights", "compute") if verdict == "slower" else (-1, "compute", "weights")
    excess = {name: sign * (part.measured - part.predicted) for name, part in parts.items()}
    excess[first] += min(excess[other], 0.0)
    part = max(excess, key=excess.__getitem__)
    resource = _resource(part, parts, choice, devices, slowest)
    says = f"{resource} {verdict} than believed: {_part_words(part, parts)}"
    if verdict == "slower" and resource not in (VARIABLES, UPDATE):
        hint = _CHECK_NETWORK if resource.startswith("network of ") else _CHECK_LINK
        says += f" ({_CHECK_GPU if part == 'compute' else hint})"
    return msgspec.structs.replace(comparison, verdict=verdict, says=says, resource=resource, parts=parts)


def _parts(slowest: DeviceResult, choice: Candidate, result: Result) -> dict[str, PartMs]:
    assert result.throughput is not None
    compute, weights = slowest.compute_ms or 0.0, slowest.weights_ms or 0.0
    step_ms = 1e3 * sum(row.batch_size for row in result.devices) / result.throughput.median
    exposed = choice.exposed_ms
    network, served = exposed.get("network", 0.0), choice.ps_device is not None
    rest = exposed.get("gradients", 0.0) + exposed.get("variables", 0.0) + (0.0 if served else network)
    pairs = {
        "compute": (choice.compute_ms or 0.0, compute),
        "weights": (exposed.get("weights", 0.0) + (network if served else 0.0), weights),
        "rest": (rest, max(0.0, step_ms - compute - weights)),
    }
    return {name: PartMs(*(round(ms, 3) for ms in pair)) for name, pair in pairs.items()}


def _resource(
    part: str,
    parts: Mapping[str, PartMs],
    choice: Candidate,
    devices: Sequence[DeviceResult],
    slowest: DeviceResult,
) -> str:
    """Return what a part of the step depends on: the devices, a link, or the overhead of variables."""
    if part == "compute":
        others = [row.compute_ms or 0.0 for row in devices if row != slowest]
        if not others or (slowest.compute_ms or 0.0) > (1 + EVEN_PERCENT / 100) * median(others):
            return slowest.device.name
        return f"all {len(devices)} {'CPU devices' if slowest.device.is_cpu else 'GPUs'}"
    if choice.exposed_ms.get("network", 0.0) >= max(choice.exposed_ms.values(), default=0.0) > 0:
        return choice.links.get("network", "the network")
    if part == "weights":
        return choice.links.get("weights", "the copy of the weights")
    if len(devices) == 1:
        return UPDATE
    variables, gradients = (choice.exposed_ms.get(name, 0.0) for name in ("variables", "gradients"))
    # No machine was seen whose variables cost more than twice the assumption.
    small = parts["rest"].measured <= 2 * variables + gradients
    if "gradients" not in choice.links or (small and variables > gradients):
        return VARIABLES
    return choice.links["gradients"]


def _part_words(part: str, parts: Mapping[str, PartMs]) -> str:
    names = {"rest": "gradients and update take", "weights": "weights take", "compute": "compute takes"}
    longest, compute = parts[part], parts["compute"]
    words = f"{names[part]} {longest.measured:.1f} ms of a step, predicted {longest.predicted:.1f}"
    if part != "compute" and compute.measured < (1 + EVEN_PERCENT / 100) * compute.predicted:
        words += "; compute takes no longer than predicted"
    return words
