"""The rate of a run's input, compared with the rate of its training.

A run of only the input (`--input-only`) is compared with an earlier training on data that is made on the
devices. A training is judged by the measured time in which its devices wait for examples between two steps,
because its own rate is never above the rate of its input.
"""

import math
from collections.abc import Iterable, Iterator

import msgspec

from gputopo.runs.compared import NOISE
from gputopo.runs.ran import what_ran
from gputopo.values.run.result import InputVerdict, Result
from gputopo.values.run.spec import RunSpec

# Training and input share the host's cores, so an input that is just fast enough by itself may be too slow
# during training. In tf_cnn_benchmarks' published tables, real data is within 8 % of synthetic data if the
# input by itself was much faster; so this factor is called enough.
ENOUGH = 1.2
# Some batches are ready before the first counted step; this many steps show that the others come as fast.
MIN_STEPS = 10


def judge_input(result: Result, earlier: Iterable[tuple[str, Result]]) -> InputVerdict | None:
    """Judge a run; None if there is nothing to judge or to compare with.

    `earlier`: folders and results of other runs, latest first. A training on data that is made once on the
    devices has no input to judge.
    """
    rate, job = _rate(result), result.job
    if rate is None or not isinstance(job, RunSpec):
        return None
    if job.task == "input":
        for where, other, training in _alike(job, earlier):
            if other.task == "train" and not other.drills and other.data.is_free:
                ran = what_ran(other)
                how = [str(ran[key]) for key in ("trainer", "variable_update", "precision") if key in ran]
                verdict = judge_rates(rate, training, ", ".join(how))
                return msgspec.structs.replace(verdict, other=where)
        return None
    share = result.input_waited_share
    if job.task != "train" or job.data.is_free or share is None:
        return None
    if share < NOISE and result.steps < MIN_STEPS:
        return None
    for where, other, alone in _alike(job, earlier):
        if other.task == "input" and other.data == job.data:
            return msgspec.structs.replace(judge_waiting(share, rate, alone), other=where)
    return judge_waiting(share, rate)


def judge_rates(input_rate: float, training_rate: float, how: str) -> InputVerdict:
    """Compare the input by itself with training by itself, both in images/sec.

    The training uses synthetic data on the devices. `how`: words for how that training computed.
    """
    headroom = input_rate / training_rate
    rates = f"{input_rate:,.1f} images/sec against {training_rate:,.1f} of training alone ({how})"
    if headroom < 1 - NOISE:
        lost = 100 * (1 - headroom)
        return _verdict("input", headroom, f"The input is the bottleneck: {rates}, {lost:.0f}% less.")
    if headroom < ENOUGH:
        shared = "training uses the same cores and may slow it down"
        return _verdict("close", headroom, f"The input is only just fast enough: {rates}; {shared}.")
    return _verdict("enough", headroom, f"The input is fast enough: {rates}.")


def judge_waiting(share: float, training_rate: float, input_rate: float | None = None) -> InputVerdict:
    """Judge a training by the share of its steps' time, 0 to 1, in which all devices waited for examples.

    `input_rate`: images/sec of the input by itself, if measured; it shows how near the input is to its limit.
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


def _alike(job: RunSpec, earlier: Iterable[tuple[str, Result]]) -> Iterator[tuple[str, RunSpec, float]]:
    """Iterate over runs that can be compared: folder, job and rate. How a training computed may differ."""
    for where, result in earlier:
        rate, other = _rate(result), result.job
        if rate is not None and isinstance(other, RunSpec) and _of_job(other) == _of_job(job):
            yield where, other, rate


def _rate(result: Result) -> float | None:
    """Return a run's images/sec, above 0; None if it has none that can be compared."""
    if result.status != "complete" or result.throughput is None:
        return None
    rate = result.throughput.mean
    return rate if rate > 0 and math.isfinite(rate) else None


def _of_job(job: RunSpec) -> tuple[object, ...]:
    gpus = [(device.host, device.gpu) for device in job.devices]
    return job.model, job.batch_size, job.backend, job.rehearsal_of, gpus
