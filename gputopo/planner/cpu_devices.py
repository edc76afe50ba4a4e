"""The plan of a machine without GPUs: logical CPU devices, variables where the options place them. Pure.

All placements that the options leave are compared by predicted seconds (`gputopo.prediction.cpu_devices`);
the order needs no speed of a device, since every mode computes the same. Of equal ones the first of PLACES.
"""

from collections.abc import Sequence

import msgspec

from gputopo.planner.request import SPREAD
from gputopo.prediction.cpu_devices import CpuStep, cpu_devices, predict
from gputopo.prediction.step import Placing, model_of
from gputopo.values.errors import UsageError
from gputopo.values.run.all_reduce import NAMES, Reduction, parse
from gputopo.values.run.plan import (
    CPU_DEVICES,
    SURE_MARGIN,
    Candidate,
    Plan,
    Prediction,
    mode_words,
    runners_up,
)
from gputopo.workload.workloads import Workload

MAX_CPU_DEVICES = 64  # towers are built one by one; more is probably a typing mistake
PLACES = ("cpu", SPREAD)
_UPDATE_OF_AUTO = {"auto": "parameter_server"}


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
    candidates = tuple(_unpredicted(placing, devices) for placing in placings)
    prediction = None
    if workload is not None and devices > 1:
        batch = batch_size or workload.cpu_batch
        steps = _steps(workload, placings, devices, batch, images_per_sec)
        order = sorted(range(len(placings)), key=lambda place: steps[place].step_s)
        candidates = tuple(candidates[place] for place in order)
        if len(candidates) > 1:
            candidates = (_reasoned(candidates), *candidates[1:])
        if images_per_sec is not None:
            candidates = tuple(
                _predicted(candidates[rank], steps[place], devices * batch, images_per_sec)
                for rank, place in enumerate(order)
            )
            prediction = _prediction(candidates, batch, images_per_sec)
    return Plan(
        choice=candidates[0],
        candidates=candidates,
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


def _placings(devices: int, ps: str, variable_update: str, all_reduce: str | None) -> Sequence[Placing]:
    """Return what the options leave, the first one as where nothing is predicted.

    Of the places for the variables of a server, and of reductions, those that differ in the work.
    """
    if variable_update == "independent":
        return (Placing("independent"),)
    served = [Placing("parameter_server", place) for place in (PLACES if ps == "auto" else (ps,))]
    if devices == 1:
        served = served[:1]
    names = [name for name in NAMES if Reduction(name).why_not("cpu", devices) is None]
    copied = [Placing("replicated", None, name) for name in (names if all_reduce is None else [all_reduce])]
    if variable_update == "replicated" or all_reduce is not None:
        return copied[:1] if devices == 1 else copied
    return (
        served if variable_update == "parameter_server" or ps != "auto" or devices == 1 else served + copied
    )


def _steps(
    workload: Workload, placings: Sequence[Placing], devices: int, batch: int, images_per_sec: float | None
) -> list[CpuStep]:
    model = model_of(workload)
    alone_s = 0.0 if images_per_sec is None else batch / images_per_sec
    return [predict(model, placing, devices, alone_s, cpu_devices()) for placing in placings]


def _unpredicted(placing: Placing, devices: int) -> Candidate:
    return Candidate(
        gpus=(),
        variable_update=placing.variable_update,
        ps_device=placing.ps_device,
        all_reduce=placing.all_reduce,
        reasons=(f"no GPU to plan for: {counted_devices(devices)}",),
    )


def _reasoned(candidates: Sequence[Candidate]) -> Candidate:
    """Return the first one with the reason why it is."""
    choice = candidates[0]
    count = len(candidates)
    least = f"{mode_words(choice)}: the least work with the variables of {count} placements, by prediction"
    return msgspec.structs.replace(choice, reasons=(*choice.reasons, least))


def _predicted(one: Candidate, step: CpuStep, examples: int, images_per_sec: float) -> Candidate:
    speed, constants = examples / step.step_s, cpu_devices()
    parts = {"compute": step.compute_s, "gradients": step.gradients_s, "variables": step.updates_s}
    return msgspec.structs.replace(
        one,
        images_per_sec=round(speed, 2),
        images_per_sec_low=round(speed * constants.low, 2),
        images_per_sec_high=round(speed * constants.high, 2),
        speedup=round(speed / images_per_sec, 3),
        step_ms=round(1e3 * step.step_s, 4),
        compute_ms=round(1e3 * step.compute_s, 4),
        exposed_ms={
            "gradients": round(1e3 * step.gradients_s, 4),
            "variables": round(1e3 * step.updates_s, 4),
        },
        limited_by=_LIMITS[max(parts, key=parts.__getitem__)],
    )


_LIMITS = {
    "compute": "compute",
    "gradients": "gradients added in memory",
    "variables": "variables updated in memory",
}


def _prediction(candidates: Sequence[Candidate], batch: int, images_per_sec: float) -> Prediction:
    choice, constants = candidates[0], cpu_devices()
    runner_up = next(iter(runners_up(choice, candidates)), None)
    margin = None
    if runner_up is not None:
        margin = 1 - (runner_up.images_per_sec or 0.0) / (choice.images_per_sec or 1.0)
    return Prediction(
        program=constants.name,
        batch_size=batch,
        single_gpu_images_per_sec={},
        single_gpu_source=f"{images_per_sec:g} images/sec of one device: --single-gpu-images-per-sec",
        margin=margin,
        tie="one short run of each (--autotune)" if margin is not None and margin < SURE_MARGIN else None,
    )
