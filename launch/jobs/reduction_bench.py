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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from gputopo.launch.failure import last_words
from gputopo.launch.jobs.reduction_worker import (
    EMPTY_CALLS,
    REFUSED,
    REFUSED_FOR_ALL,
    WRONG_SUM,
    ReductionJob,
)
from gputopo.launch.jobs.trials import StoppedError, until_stopped
from gputopo.launch.spec.env import worker_env
from gputopo.launch.supervise.job import workers
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.watchdog import START_S, HangLimits
from gputopo.launch.supervise.worker_life import WorkerLimits
from gputopo.planner import MAX_CPU_DEVICES
from gputopo.topology import Groups
from gputopo.values.bandwidth import Failure, NotMeasured, Sample
from gputopo.values.ends import End
from gputopo.values.errors import UsageError
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

Command = Callable[[ReductionJob, int], Sequence[str]]
"""Makes the command line that runs a job and writes its events to a file descriptor."""


def worker_command(job: ReductionJob, events: int) -> Sequence[str]:
    """Return the command of the worker. -P: files of the current folder do not shadow packages."""
    module = "gputopo.launch.jobs.reduction_worker"
    return (sys.executable, "-P", "-m", module, msgspec.json.encode(job).decode(), str(events))


class ReductionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of all methods."""

    samples: tuple[Sample, ...] = ()  # one for each method, in the requested order
    failures: tuple[Failure, ...] = ()  # methods with wrong sums (reason WRONG_DATA)
    not_measured: tuple[NotMeasured, ...] = ()
    fixed_cost_us: dict[str, float] = {}  # by method: median of the same call without a reduction
    notes: tuple[str, ...] = ()
    complete: bool = True  # False if it was interrupted (Ctrl-C)


def measure(
    model: str,
    gpus: Sequence[int] | None,
    cpu_devices: int = CPU_DEVICES,
    methods: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    repeats: int = REPEATS,
    *,
    visible: Mapping[str, str] | None = None,
    groups: Groups = (),
    progress: Callable[[str, int, int], None] | None = None,
    silence_limit_s: float = SILENCE_LIMIT_S,
    compiles: bool = False,
    command: Command = worker_command,
) -> ReductionTimes:
    """Time the reduction of the model's gradients over GPUs, or over CPU devices if `gpus` is None.

    `gpus`: indices in the machine (PCI order). `methods`: names from `METHODS`, all if None. `environment`:
    of the parent (`os.environ` if None). `visible`: the variables that show only the chosen GPUs, by default
    their indices. `groups`: for the hierarchical method (see `reduction_groups`). `progress` is called before
    each method with its name, its number from 0 and the number of methods. Call this function from the main
    thread.

    `silence_limit_s`: a process is ended after this many seconds without an event. `compiles`: the limit does
    not apply while a process starts, because the driver compiles kernels then.

    A sample's `source` and `destination` are the set of devices: `gpu:0,1` or `cpu:0,1`. Its `bytes` are the
    bytes of one replica's gradients. Raises UsageError for an unknown model or method, for fewer than two
    devices, and for a device that is given twice.
    """
    chosen = [parse(name).written for name in (METHODS if methods is None else dict.fromkeys(methods))]
    run = _run_spec(model, gpus, cpu_devices)
    start_s = START_S if compiles else silence_limit_s
    silence = HangLimits(min_s=silence_limit_s, phase_s=silence_limit_s, start_s=start_s)
    if visible is None:
        indices = ",".join(map(str, gpus or ()))
        visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices}
    environment = worker_env(os.environ if environment is None else environment, run, visible)
    session = _Session(run, command, environment, WorkerLimits(patience=silence))
    with until_stopped() as ending:
        for number, method in enumerate(chosen):
            if progress is not None:
                progress(method, number, len(chosen))
            session.measure(
                ReductionJob(run=run, method=method, groups=groups, repeats=repeats, warm_up=WARM_UP)
            )
    if ending.code:
        for missed in chosen[session.done :]:
            session.leave_out(missed, "interrupted")
    if ending.code not in (0, 128 + signal.SIGINT):
        signal.raise_signal(ending.code - 128)  # SIGTERM or SIGHUP ends this process too
    return session.times(complete=not ending.code)


def bus_factor(devices: int) -> float:
    """Bus bandwidth over algorithm bandwidth of an all-reduce: 2 (n - 1) / n.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return 2 * (devices - 1) / devices


def place_of(run: RunSpec) -> End:
    """Return a run's devices as an end: `gpu:0,3` by index in the machine, `cpu:0,1` for CPU devices."""
    numbers = (device.tower if device.gpu is None else device.gpu for device in run.devices)
    return End(f"{run.backend}:{','.join(map(str, numbers))}")


def sample_of(run: RunSpec, method: str, size: int, repeats_us: Sequence[float]) -> Sample:
    """Return the sample of one method. `size`: bytes of one replica's gradients."""
    speeds = tuple(size / us / 1e3 for us in repeats_us)  # bytes/us is MB/s
    median_us = statistics.median(repeats_us)
    speed = size / median_us / 1e3
    place = place_of(run)
    return Sample(
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


class _Session:
    """The outcomes so far. `done`: how many methods have an outcome."""

    def __init__(
        self, run: RunSpec, command: Command, environment: Mapping[str, str], limits: WorkerLimits
    ) -> None:
        self.done = 0
        self._run = run
        self._command = command
        self._environment = environment
        self._limits = limits
        self._samples: list[Sample] = []
        self._failures: list[Failure] = []
        self._not_measured: list[NotMeasured] = []
        self._fixed_cost_us: dict[str, float] = {}
        self._for_all: str | None = None

    def measure(self, job: ReductionJob) -> None:
        """Time one method, or note why it cannot be timed. Raises StoppedError if a signal ended it."""
        cannot = parse(job.method).why_not(self._run.backend, len(self._run.devices))
        why_not = self._for_all or (None if cannot is None else cannot[0])
        if why_not is not None:
            self.leave_out(job.method, why_not)
            self.done += 1
            return
        events: list[Event] = []
        record = Record(None, events.append)
        with workers(self._environment, limits=self._limits) as running:
            running.run(self._run, partial(self._command, job), record, Path(os.devnull))
        timed = timed_of(job, events)
        if timed is not None:
            size, repeats_us, self._fixed_cost_us[job.method] = timed
            self._samples.append(sample_of(self._run, job.method, size, repeats_us))
        elif running.stopped is None:
            self._failed(job.method, record.failure, events)
        self.done += timed is not None or running.stopped is None
        if running.stopped is not None:
            raise StoppedError(running.stopped.exit_code)

    def leave_out(self, method: str, reason: str) -> None:
        """Note that a method was not measured."""
        place = place_of(self._run)
        what = f"{method} reduction of {self._run.model}'s gradients over {place}"
        self._not_measured.append(NotMeasured(what=what, reason=reason))

    def times(self, *, complete: bool = True) -> ReductionTimes:
        """Return everything that was measured."""
        return ReductionTimes(
            samples=tuple(self._samples),
            failures=tuple(self._failures),
            not_measured=tuple(self._not_measured),
            fixed_cost_us=self._fixed_cost_us,
            notes=(_SHARED_MEMORY,) if self._samples and self._run.backend == "cpu" else (),
            complete=complete,
        )

    def _failed(self, method: str, failed: RankFailed | None, events: Sequence[Event]) -> None:
        if failed is not None and failed.kind == WRONG_SUM:
            place = place_of(self._run)
            self._failures.append(
                Failure(
                    kind="allreduce",
                    source=place,
                    destination=place,
                    reason="WRONG_DATA",
                    says=failed.cause,
                )
            )
            return
        reason = _reason(failed, events)
        self.leave_out(method, reason)
        if failed is not None and failed.kind == REFUSED_FOR_ALL:
            self._for_all = reason


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


def _run_spec(model: str, gpus: Sequence[int] | None, cpu_devices: int) -> RunSpec:
    name = require_workload(model).name
    if gpus is not None and len(set(gpus)) != len(gpus):
        raise UsageError(f"--gpus {','.join(map(str, gpus))} lists a GPU twice", "list each once")
    count = cpu_devices if gpus is None else len(gpus)
    if count < 2:
        raise UsageError(
            f"{count} device{'' if count == 1 else 's'}: nothing is reduced",
            "a reduction needs at least two devices",
        )
    if gpus is None:
        if count > MAX_CPU_DEVICES:
            raise UsageError(f"{count} CPU devices are too many", f"ask for 2 to {MAX_CPU_DEVICES}")
        devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(count))
    else:
        devices = tuple(
            Device(tower=tower, device=f"/GPU:{tower}", gpu=gpu) for tower, gpu in enumerate(gpus)
        )
    return RunSpec(model=name, devices=devices, backend="cpu" if gpus is None else "gpu", batch_size=1)
