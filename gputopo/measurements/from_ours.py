"""A run of gputopo as a measurement, from the result of a complete or a killed run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gputopo.values.run.drill import labels
from gputopo.values.run.events import Device, place_name
from gputopo.values.run.measurement import (
    BUSY,
    COMPLETE,
    DRILL,
    FAILED,
    INTERRUPTED,
    DeviceFigure,
    Measurement,
    Predicted,
    Status,
)
from gputopo.values.run.program import ProgramSpec
from gputopo.values.run.result import Result
from gputopo.values.run.spec import JobSpec, RunSpec


def of_result(
    result: Result,
    *,
    source: str,
    machine: str | None = None,
    cpu: str | None = None,
    gpus: Mapping[int, str] = {},
    time_s: float | None = None,
    digest: str | None = None,
    conditions: tuple[str, ...] = (),
) -> Measurement:
    """Return the measurement of a run.

    `gpus`: names of the machine's GPUs. `conditions`: additional conditions. If a run did not complete,
    `images_per_sec` is empty and the measurement has the reason instead.
    """
    job = result.job
    complete = result.status == COMPLETE and result.throughput is not None
    status: Status = COMPLETE if complete else INTERRUPTED if result.status == INTERRUPTED else FAILED
    speed = result.throughput if complete else None
    verdict = result.input_verdict
    several = result.of_several_hosts  # then the indices belong to several machines
    numbers = tuple(row.device.gpu for row in result.devices if row.device.gpu is not None and not several)
    devices = [row.device for row in result.devices]
    models = (device.gpu_name or gpus.get(-1 if device.gpu is None else device.gpu) for device in devices)
    names = dict.fromkeys(name.removeprefix("NVIDIA ") for name in models if name)
    why = "interrupted" if status == INTERRUPTED else "it failed; the cause was not recorded"
    if result.failure is not None:
        why = result.failure.cause
    elif result.status == COMPLETE:
        why = "no step was counted"
    against, predicted = result.prediction, None
    if against is not None:
        predicted = Predicted(
            images_per_sec=against.images_per_sec,
            low=against.images_per_sec_low,
            high=against.images_per_sec_high,
            verdict=against.verdict,
        )
    return Measurement(
        source=source,
        status=status,
        reason=None if complete else why,
        machine=machine,
        cpu=cpu,
        gpu=" + ".join(names) or ("CPU device" if result.backend == "cpu" else None),
        gpus=numbers,
        n_gpus=len(result.devices) or len(job.devices) or 1,
        backend=result.backend,
        model=job.model or "unknown",
        batch_per_gpu=result.batch_size,
        framework="gputopo",
        version=result.versions.get("tensorflow"),
        driver=result.versions.get("driver"),
        unit=result.unit,
        images_per_sec=speed.mean if speed else None,
        median=speed.median if speed else None,
        uncertainty=speed.uncertainty if speed else None,
        jitter=speed.jitter if speed else None,
        steps=result.steps if complete else None,
        devices=tuple(_devices(result, complete=complete, several=several)),
        predicted=predicted,
        conditions=(*_conditions(result), *conditions),
        limited_by_input=verdict.says if verdict is not None and verdict.verdict == "input" else None,
        time_s=time_s,
        digest=digest,
        **_how(job, devices),
    )


def _how(job: JobSpec, devices: Sequence[Device]) -> dict[str, Any]:
    """Return the fields that describe what ran and how, as far as the spec has them."""
    if not isinstance(job, RunSpec):
        return {"task": job.task if isinstance(job, ProgramSpec) else "train"}
    data = job.data
    return {
        "dataset": data.name,
        "data": data.kind,
        "distortions": data.distortions if data.folder else None,
        "task": job.task,
        "precision": job.precision.compute,
        "data_format": job.data_format,
        "xla": job.precision.xla,
        "method": job.method or job.strategy,
        "variable_update": job.variable_update,
        "ps_device": _ps_device(job, devices),
        "all_reduce": job.all_reduce,
    }


def _devices(result: Result, *, complete: bool, several: bool) -> Iterator[DeviceFigure]:
    for row in result.devices:
        yield DeviceFigure(
            number=row.device.tower if row.device.gpu is None or several else row.device.gpu,
            name=row.device.gpu_name,
            images_per_sec=row.images_per_sec if complete else None,
            graphics_mhz=row.graphics_mhz,
            memory_mhz=row.memory_mhz,
            anomaly=row.anomaly,
        )


def _ps_device(job: RunSpec, devices: Sequence[Device]) -> str | None:
    if job.variable_update != "parameter_server":
        return None
    if job.exchange.ps_spread:
        return "gpu:spread"
    place = job.ps_device or ""
    if (name := place_name(place, devices)) != place:
        return name
    name = place.lower().removeprefix("/")
    return ("cpu" if name.startswith("cpu") else name) or None


def _conditions(result: Result) -> tuple[str, ...]:
    """Return the special conditions of the run: a rehearsal, several hosts, slow devices."""
    says = [f"{DRILL} ({', '.join(drills)})"] if (drills := labels(result.spec)) else []
    says += [f"rehearsal of {result.rehearsal_of}"] if result.rehearsal_of else []
    if result.of_several_hosts:
        says.append(f"on {len({row.device.rank for row in result.devices})} hosts")
    if result.host_load is not None and result.host_load.busy is not None:
        says.append(f"{BUSY} ({result.host_load.busy})")
    says += [anomaly.says for anomaly in result.anomalies]
    if result.run_verdict is not None and result.run_verdict.word == "slow":
        says.append(result.run_verdict.says)
    return tuple(dict.fromkeys(says))
