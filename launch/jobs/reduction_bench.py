"""Times the reduction of a model's gradients by each method that TensorFlow offers: `bench-reduction`.

Each method runs in a separate process, because one that fails can leave TensorFlow unusable, end it or hang.
The clock runs from the host's call of the compiled graph until the host knows that every device has every
sum. Nothing is subtracted: `fixed_cost_us` is the cost of a call that reduces nothing.

Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md). Algorithm bandwidth is the bytes of one
replica's gradients over the time. Bus bandwidth is that times 2 (n - 1) / n, the minimum that the links must
carry.
"""

import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from gputopo.findings import driver_broken, support_of
from gputopo.launch.failure import last_words
from gputopo.launch.jobs.reduction_worker import (
    EMPTY_CALLS,
    REFUSED,
    REFUSED_FOR_ALL,
    WRONG_SUM,
    ReductionJob,
)
from gputopo.launch.jobs.trials import StoppedError, until_stopped
from gputopo.launch.site import Site
from gputopo.launch.spec.env import worker_env
from gputopo.launch.supervise import Record, WorkerLimits, workers
from gputopo.launch.supervise.watchdog import START_S, HangLimits
from gputopo.planner import hidden_gpus, plan_environment
from gputopo.report import to_stderr
from gputopo.topology import Groups, reduction_groups
from gputopo.values.bandwidth import Bandwidth, CollectiveRate, Failure, NotMeasured, Samples
from gputopo.values.ends import End
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.all_reduce import NAMES, parse
from gputopo.values.run.events import Device, Event, ModelBuilt, PhaseBegun, RankFailed, Step
from gputopo.values.run.plan import CPU_DEVICES
from gputopo.values.run.spec import RunSpec
from gputopo.workload import require_workload

METHODS = (*NAMES, "ring#2", "psgpu#2")
REPEATS = 10
WARM_UP = 3  # the first call builds and places the graph, and GPUs open their peer access and memory
# A process without an event for this long hangs. Loading TensorFlow from a cold disk takes up to a minute,
# and TensorFlow itself aborts a collective after 60 s.
SILENCE_LIMIT_S = 120.0
_SHARED_MEMORY = (
    "CPU devices share their memory and cores: tensors are passed without a copy, so these times compare "
    "the arithmetic of the methods, not links"
)


def worker_command(job: ReductionJob, events: int) -> Sequence[str]:
    """Return the command of the worker. -P: files of the current folder do not shadow packages."""
    module = "gputopo.launch.jobs.reduction_worker"
    return (sys.executable, "-P", "-m", module, msgspec.json.encode(job).decode(), str(events))


class ReductionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of all methods."""

    samples: Samples = msgspec.field(default_factory=Samples)  # one for each method, in the requested order
    failures: tuple[Failure, ...] = ()  # methods with wrong sums (reason WRONG_DATA)
    not_measured: tuple[NotMeasured, ...] = ()
    fixed_cost_us: dict[str, float] = {}  # by method: median of the same call without a reduction
    complete: bool = True  # False if it was interrupted (Ctrl-C)


def measure_reduction(
    machine: Machine, model: str, method: str | None, chosen: tuple[int, ...] | None
) -> Bandwidth:
    """Time the reduction over the chosen GPUs, or over CPU devices if there is no GPU.

    Raises HardwareError for an NVIDIA device whose driver does not work, and UsageError for fewer than two
    devices or an unknown method.
    """
    gpus = _gpus(chosen, machine)
    began = time.time()
    times = time_methods(
        model,
        gpus,
        methods=METHODS if method is None else (method,),
        visible={} if gpus is None else plan_environment(machine, gpus),
        groups=() if gpus is None else reduction_groups(machine, gpus),
        compiles=gpus is not None and any(support_of(machine, machine.gpus[gpu]).compiles for gpu in gpus),
    )
    costs = ", ".join(f"{name} {us / 1000:.2f} ms" for name, us in times.fixed_cost_us.items())
    return Bandwidth(
        source="live",
        samples=times.samples,
        failures=times.failures,
        not_measured=times.not_measured,
        complete=times.complete,
        measured_at=began,
        duration_s=time.time() - began,
        driver_version=machine.driver.version,
        cuda_version=machine.driver.cuda_version,
        notes=(
            *(() if gpus is not None else ("No NVIDIA device: the reduction was timed on CPU devices.",)),
            *((_SHARED_MEMORY,) if gpus is None and times.samples else ()),
            *((f"Overhead of a call, included in the times above: {costs}.",) if costs else ()),
        ),
    )


def _gpus(chosen: tuple[int, ...] | None, machine: Machine) -> tuple[int, ...] | None:
    """Return the chosen GPUs, else all GPUs that respond and that this process may see."""
    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect shows more")
    left_out = {*hidden_gpus(os.environ, machine), *Site(machine, trains=True).unusable}
    usable = tuple(gpu.index for gpu in machine.gpus if not gpu.lost and gpu.index not in left_out)
    if chosen is None:
        return usable or None
    missing = [index for index in chosen if index not in usable]
    if missing:
        raise UsageError(
            f"--gpus lists GPU {missing[0]}, which cannot be used here",
            "gputopo inspect shows the GPUs; CUDA_VISIBLE_DEVICES may hide some",
        )
    return chosen


def time_methods(
    model: str,
    gpus: Sequence[int] | None,
    *,
    methods: Sequence[str] = METHODS,
    visible: Mapping[str, str] = {},
    groups: Groups = (),
    compiles: bool = False,
    silence_s: float = SILENCE_LIMIT_S,
) -> ReductionTimes:
    """Time the reduction of the model's gradients over GPUs, or over CPU devices if `gpus` is None.

    `gpus`: indices in the machine (PCI order). `visible`: the variables that show only these GPUs. `groups`:
    for the hierarchical method (see `reduction_groups`). `compiles`: the limit of silence does not apply
    while a process starts, because the driver compiles kernels then. `silence_s`: how long a process may send
    no event. Call this function from the main thread.

    A sample's `source` and `destination` are the set of devices: `gpu:0,1` or `cpu:0,1`. Its `bytes` are the
    bytes of one replica's gradients. Raises UsageError for an unknown model or method, for fewer than two
    devices, and for a device that is given twice.
    """
    chosen = [parse(name).written for name in methods]
    run = _run_spec(model, gpus)
    start_s = START_S if compiles else silence_s
    limits = WorkerLimits(patience=HangLimits(min_s=silence_s, phase_s=silence_s, start_s=start_s))
    environment = worker_env(os.environ, run, visible)
    samples: list[CollectiveRate] = []
    failures: list[Failure] = []
    reasons = dict.fromkeys(chosen, "interrupted")  # why methods are not measured
    fixed_cost_us: dict[str, float] = {}
    refused = ""  # why no method can be measured
    place = place_of(run)
    with until_stopped() as ending:
        for number, method in enumerate(chosen):
            to_stderr(f"gputopo: reduction {number + 1} of {len(chosen)}: {method}\n")
            cannot, *_ = parse(method).why_not(run.backend, len(run.devices)) or ("",)
            if refused or cannot:
                reasons[method] = refused or cannot
                continue
            job = ReductionJob(run=run, method=method, groups=groups, repeats=REPEATS, warm_up=WARM_UP)
            events: list[Event] = []
            record = Record(None, events.append)
            with workers(environment, limits=limits) as running:
                running.run(run, partial(worker_command, job), record, Path(os.devnull))
            failed, timed = record.failure, timed_of(job, events)
            if timed is not None:
                size, repeats_us, fixed_cost_us[method] = timed
                samples.append(sample_of(run, method, size, repeats_us))
                del reasons[method]
            elif running.stopped is None and failed is not None and failed.kind == WRONG_SUM:
                failures.append(
                    Failure(
                        kind="allreduce",
                        source=place,
                        destination=place,
                        reason="WRONG_DATA",
                        says=failed.cause,
                    )
                )
                del reasons[method]
            elif running.stopped is None:
                reasons[method] = _reason(failed, events)
                refused = reasons[method] if failed and failed.kind == REFUSED_FOR_ALL else ""
            if running.stopped is not None:
                raise StoppedError(running.stopped.exit_code)
    if ending.code not in (0, 128 + signal.SIGINT):
        signal.raise_signal(ending.code - 128)  # SIGTERM or SIGHUP ends this process too
    return ReductionTimes(
        samples=Samples(samples),
        failures=tuple(failures),
        not_measured=tuple(
            NotMeasured(what=f"{method} reduction of {run.model}'s gradients over {place}", reason=reason)
            for method, reason in reasons.items()
        ),
        fixed_cost_us=fixed_cost_us,
        complete=not ending.code,
    )


def bus_factor(devices: int) -> float:
    """Bus bandwidth over algorithm bandwidth of an all-reduce: 2 (n - 1) / n.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return 2 * (devices - 1) / devices


def place_of(run: RunSpec) -> End:
    """Return a run's devices as an end: `gpu:0,3` by index in the machine, `cpu:0,1` for CPU devices."""
    numbers = (device.tower if device.gpu is None else device.gpu for device in run.devices)
    return End(f"{run.backend}:{','.join(map(str, numbers))}")


def sample_of(run: RunSpec, method: str, size: int, repeats_us: Sequence[float]) -> CollectiveRate:
    """Return the sample of one method. `size`: bytes of one replica's gradients."""
    speeds = tuple(size / us / 1e3 for us in repeats_us)  # bytes/us is MB/s
    median_us = statistics.median(repeats_us)
    speed = size / median_us / 1e3
    place = place_of(run)
    return CollectiveRate(
        kind="allreduce",
        source=place,
        destination=place,
        bytes=size,
        algorithm=method,
        model=run.model,
        median_us=median_us,
        repeats_us=tuple(repeats_us),
        median_gb_per_s=speed,
        repeats_gb_per_s=speeds,
        spread_percent=100 * (max(speeds) - min(speeds)) / speed,
        bus_gb_per_s=speed * bus_factor(len(run.devices)),
    )


def timed_of(job: ReductionJob, events: Sequence[Event]) -> tuple[int, list[float], float] | None:
    """Return the bytes of one replica's gradients, the times, and the time of a call that reduces nothing.

    Times are in microseconds, from a worker's events. None if the worker did not finish its last call.
    """
    size, empty = 0, False
    reduced_us: list[float] = []
    empty_us: list[float] = []
    for event in events:
        if isinstance(event, ModelBuilt):
            size = event.parameter_bytes
        elif isinstance(event, PhaseBegun):
            empty = event.phase == EMPTY_CALLS
        elif isinstance(event, Step) and not event.warmup:
            (empty_us if empty else reduced_us).append(1e6 * event.seconds)
    if size == 0 or min(len(reduced_us), len(empty_us)) < job.repeats:
        return None
    return size, reduced_us, statistics.median(empty_us)


def _reason(failed: RankFailed | None, events: Sequence[Event]) -> str:
    """Return why there are no times: the worker's cause, or its end with the phase and the last line."""
    if failed is None:
        return "the worker ended before its last call"
    if failed.kind in (REFUSED, REFUSED_FOR_ALL):
        return failed.cause
    phase = next((event.phase for event in reversed(events) if isinstance(event, PhaseBegun)), "its start")
    cause = failed.cause if phase in failed.cause else f"{failed.cause}, in {phase}"
    last = last_words(failed.last_lines)
    return f"{cause}: {last}" if last and last not in cause else cause


def _run_spec(model: str, gpus: Sequence[int] | None) -> RunSpec:
    name = require_workload(model).name
    if gpus is None:
        devices = [Device(tower=tower, device=f"/CPU:{tower}") for tower in range(CPU_DEVICES)]
        return RunSpec(model=name, devices=tuple(devices), backend="cpu", batch_size=1)
    if len(set(gpus)) != len(gpus):
        raise UsageError(f"--gpus {','.join(map(str, gpus))} lists a GPU twice", "list each once")
    if len(gpus) < 2:
        raise UsageError(
            f"{len(gpus)} device{'' if len(gpus) == 1 else 's'}: nothing is reduced",
            "a reduction needs at least two devices",
        )
    devices = [Device(tower=tower, device=f"/GPU:{tower}", gpu=gpu) for tower, gpu in enumerate(gpus)]
    return RunSpec(model=name, devices=tuple(devices), backend="gpu", batch_size=1)
