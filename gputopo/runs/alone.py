"""The speed of each GPU of a run by itself, from a screen or earlier runs of the same job on this machine."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gputopo.runs.history import BoxHistory
from gputopo.runs.past_runs import past_speeds
from gputopo.topology.same_machine import fingerprint
from gputopo.values.machine import Machine
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Screen
from gputopo.values.run.spec import JobSpec, RunSpec


def with_alone(
    result: Result, machine: Machine | None, screens: Iterable[tuple[Path, Screen]], history: BoxHistory
) -> Result:
    """Return the result with the images/sec of each GPU of this host by itself, as far as known.

    The latest screen of this job on this machine has precedence, then the latest runs of one GPU. `machine`:
    None if unknown. `screens`: folders and screens, latest first.
    """
    key = None if machine is None or result.backend != "gpu" else fingerprint(machine)
    if key is None:
        return result
    for path, screen in screens:
        job = result.spec.get("model"), result.batch_size, result.backend, key
        if (screen.model, screen.batch_size, screen.backend, screen.fingerprint) == job:
            speeds = {device.number: device.alone for device in screen.devices if device.alone}
            if speeds:
                return _with_speeds(result, speeds, dict.fromkeys(speeds, str(path)))
    speeds = {}
    folders: dict[int, str] = {}
    conditions = alone_speed_of(result.job)
    has_peers = conditions is not None and len(result.devices) > 1
    for run in history.past(machine, model=result.spec.get("model")) if has_peers else ():
        figures = past_speeds([run.result]) if alone_speed_of(run.result.job) == conditions else ()
        for figure in figures:
            if figure.gpu_index is not None and figure.batch == result.batch_size:
                speeds.setdefault(figure.gpu_index, figure.images_per_sec)  # the latest run has precedence
                folders.setdefault(figure.gpu_index, run.folder)
    return _with_speeds(result, speeds, folders)


def alone_speed_of(job: JobSpec) -> tuple[object, ...] | None:
    """Return the parts of a job that decide the speed of one GPU; None for other training cores."""
    if not isinstance(job, RunSpec):
        return None
    return job.model, job.task, job.method, job.strategy, job.precision, job.data, job.data_format


def _with_speeds(result: Result, speeds: dict[int, float], folders: dict[int, str]) -> Result:
    """Return the result with speeds of GPUs of this host. `folders`: in which they were measured."""
    gpus = [row.device.gpu if row.device.rank == 0 else None for row in result.devices]
    used = [folders[gpu] for gpu in gpus if gpu in folders]
    if not used:
        return result
    return msgspec.structs.replace(
        result,
        alone=", ".join(dict.fromkeys(used)),
        devices=tuple(
            msgspec.structs.replace(row, alone_images_per_sec=None if gpu is None else speeds.get(gpu))
            for row, gpu in zip(result.devices, gpus, strict=True)
        ),
    )
