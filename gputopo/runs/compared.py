"""A run compared with the prediction of its plan, and with the rate of its input. Pure.

The parts of a step, in the prediction and by the time marks of the slowest device:

| part      | predicted                              | measured                                         |
|-----------|----------------------------------------|--------------------------------------------------|
| compute   | batch / images/sec of one GPU          | from the last weights to the gradients           |
| weights   | their copies that forward waits for    | from the start of the step to the last weights   |
| rest      | gradients after backward, variables    | the step without the two                         |

What the network of several hosts takes is one of the rest, or of the weights where these are on one of them.
Forward begins before the last weights have come, so the marks show more of weights and less of compute than
is predicted: compute counts as longer only by its own mark, weights by both together.

A run of the input alone (`--input-only`) is compared with an earlier training on data that is made on the
devices. A training is judged by the measured time in which its devices wait for examples between two steps;
its own rate is never above the rate of its input.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.runs.past_runs import why_unpredicted
from gputopo.runs.ran import what_ran
from gputopo.values.run.plan import Candidate, Plan
from gputopo.values.run.result import AgainstPrediction, DeviceResult, InputVerdict, PartMs, Result
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.verdict import EVEN_PERCENT

UPDATE = "update of the variables"
VARIABLES = "cost of variables"
# What shows whether a link or a GPU is what it is believed to be.
_CHECK_LINK = "gputopo bandwidth --save measures the links"
_CHECK_NETWORK = "gputopo bandwidth --network --save measures it"
_CHECK_GPU = "gputopo inspect shows its clocks and what limits them"


def with_prediction(result: Result, plan: Plan) -> Result:
    """Return the result of a run with the comparison to the prediction of its plan, if there is one.

    And to the short runs of `--autotune`, if its speed is not theirs.
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
    """Compare a run with the prediction of its plan; None where nothing was predicted, or measured."""
    if result.replanned is not None:
        plan = msgspec.structs.replace(plan, choice=result.replanned.choice)
    choice, speed = plan.choice, result.throughput
    low, high = choice.images_per_sec_low, choice.images_per_sec_high
    if choice.images_per_sec is None or low is None or high is None or speed is None:
        return None
    measured = speed.median
    found = AgainstPrediction(
        verdict="not compared",
        says="",
        images_per_sec=choice.images_per_sec,
        images_per_sec_low=low,
        images_per_sec_high=high,
        measured=round(measured, 2),
    )
    why_not = _why_not_compared(result, plan)
    if why_not is not None:
        return msgspec.structs.replace(found, says=f"not compared: {why_not}")
    slowest = _slowest(result.devices)
    parts = {} if slowest is None else _parts(slowest, choice, result)
    if low <= measured <= high:
        return msgspec.structs.replace(found, verdict="within", says="within the range", parts=parts)
    verdict = "slower" if measured < low else "faster"
    if slowest is None:
        says = f"{verdict} than predicted; there are no time marks to locate the cause"
        return msgspec.structs.replace(found, verdict=verdict, says=says)
    part = _most_different(parts, slower=verdict == "slower")
    resource = _resource(part, parts, choice, result.devices, slowest)
    says = f"{resource} {verdict} than believed: {_part_words(part, parts)}"
    hint = _hint(part, resource) if verdict == "slower" else ""
    return msgspec.structs.replace(found, verdict=verdict, says=says + hint, resource=resource, parts=parts)


def _why_not_compared(result: Result, plan: Plan) -> str | None:
    if result.rehearsal_of is not None:
        return f"predicted for {result.rehearsal_of}, measured on CPU devices (a rehearsal)"
    if (why := why_unpredicted(result.job)) is not None:
        return why
    choice, prediction = plan.choice, plan.prediction
    batches = tuple(row.batch_size for row in result.devices)
    planned = choice.batch_sizes or (prediction.batch_size if prediction else 0,) * len(batches)
    return None if batches == planned else "predicted for another batch"


def _slowest(devices: Sequence[DeviceResult]) -> DeviceResult | None:
    """Return the device whose weights and gradients come last, None where one has no marks."""
    if not devices or any(row.weights_ms is None or row.compute_ms is None for row in devices):
        return None
    return max(devices, key=lambda row: (row.weights_ms or 0.0) + (row.compute_ms or 0.0))


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
    return {name: PartMs(round(one, 3), round(other, 3)) for name, (one, other) in pairs.items()}


def _most_different(parts: Mapping[str, PartMs], *, slower: bool) -> str:
    """Return the part that takes so much longer, or less time, than any other."""
    sign, first, other = (1, "weights", "compute") if slower else (-1, "compute", "weights")
    excess = {name: sign * (part.measured - part.predicted) for name, part in parts.items()}
    excess[first] += min(excess[other], 0.0)
    return max(excess, key=excess.__getitem__)


def _resource(
    part: str,
    parts: Mapping[str, PartMs],
    choice: Candidate,
    devices: Sequence[DeviceResult],
    slowest: DeviceResult,
) -> str:
    """Return what a part of the step depends on: the devices, a link, or what variables cost."""
    if part == "compute":
        others = [row.compute_ms or 0.0 for row in devices if row != slowest]
        alone = bool(others) and (slowest.compute_ms or 0.0) > (1 + EVEN_PERCENT / 100) * median(others)
        nouns = "CPU devices" if slowest.device.is_cpu else "GPUs"
        return slowest.device.name if alone or not others else f"all {len(devices)} {nouns}"
    if choice.exposed_ms.get("network", 0.0) >= max(choice.exposed_ms.values(), default=0.0) > 0:
        return choice.links.get("network", "the network")
    if part == "weights":
        return choice.links.get("weights", "the copy of the weights")
    if len(devices) == 1:
        return UPDATE
    variables, gradients = (choice.exposed_ms.get(name, 0.0) for name in ("variables", "gradients"))
    # No box was seen whose variables cost more than twice what is assumed.
    small = parts["rest"].measured <= 2 * variables + gradients
    if "gradients" not in choice.links or (small and variables > gradients):
        return VARIABLES
    return choice.links["gradients"]


def _part_words(part: str, parts: Mapping[str, PartMs]) -> str:
    names = {"rest": "gradients and update take", "weights": "weights take", "compute": "compute takes"}
    one = parts[part]
    words = f"{names[part]} {one.measured:.1f} ms of a step, predicted {one.predicted:.1f}"
    compute = parts["compute"]
    if part != "compute" and compute.measured < (1 + EVEN_PERCENT / 100) * compute.predicted:
        words += "; compute takes no longer than predicted"
    return words


def _hint(part: str, resource: str) -> str:
    if part == "compute":
        return f" ({_CHECK_GPU})"
    if resource.startswith("network of "):
        return f" ({_CHECK_NETWORK})"
    return "" if resource in (VARIABLES, UPDATE) else f" ({_CHECK_LINK})"


# Two runs of the same work differ by some percent: below this difference neither is called the slower.
NOISE = 0.05
# Training and input share the host's cores: an input that alone is just fast enough may not be beside
# training. tf_cnn_benchmarks' published tables show real data within 8 % of synthetic where the input alone
# was far faster, so this much more than needed is called enough.
ENOUGH = 1.2
# Some batches are ready before the first counted step: so many steps show that more come as fast.
MIN_STEPS = 10


def input_verdict(result: Result, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    """Judge a run; None where nothing is to be judged, or nothing is there to compare with.

    `earlier`: folders and results of other runs, latest first. A training on data made once on
    the devices has no input to judge.
    """
    rate = _rate(result)
    if rate is None:
        return None
    job = result.job
    if not isinstance(job, RunSpec):
        return None
    if job.task == "input":
        return _of_the_input(job, rate, earlier)
    if job.task == "train" and not job.data.is_free:
        return _of_training(result, job, rate, earlier)
    return None


def judge_rates(input_rate: float, training_rate: float, how: str = "") -> InputVerdict:
    """Compare the input alone with training alone (synthetic data on the devices), both in images/sec.

    `how`: words for how that training computed.
    """
    headroom = input_rate / training_rate
    alone = f"training alone ({how})" if how else "training alone"
    rates = f"{input_rate:,.1f} images/sec against {training_rate:,.1f} of {alone}"
    if headroom < 1 - NOISE:
        lost = 100 * (1 - headroom)
        return _verdict("input", headroom, f"The input is the bottleneck: {rates}, {lost:.0f}% less.")
    if headroom < ENOUGH:
        shared = "training uses the same cores and may slow it down"
        return _verdict("close", headroom, f"The input is only just fast enough: {rates}; {shared}.")
    return _verdict("enough", headroom, f"The input is fast enough: {rates}.")


def judge_waiting(share: float, training_rate: float, input_rate: float | None = None) -> InputVerdict:
    """Judge a training by the share of its steps' time, 0 to 1, in which all devices waited for examples.

    `input_rate`: images/sec of the input alone, where that was measured; it shows how near the input is to
    its limit.
    """
    headroom = None if input_rate is None else input_rate / training_rate
    waited = f"the devices waited for it in {100 * share:.1f}% of the steps' time"
    if share >= NOISE:
        shared = ""
        if headroom is not None and headroom >= ENOUGH:
            shared = (
                f"; alone it reached {input_rate:,.1f} images/sec, during training {training_rate:,.1f}: "
                "they share the cores"
            )
        return _verdict("input", headroom, f"The input is the bottleneck: {waited}{shared}.")
    if headroom is None:
        return _verdict("enough", None, f"The input is fast enough: {waited}.")
    rates = f"alone it reached {input_rate:,.1f} images/sec, training needs {training_rate:,.1f}"
    if headroom < ENOUGH:
        return _verdict("close", headroom, f"The input is only just fast enough: {waited}; {rates}.")
    return _verdict("enough", headroom, f"The input is fast enough: {waited}; {rates}.")


def _verdict(verdict: str, headroom: float | None, says: str) -> InputVerdict:
    return InputVerdict(verdict=verdict, headroom=headroom, says=says, other=None)


def _of_the_input(job: RunSpec, rate: float, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    for where, other, training in _rated(earlier):
        if other.task == "train" and not other.drills and other.data.is_free and _same(job, other):
            return msgspec.structs.replace(judge_rates(rate, training, _how(other)), other=where)
    return None


def _of_training(
    result: Result, job: RunSpec, rate: float, earlier: Iterable[tuple[str, Result]]
) -> InputVerdict | None:
    share = result.input_waited_share
    if share is None or (share < NOISE and result.steps < MIN_STEPS):
        return None
    for where, other, alone in _rated(earlier):
        if other.task == "input" and other.data == job.data and _same(job, other):
            return msgspec.structs.replace(judge_waiting(share, rate, alone), other=where)
    return judge_waiting(share, rate)


def _rated(earlier: Iterable[tuple[str, Result]]) -> Iterator[tuple[str, RunSpec, float]]:
    for where, other in earlier:
        rate, job = _rate(other), other.job
        if rate is not None and isinstance(job, RunSpec):
            yield where, job, rate


def _rate(result: Result) -> float | None:
    """Return a run's images/sec, above 0; None where it has none that could be compared."""
    if result.status != "complete" or result.throughput is None:
        return None
    rate = result.throughput.mean
    return rate if rate > 0 and math.isfinite(rate) else None


def _how(job: RunSpec) -> str:
    ran = what_ran(job)
    return ", ".join(str(ran[name]) for name in ("trainer", "variable_update", "precision") if name in ran)


def _same(a: RunSpec, b: RunSpec) -> bool:
    """Whether two runs can be compared: how a training computed is not asked, it is in the message."""
    return _of_job(a) == _of_job(b)


def _of_job(job: RunSpec) -> tuple[object, ...]:
    gpus = [(one.host, one.gpu) for one in job.devices]
    return job.model, job.batch_size, job.backend, job.rehearsal_of, gpus
