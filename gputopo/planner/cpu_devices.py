"""The plan of a machine without GPUs: logical CPU devices, variables where the options place them. Pure.

All placements that the options leave are compared by predicted seconds (`gputopo.planner.cpu_devices`);
the order needs no speed of a device, since every mode computes the same. Of equal ones the first of PLACES.
"""

import functools
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import msgspec

from gputopo.planner.reasons import margin_of, ms
from gputopo.prediction import step as steps
from gputopo.prediction.programs import FILE
from gputopo.prediction.step import ModelCosts, Placement, model_of
from gputopo.values.errors import UsageError
from gputopo.values.run.all_reduce import NAMES, Reduction, parse
from gputopo.values.run.plan import (
    CPU_DEVICES,
    SPREAD,
    Candidate,
    Plan,
    Prediction,
    mode_words,
)
from gputopo.workload.workloads import Workload

UPDATE = 3  # times that an update reads or writes a number
_GROUPS = 2  # halves of the towers, where nothing says which are close (`hierarchical`)


class CpuDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of gputopo's core on logical CPU devices.

    - `memory_gb_per_s`: rate at which numbers of the variables are read or written;
    - `us_op`: microseconds of each op of a variable;
    - `us_collective`: microseconds of TensorFlow's collective of a variable, on whatever number of devices;
    - `at_once`: time that several devices compute together over what one after another would take;
    - `low`, `high`: range of measured over predicted images/sec.
    """

    name: str
    source: str
    memory_gb_per_s: float
    us_op: float
    us_collective: float
    at_once: float
    low: float
    high: float


class Work(NamedTuple):
    """What is done with the variables in a step: times that a number is read or written, and ops of each."""

    passes: float
    ops: float
    collectives: int = 0  # of each variable, made one after another

    def seconds(self, model: ModelCosts, constants: CpuDevices) -> float:
        """Return how long it takes for all variables of a model."""
        moved = self.passes * model.bytes / (1e9 * constants.memory_gb_per_s)
        each_us = self.ops * constants.us_op + self.collectives * constants.us_collective
        return moved + 1e-6 * len(model.sizes) * each_us


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    cpu_devices: CpuDevices


@functools.cache
def cpu_devices() -> CpuDevices:
    """Return the constants, fitted to runs (`python -m tests.fits.programs`)."""
    data = resources.files("gputopo.reference.data").joinpath(FILE).read_bytes()
    return msgspec.json.decode(data, type=_Table).cpu_devices


def added(placing: Placement, towers: int) -> Work:
    """Return what adding the gradients of the towers takes, and bringing the sums to all that need them."""
    if towers == 1 or placing.variable_update == "independent":
        return Work(0, 0)
    at_once = Work(towers + 1, 1)
    if placing.variable_update == "parameter_server":
        return at_once
    reduction = parse(placing.all_reduce or "copy")
    if reduction.name == "ring":
        return Work(2 * towers, 2 * towers - 1)
    if reduction.name == "collective":
        # RingReducer: input to output, each chunk received into a buffer before it is added, or taken.
        return Work(2 * towers + 7 * (towers - 1), 0, collectives=1)
    if reduction.name == "hierarchical":
        groups = min(_GROUPS, towers - 1)
        return Work(towers + groups, groups + 1)
    joined = 2 * towers if reduction.parts > 1 else 0
    return Work(at_once.passes + joined, at_once.ops + joined)


def updated(placing: Placement, towers: int) -> Work:
    """Return what updating the variables takes: once at a parameter server, else on every tower."""
    places = 1 if placing.variable_update == "parameter_server" else towers
    return Work(UPDATE * places, places)


def predict(
    model: ModelCosts, placing: Placement, towers: int, step_s: float, constants: CpuDevices
) -> steps.StepSeconds:
    """Return the step of so many towers. `step_s`: seconds of one device's step alone, with its update."""
    alone = updated(placing, 1).seconds(model, constants)
    share = 1.0 if towers == 1 else constants.at_once
    return steps.StepSeconds(
        towers * share * max(0.0, step_s - alone),
        gradients_s=added(placing, towers).seconds(model, constants),
        variables_s=updated(placing, towers).seconds(model, constants),
    )


MAX_CPU_DEVICES = 64  # towers are built one by one; more is probably a typing mistake
PLACES = ("cpu", SPREAD)


def cpu_plan(
    model: str | None,
    *,
    devices: int = CPU_DEVICES,
    ps: str = "auto",
    variable_update: str = "auto",
    all_reduce: str | None = None,
    workload: Workload | None = None,
    batch_size: int | None = None,
    images_per_sec: float | None = None,
) -> Plan:
    """Return the plan of a machine without GPUs: no GPU chosen, variables where the options place them.

    `ps` is auto (the same as cpu), cpu, gpu:N, which stands for the device of tower N, or gpu:spread over all
    of them. `variable_update` is auto (parameter_server, or replicated where `all_reduce` is given) or a
    VariableUpdate; both were checked before. `workload`: of the model; without it nothing is predicted.
    `images_per_sec`: of one device with `batch_size` examples; without it only the order is.
    Raises UsageError for a tower that does not exist, or what cannot be combined with the variable update.
    """
    if not 1 <= devices <= MAX_CPU_DEVICES:
        raise UsageError(
            f"--num-gpus cannot be {devices} without GPUs", f"ask for 1 to {MAX_CPU_DEVICES} CPU devices"
        )
    _check(devices, ps, variable_update, all_reduce)
    reduction = None if all_reduce is None else parse(all_reduce).written
    placings = _placings(devices, ps, variable_update, reduction)
    why = (f"no GPU to plan for: {counted_devices(devices)}",)
    candidates = [
        Candidate(
            gpus=(),
            variable_update=placing.variable_update,
            ps_device=placing.ps_device,
            all_reduce=placing.all_reduce,
            reasons=why,
        )
        for placing in placings
    ]
    prediction = None
    if workload is not None and devices > 1:
        batch = batch_size or workload.cpu_batch
        alone_s = 0.0 if images_per_sec is None else batch / images_per_sec
        costs = model_of(workload)
        found = [predict(costs, placing, devices, alone_s, cpu_devices()) for placing in placings]
        pairs = sorted(zip(candidates, found, strict=True), key=lambda pair: pair[1].step_s)
        candidates = [one for one, _ in pairs]
        if len(candidates) > 1:
            least = f"the least work with the variables of {len(candidates)} placements, by prediction"
            reasons = (*why, f"{mode_words(candidates[0])}: {least}")
            candidates[0] = msgspec.structs.replace(candidates[0], reasons=reasons)
        if images_per_sec is not None:
            candidates = [
                _predicted(one, step, devices * batch, images_per_sec)
                for one, (_, step) in zip(candidates, pairs, strict=True)
            ]
            margin, tie = margin_of(candidates, "one short run of each (--autotune)")
            prediction = Prediction(
                program=cpu_devices().name,
                batch_size=batch,
                single_gpu_images_per_sec={},
                single_gpu_source=f"{images_per_sec:g} images/sec of one device: --single-gpu-images-per-sec",
                margin=margin,
                tie=tie,
            )
    return Plan(
        choice=candidates[0],
        candidates=tuple(candidates),
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        model=model,
        source="cpu",
        prediction=prediction,
    )


def counted_devices(count: int) -> str:
    """Return `1 logical CPU device` or `2 logical CPU devices`."""
    return f"{count} logical CPU device{'' if count == 1 else 's'}"


def _check(devices: int, ps: str, variable_update: str, all_reduce: str | None) -> None:
    served = variable_update == "parameter_server" or (variable_update == "auto" and all_reduce is None)
    if not served and ps != "auto":
        update = "replicated" if variable_update == "auto" else variable_update
        raise UsageError(
            f"--ps {ps} cannot be combined with --variable-update {update}: each device has its own copy",
            "leave --ps out, or use --variable-update parameter_server",
        )
    if all_reduce is not None and variable_update in ("parameter_server", "independent"):
        raise UsageError(
            f"--all-reduce {all_reduce} cannot be combined with --variable-update {variable_update}: "
            "nothing is reduced between replicas",
            "leave --all-reduce out, or use --variable-update replicated",
        )
    if ps not in ("auto", *PLACES) and int(ps.removeprefix("gpu:")) >= devices:
        raise UsageError(
            f"--ps {ps} names a device that does not exist: {counted_devices(devices)}",
            f"give gpu:0 to gpu:{devices - 1}, or cpu",
        )


def _placings(devices: int, ps: str, variable_update: str, all_reduce: str | None) -> Sequence[Placement]:
    """Return what the options leave, the first one as where nothing is predicted.

    Of the places for the variables of a server, and of reductions, those that differ in the work.
    """
    if variable_update == "independent":
        return (Placement("independent"),)
    served = [Placement("parameter_server", place) for place in (PLACES if ps == "auto" else (ps,))]
    if devices == 1:
        served = served[:1]
    names = [name for name in NAMES if Reduction(name).why_not("cpu", devices) is None]
    copied = [Placement("replicated", None, name) for name in (names if all_reduce is None else [all_reduce])]
    if variable_update == "replicated" or all_reduce is not None:
        return copied[:1] if devices == 1 else copied
    return (
        served if variable_update == "parameter_server" or ps != "auto" or devices == 1 else served + copied
    )


def _predicted(one: Candidate, step: steps.StepSeconds, examples: int, images_per_sec: float) -> Candidate:
    speed, constants = examples / step.step_s, cpu_devices()
    parts = {
        "compute": step.compute_s,
        "gradients added in memory": step.gradients_s,
        "variables updated in memory": step.variables_s,
    }
    return msgspec.structs.replace(
        one,
        images_per_sec=round(speed, 2),
        images_per_sec_low=round(speed * constants.low, 2),
        images_per_sec_high=round(speed * constants.high, 2),
        speedup=round(speed / images_per_sec, 3),
        step_ms=ms(step.step_s),
        compute_ms=ms(step.compute_s),
        exposed_ms={"gradients": ms(step.gradients_s), "variables": ms(step.variables_s)},
        limited_by=max(parts, key=parts.__getitem__),
    )
