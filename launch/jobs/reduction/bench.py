"""Times the reduction of a model's gradients by each method that TensorFlow offers: `bench-reduction`.

Each method runs in a process of its own, because one that fails can leave TensorFlow unusable, end it or
hang. The clock runs from the host's call of the compiled graph until the host knows that every device has
every sum. Nothing is subtracted: what a call costs that reduces nothing is told in `fixed_cost_us`.

Bandwidths as nccl-tests defines them (doc/PERFORMANCE.md): algorithm bandwidth is the bytes of one replica's
gradients over the time; bus bandwidth is that times 2 (n - 1) / n, which the links must carry at least.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gputopo.launch.jobs.reduction.process import SILENCE_LIMIT_S, Command, ReductionProcess, worker_command
from gputopo.launch.jobs.reduction.spec import METHODS, Method, ReductionJob, Refused, Timed, require
from gputopo.launch.spec.cpu_plan import CPU_DEVICES, MOST_CPU_DEVICES
from gputopo.launch.spec.env import worker_env
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.topology.reduction_groups import Groups
from gputopo.values.bandwidth import Failure, NotMeasured, Sample
from gputopo.values.errors import UsageError
from gputopo.values.events import Device
from gputopo.workload import workloads as workload

REPEATS = 10
WARM_UP = 3  # the first call builds and places the graph; GPUs open their peer access and memory in it
_SHARED_MEMORY = (
    "CPU devices share their memory and cores: tensors are handed over without a copy, so these times compare"
    " the methods' arithmetic and order, not links"
)


class ReductionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, a sample per method in the order asked for.

    `failures`: methods whose sums were wrong (reason WRONG_DATA). `fixed_cost_us`: by method, the median time
    of the same call without a reduction. `complete` is False where it was interrupted (Ctrl-C).
    """

    samples: tuple[Sample, ...] = ()
    failures: tuple[Failure, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    fixed_cost_us: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    complete: bool = True


def measure(
    model: str,
    gpus: Sequence[int] | None,
    cpu_devices: int = CPU_DEVICES,
    methods: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    repeats: int = REPEATS,
    *,
    groups: Groups = (),
    progress: Callable[[str, int, int], None] | None = None,
    silence_limit_s: float = SILENCE_LIMIT_S,
    command: Command = worker_command,
) -> ReductionTimes:
    """Time the reduction of the model's gradients over GPUs, or over CPU devices where `gpus` is None.

    `gpus`: indices in the machine (PCI order). `methods`: names of `METHODS`, all if None. `environment`: the
    parent's (`os.environ` if None); the chosen GPUs replace its CUDA_VISIBLE_DEVICES. `groups`: for the
    hierarchical method (see `reduction_groups`). `progress` is called before each method with its name, its
    number from 0 and their count. Call it from the main thread.

    A sample's `source` and `destination` are the set of devices: `gpu:0,1` or `cpu:0,1`; `bytes` are those of
    one replica's gradients. Raises UsageError for an unknown model or method, fewer than two devices, or
    the same one twice.
    """
    chosen = [require(name, groups) for name in (METHODS if methods is None else dict.fromkeys(methods))]
    if repeats < 1:
        raise UsageError(f"{repeats} repeats measure nothing", "ask for at least one")
    run = _run_spec(model, gpus, cpu_devices)
    session = _Session(run, worker_env(*_environments(run, gpus, environment)), command, silence_limit_s)
    try:
        for number, method in enumerate(chosen):
            if progress is not None:
                progress(method.name, number, len(chosen))
            session.take(ReductionJob(run=run, method=method, repeats=repeats, warm_up=WARM_UP))
    except KeyboardInterrupt:
        for method in chosen[session.taken :]:
            session.leave_out(method, "interrupted")
        return session.times(complete=False)
    return session.times()


def bus_factor(devices: int) -> float:
    """Give bus bandwidth over algorithm bandwidth of an all-reduce: 2 (n - 1) / n.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return 2 * (devices - 1) / devices


def place_of(run: RunSpec) -> str:
    """Name the set of a run's devices: `gpu:0,3` by index in the machine, `cpu:0,1` for CPU devices."""
    numbers = (device.tower if device.gpu is None else device.gpu for device in run.devices)
    return f"{run.backend}:{','.join(map(str, numbers))}"


def sample_of(run: RunSpec, method: Method, timed: Timed) -> Sample:
    """Give the sample of one method's times."""
    speeds = tuple(timed.bytes / us / 1e3 for us in timed.repeats_us)  # bytes/us is MB/s
    median_us = statistics.median(timed.repeats_us)
    speed = timed.bytes / median_us / 1e3
    place = place_of(run)
    return Sample(
        kind="allreduce",
        source=place,
        destination=place,
        bytes=timed.bytes,
        algorithm=method.name,
        model=run.model,
        median_us=median_us,
        repeats_us=timed.repeats_us,
        median_gb_per_s=speed,
        repeats_gb_per_s=speeds,
        spread_percent=100 * (max(speeds) - min(speeds)) / speed,
        bus_gb_per_s=speed * bus_factor(len(run.devices)),
    )


class _Session:
    """The outcomes so far, and how the next one is had."""

    def __init__(
        self, run: RunSpec, environment: Mapping[str, str], command: Command, silence_limit_s: float
    ) -> None:
        self._run = run
        self._environment = environment
        self._command = command
        self._limit_s = silence_limit_s
        self._samples: list[Sample] = []
        self._failures: list[Failure] = []
        self._not_measured: list[NotMeasured] = []
        self._fixed_cost_us: dict[str, float] = {}
        self._for_all: str | None = None
        self.taken = 0

    def take(self, job: ReductionJob) -> None:
        """Time one method, or note why not."""
        why_not = self._for_all or job.method.why_not(self._run.backend, len(self._run.devices))
        if why_not is None:
            outcome = ReductionProcess(job, self._environment, self._command, self._limit_s).outcome()
            if isinstance(outcome, Timed):
                self._samples.append(sample_of(self._run, job.method, outcome))
                self._fixed_cost_us[job.method.name] = outcome.fixed_cost_us
            else:
                self._refused(job.method, outcome)
        else:
            self.leave_out(job.method, why_not)
        self.taken += 1

    def leave_out(self, method: Method, reason: str) -> None:
        """Note that a method was not measured."""
        place = place_of(self._run)
        what = f"{method.name} reduction of {self._run.model}'s gradients over {place}"
        self._not_measured.append(NotMeasured(what=what, reason=reason))

    def times(self, *, complete: bool = True) -> ReductionTimes:
        """Give all that was measured."""
        return ReductionTimes(
            samples=tuple(self._samples),
            failures=tuple(self._failures),
            not_measured=tuple(self._not_measured),
            fixed_cost_us=self._fixed_cost_us,
            notes=(_SHARED_MEMORY,) if self._samples and self._run.backend == "cpu" else (),
            complete=complete,
        )

    def _refused(self, method: Method, refused: Refused) -> None:
        if refused.wrong_data:
            place = place_of(self._run)
            self._failures.append(
                Failure(
                    kind="allreduce",
                    source=place,
                    destination=place,
                    reason="WRONG_DATA",
                    says=refused.says,
                )
            )
            return
        self.leave_out(method, refused.says)
        if refused.for_all:
            self._for_all = refused.says


def _run_spec(model: str, gpus: Sequence[int] | None, cpu_devices: int) -> RunSpec:
    name = workload.require(model).name
    if gpus is not None and len(set(gpus)) != len(gpus):
        raise UsageError(f"--gpus {','.join(map(str, gpus))} names a GPU twice", "name each once")
    count = cpu_devices if gpus is None else len(gpus)
    if count < 2:
        raise UsageError(
            f"{count} device{'' if count == 1 else 's'}: nothing is reduced",
            "a reduction needs at least two devices",
        )
    if gpus is None:
        if count > MOST_CPU_DEVICES:
            raise UsageError(f"{count} CPU devices are too many", f"ask for 2 to {MOST_CPU_DEVICES}")
        devices = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(count))
    else:
        devices = tuple(
            Device(tower=tower, device=f"/GPU:{tower}", gpu=gpu) for tower, gpu in enumerate(gpus)
        )
    return RunSpec(model=name, devices=devices, backend="cpu" if gpus is None else "gpu", batch_size=1)


def _environments(
    run: RunSpec, gpus: Sequence[int] | None, environment: Mapping[str, str] | None
) -> tuple[Mapping[str, str], RunSpec, Mapping[str, str]]:
    parent = dict(os.environ) if environment is None else environment
    visible = ",".join(map(str, gpus or ()))
    return parent, run, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}
