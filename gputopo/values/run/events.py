"""Events of a run: one JSON object per line (`gputopo.events/1`). The result is derived from them.

`time_s` is seconds since the Unix epoch. Durations have their unit in their names.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from gputopo.values.errors import InputError
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.plan import Candidate, mode_words
from gputopo.values.run.verdict import Causes, Known

SCHEMA = "gputopo.events/1"

NETWORK = "network"  # the hop to variables on another host
# A device on one of several hosts, in TensorFlow's form.
_HOSTED = re.compile(r"/job:[^/]+(?:/replica:\d+)?/task:(\d+)/(?:device:)?([A-Za-z_]+):(\d+)")

# Share of the time of all cores. Not measured; chosen because CPU devices compute on the cores that another
# program takes.
OTHER_CPU_SHARE = 0.10
# Not measured; chosen because a few threads serve the GPUs, so that they are slow only if no core is left.
CORES_TAKEN_SHARE = 0.90


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    schema: str = SCHEMA
    time_s: float
    rank: int = 0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device of a tower: TensorFlow's name for it and, if it represents one, the GPU of the machine.

    `rank` and `host`: of its host, if a run has several hosts.
    """

    tower: int
    device: str  # "/CPU:1", "/GPU:0", "/job:worker/task:2/device:GPU:0"
    rank: int = 0
    host: str | None = None
    gpu: int | None = None  # index in the machine
    gpu_name: str | None = None
    hop_to_variables: str | None = None  # "PIX"; "local"; "host"; "network"; None: own copy

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU device, even if it represents a GPU."""
        return "CPU" in self.device.upper()

    @property
    def label(self) -> str:
        """The name in tables and bars: "GPU 3", "CPU 1"; with several hosts "n2 GPU 3"."""
        if self.host is not None:
            return place_name(self.device, (self,))
        return f"CPU {self.tower}" if self.is_cpu else self.short_name

    @property
    def short_name(self) -> str:
        """The name for people: "GPU 3", or "CPU device 1"; with several hosts "n2 GPU 3", or "n2 CPU 1"."""
        if self.host is not None:
            return self.label
        if self.is_cpu:
            return f"CPU device {self.tower}"
        return f"device {self.tower}" if self.gpu is None else f"GPU {self.gpu}"

    @property
    def name(self) -> str:
        """The name with the model: "GPU 3 (GTX 1070)", "n2 GPU 3 (GTX 1070)", or "CPU device 1"."""
        known = self.gpu_name and not self.is_cpu
        return f"{self.short_name} ({self.gpu_name})" if known else self.short_name


def place_name(place: str, devices: Iterable[Device]) -> str:
    """Return a name for a device in TensorFlow's form: "n2 GPU 3", "n2 CPU 0"; unchanged on a single host.

    `devices`: of the run. A GPU gets its index in its host's machine, if a tower is on it.
    """
    match = _HOSTED.fullmatch(place)
    return place if match is None else _name(match, devices)


def with_names(text: str, devices: Iterable[Device]) -> str:
    """Return a text, such as an error of TensorFlow, with the devices of several hosts replaced by names."""
    known = tuple(devices)
    return _HOSTED.sub(lambda match: _name(match, known), text)


def _name(match: re.Match[str], devices: Iterable[Device]) -> str:
    rank, kind, number = int(match[1]), match[2].upper(), int(match[3])
    on_host = [device for device in devices if device.rank == rank and device.host is not None]
    if not on_host:
        return match[0]
    for device in on_host:
        ends = device.device.upper().endswith(f"{kind}:{number}")
        if ends and kind == "GPU" and device.gpu is not None:
            return f"{device.host} {kind} {device.gpu}"
    return f"{on_host[0].host} {kind} {number}"


def gpu_key(rank: int, gpu: int | None) -> str:
    """Return the key of a GPU in JSON: its index in its host's machine; after rank 0 with the rank: "2:3"."""
    return f"{rank}:{gpu}" if rank else str(gpu)


class TowerMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one tower in one step, in seconds, from the time marks in the graph."""

    tower: int
    start_s: float  # from the start of the step to the start of the tower
    weights_s: float  # from there until its weights were on its device
    compute_s: float  # from there until its gradients were computed

    @property
    def busy_s(self) -> float:
        """The time in which the tower waits for weights and computes, in seconds."""
        return self.weights_s + self.compute_s


class HostExchange(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one host in the exchange of gradients in one step, in seconds; None without time marks.

    `sends_s`: from when its last gradient was computed until the first other host had everything that this
    host sends it. `receives_s`: the same for what it receives from the first other host. So neither waits for
    a slow third host. `sums_s`: from when the last gradient of all hosts was computed until all sums were on
    its devices. The resolution is the accuracy of the hosts' clocks: see
    `gputopo.launch.train.host_clocks.HostClocks`.
    """

    rank: int
    sends_s: float | None = None
    receives_s: float | None = None
    sums_s: float | None = None


class OfGpu(NamedTuple):
    """The path of the Gpu's fact that a field of a sample has. `words`: in the reports of a run."""

    path: str
    words: str = ""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """NVML readings of one GPU at one time; None if it did not answer.

    In a run, values that change slowly are read less often and are None in between (see
    probes/nvml/gpu_watch.py). Rates are means since the previous reading. `throttled_s`, `pcie_replays` and
    errors are counted from the start of the watch, even if the driver's counter wraps or is reset.
    """

    gpu: int
    graphics_mhz: Annotated[int | None, OfGpu("clocks_mhz.graphics.now", "core clock")] = None
    memory_mhz: Annotated[int | None, OfGpu("clocks_mhz.memory.now", "memory clock")] = None
    power_w: Annotated[float | None, OfGpu("power_w.draw", "power")] = None
    temperature_c: Annotated[int | None, OfGpu("temperature_c.gpu", "temperature")] = None
    throttle_mask: Annotated[int | None, OfGpu("throttle.mask")] = None
    gpu_utilization_percent: Annotated[int | None, OfGpu("utilization_percent.gpu")] = None
    pcie_gen: Annotated[int | None, OfGpu("pcie.gen_now", "PCIe link")] = None
    pcie_width: Annotated[int | None, OfGpu("pcie.width_now", "PCIe link")] = None
    pstate: Annotated[str | None, OfGpu("pstate")] = None  # "P0" is the fastest
    power_limit_w: Annotated[float | None, OfGpu("power_w.enforced_limit")] = None
    memory_temperature_c: Annotated[int | None, OfGpu("temperature_c.memory")] = None
    # Share of time in which memory was read or written.
    memory_utilization_percent: Annotated[int | None, OfGpu("utilization_percent.memory")] = None
    memory_used_mib: Annotated[int | None, OfGpu("memory_mib.used")] = None
    throttled_s: dict[str, float] | None = None  # by policy: power, thermal, board_limit, reliability, ...
    pcie_in_mb_per_s: float | None = None  # to the GPU
    pcie_out_mb_per_s: float | None = None  # from the GPU
    pcie_replays: int | None = None
    nvlink_errors: int | None = None  # on all its links
    nvlink_in_mb_per_s: float | None = None  # on all its links; this and the next three are not read in a run
    nvlink_out_mb_per_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    processes: int | None = None
    other_processes: int | None = None  # processes not of this run; None if they cannot be seen
    lost: bool = False  # NVML reported GPU_IS_LOST

    @property
    def silent(self) -> bool:
        """Whether nothing is known about the GPU at this time."""
        return self == GpuSample(gpu=self.gpu, lost=self.lost)

    def with_earlier(self, earlier: "GpuSample | None") -> "GpuSample":
        """Return this sample, with earlier values for what it does not report, unless the GPU is lost."""
        if earlier is None or self.lost:
            return self
        fields = {name: getattr(earlier, name) for name in SAMPLED_FIELDS if getattr(self, name) is None}
        return msgspec.structs.replace(self, **fields)


SAMPLED_FIELDS = tuple(name for name in GpuSample.__struct_fields__ if name not in ("gpu", "lost"))
SAMPLED_FACTS: dict[str, OfGpu] = {
    name: fact
    for name, annotation in GpuSample.__annotations__.items()
    for fact in getattr(annotation, "__metadata__", ())
}


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """An Xid error that the NVIDIA kernel module reported while the GPUs were watched."""

    code: int
    gpu: int | None = None  # index in the machine; None if not reported


class MachineSample(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs at one time. `time_s`: seconds since the epoch. `xids`: errors since the previous sample."""

    time_s: float
    gpus: tuple[GpuSample, ...]
    xids: tuple[Xid, ...] = ()


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of the host over the `seconds` before `time_s` (seconds since the epoch); None: not known.

    Shares are from 0 to 1. `run_cpu_share`, `other_cpu_share`: CPU time of this run's processes and of all
    others, as a share of the time of all cores that the run may use. `cores`: number of these cores. Rates
    are means over `seconds` for the whole host.
    """

    time_s: float
    seconds: float
    cores: int | None = None
    run_cpu_share: float | None = None
    other_cpu_share: float | None = None
    run_queue: float | None = None  # threads that run or are ready to run, including the run's threads
    memory_available_share: float | None = None  # MemAvailable divided by MemTotal, or by the cgroup's limit
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    network_in_bytes_per_s: float | None = None
    network_out_bytes_per_s: float | None = None

    @property
    def leaves_no_core(self) -> bool:
        """Whether other programs leave no core for the run."""
        other = self.other_cpu_share or 0.0
        queued = self.run_queue is not None and self.cores is not None and self.run_queue > self.cores
        taken = other + (self.run_cpu_share or 0.0) >= CORES_TAKEN_SHARE
        return other >= OTHER_CPU_SHARE and (taken or queued)


class RunStarted(_Event, frozen=True, tag="run_started"):
    """The start of the run: what was requested, on which devices, with which versions.

    `spec` is the JSON form of gputopo.values.run.spec.RunSpec. `rehearsal_of`: the machine whose plan is
    rehearsed on CPU devices, None if the run is on the planned devices.
    """

    host: str
    spec: dict[str, Any]
    devices: tuple[Device, ...]
    backend: str  # "cpu" or "gpu"
    rehearsal_of: str | None = None
    versions: dict[str, str] = {}
    says: tuple[str, ...] = ()  # notes for every output of this run
    known: Known = Known()  # what is known before the run


class ModelBuilt(_Event, frozen=True, tag="model_built"):
    """The model is built: its size, and the duration of import, building and tracing.

    `input`: where the examples come from, as the input reports it: where they are created and held, files,
    threads, batches ahead.
    """

    parameters: int
    parameter_bytes: int
    import_s: float
    build_s: float
    versions: dict[str, str] = {}
    says: tuple[str, ...] = ()  # what was assumed about it, and what runs differently from the request
    input: dict[str, str | int | float | None] = {}


class PlacementChecked(_Event, frozen=True, tag="placement"):
    """Where variables and ops actually are, read after the first step.

    `variables`: bytes of variables by device. `ops`: number of ops of each tower on its device.
    `first_step_s` includes tracing and compiling.
    """

    variables: dict[str, int]
    ops: dict[str, int]
    first_step_s: float


class WarmupDone(_Event, frozen=True, tag="warmup_done"):
    """The warm-up is over. Later steps are counted, in examples of the given `unit`."""

    steps: int
    seconds: float
    unit: str = "images"


class Step(_Event, frozen=True, tag="step"):
    """One training step of all towers. `step` counts from 1 after the warm-up, and below 1 during it.

    `global_step`: number of steps for which the weights have been trained after this one, including the steps
    before a resumed checkpoint. `top1`, `top5`: share of this step's examples, from 0 to 1, whose label was
    the first guess, or one of the first five; None if it was not requested.
    """

    step: int
    seconds: float
    images: int  # of all towers together
    loss: float | None  # mean over their examples; NaN is written as null
    marks: tuple[TowerMarks, ...]
    waited_s: float | None = None  # the part of `seconds` in which all towers waited for examples
    global_step: int | None = None
    top1: float | None = None
    top5: float | None = None
    exchange: tuple[HostExchange, ...] = ()  # of each host, if there are several

    @property
    def warmup(self) -> bool:
        """Whether this step is part of the warm-up and not counted."""
        return self.step < 1


class Sample(_Event, frozen=True, tag="sample"):
    """A sample of the GPUs' clocks, power and temperature in the run, with the load of the host.

    `gap_s`: seconds before this sample in which the GPUs could not be sampled; only in the first sample after
    such a gap.
    """

    gpus: tuple[GpuSample, ...]
    host: HostLoad | None = None  # in every fourth sample
    xids: tuple[Xid, ...] = ()  # errors since the previous sample
    gap_s: float | None = None


class ReplicasCompared(_Event, frozen=True, tag="replicas"):
    """The largest absolute difference between the copies of any variable at the end, over all towers."""

    largest_difference: float


# Phases of PhaseBegun.
SERVING, EXCHANGE = "serving", "exchange"
NCCL_TEST, BUILDING = "NCCL test", "building"


class PhaseBegun(_Event, frozen=True, tag="phase"):
    """The start of a phase in which no steps are expected.

    `phase`: checkpoint, trace, export, comparison or evaluation; end: the worker was asked to end after its
    step; batch search: smaller batches are tried because one does not fit; serving: a host makes its devices
    available to rank 0; NCCL test: the first sums by NCCL, on one host; building: the step is built after
    that test.
    """

    phase: str


class Silent(_Event, frozen=True, tag="silent"):
    """A sign of life: seconds without an event of the worker, the current phase, and the process state."""

    seconds: float
    during: str
    process: str  # "computes (1.9 CPUs busy)"; "waits, without CPU time"; "is stopped (SIGSTOP)"


class Noticed(_Event, frozen=True, tag="noticed"):
    """A remark for the reader of the result, reported by the worker, such as a damaged checkpoint."""

    says: str


class Restarted(_Event, frozen=True, tag="restarted"):
    """The worker failed, and a new worker continues from the latest checkpoint."""

    number: int  # of this restart; at most `of` are allowed
    of: int
    cause: str
    steps: int  # trained at that checkpoint; 0: there is no checkpoint

    @property
    def says(self) -> str:
        """The event in one line."""
        begins = f"from the checkpoint after {self.steps} steps" if self.steps else "at the start"
        return f"Restart {self.number} of {self.of}: {self.cause}; training continued {begins}."


class Replanned(_Event, frozen=True, tag="replanned"):
    """NCCL, which the plan chose, failed its test. A new worker trains without it on the same GPUs.

    `planned`: the placement of the plan; `choice`: the new placement; `cause`: of the failure. `spec`,
    `known`: as in RunStarted, for the new placement.
    """

    planned: Candidate
    cause: str
    choice: Candidate
    spec: dict[str, Any]
    known: Known = Known()

    @property
    def says(self) -> str:
        """The event in one line."""
        modes = f"{mode_words(self.choice)} instead of {mode_words(self.planned)}"
        return (
            f"NCCL cannot be used here: {self.cause.rstrip('.')}. Training by {modes}. See worker.log; "
            "NCCL_DEBUG=INFO adds NCCL's own lines."
        )


class Resumed(_Event, frozen=True, tag="resumed"):
    """Training or an evaluation continues from a checkpoint. `steps`: trained when it was written."""

    path: str
    steps: int


class CheckpointSaved(_Event, frozen=True, tag="checkpoint_saved"):
    """A complete checkpoint is on the disk. `removed`: older checkpoints that it replaced."""

    path: str
    steps: int  # trained so far: Step.global_step
    bytes: int
    seconds: float
    removed: tuple[str, ...] = ()


class Evaluated(_Event, frozen=True, tag="evaluated"):
    """The result of an evaluation: shares from 0 to 1, and the mean loss over the examples."""

    examples: int
    top1: float
    top5: float | None
    loss: float | None
    seconds: float
    steps: int | None = None  # of training before. `top5` is None for five classes or fewer
    checkpoint: str | None = None
    data: str = "synthetic"


class Exported(_Event, frozen=True, tag="exported"):
    """The model was written for use without gputopo. `formats`: saved_model, keras, npz."""

    path: str
    formats: tuple[str, ...]
    seconds: float


class Traced(_Event, frozen=True, tag="traced"):
    """A profile of some steps was written."""

    path: str
    steps: tuple[int, ...]  # their numbers (Step.step)
    seconds: float  # of these steps together


class LossNotFinite(_Event, frozen=True, tag="loss_not_finite"):
    """The first loss that is NaN or infinite; reported once.

    Depending on `--on-nan`, training ends with a RankFailed or continues.
    """

    step: int
    value: str  # "nan", "inf", "-inf"
    towers: tuple[int, ...]  # the towers with this loss


class MemoryPeak(_Event, frozen=True, tag="memory_peak"):
    """Peak memory of the worker: on the host (resident), and on devices if it is known."""

    host_bytes: int
    devices: dict[str, int] = {}


class BatchTried(_Event, frozen=True, tag="batch_tried"):
    """After a run ran out of memory: whether a step with a smaller batch per device is possible."""

    batch_size: BatchSize
    fits: bool


class Anomaly(_Event, frozen=True, tag="anomaly"):
    """A device that is slower than its peers by more than the noise. See gputopo.runs.verdict.judge."""

    tower: int
    part: str  # "compute" or "weights"
    percent_under: float  # median over the steps
    percent_under_low: float  # lower bound of its confidence interval
    confidence: float
    says: str
    gpu: int | None = None
    causes: Causes | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on a device in one word, with its figure: see `gputopo.values.run.verdict.Verdict`.

    `percent`: for "slow", by how much; for "even", within what; for "cannot tell", the resolution. `cause`:
    id of the main cause, None if the device is not slow or nothing explains it.
    """

    tower: int
    word: str
    gpu: int | None = None
    percent: float | None = None
    cause: str | None = None


class Judged(_Event, frozen=True, tag="judged"):
    """The verdicts so far, from the latest steps up to `step`.

    See `gputopo.runs.live`: a device that becomes slow is also reported as an Anomaly.
    """

    step: int
    devices: tuple[Standing, ...]
    run: str | None = None  # all devices together, if they are slow


class AnomalyOver(_Event, frozen=True, tag="anomaly_over"):
    """A device that was reported as slow is no longer slow."""

    tower: int
    part: str  # "compute" or "weights"
    says: str
    gpu: int | None = None


class RankFailed(_Event, frozen=True, tag="rank_failed"):
    """A worker ended too early: the first failure, with its cause."""

    # killed, out_of_memory, loss (not a number), disk_full (the run's folder), another file that cannot be
    # written (checkpoint, export, tensorboard, trace), hung, error, placement, interrupted, terminated,
    # unreachable (another host of the run)
    kind: str
    cause: str
    remedy: str
    exit_code: int
    signal: str | None = None
    last_lines: tuple[str, ...] = ()


class RunFinished(_Event, frozen=True, tag="run_finished"):
    """The end of the run. `status`: complete, interrupted or failed; `wall_s`: of the whole run."""

    status: str
    exit_code: int
    wall_s: float


Event = (
    RunStarted
    | ModelBuilt
    | PlacementChecked
    | WarmupDone
    | Step
    | Sample
    | ReplicasCompared
    | PhaseBegun
    | Silent
    | Noticed
    | Restarted
    | Replanned
    | Resumed
    | CheckpointSaved
    | Evaluated
    | Exported
    | Traced
    | LossNotFinite
    | MemoryPeak
    | BatchTried
    | Anomaly
    | AnomalyOver
    | Judged
    | RankFailed
    | RunFinished
)

_decoder = msgspec.json.Decoder(Event)


def encode_line(event: Event) -> bytes:
    """Return an event as one line of JSON, including the newline."""
    return msgspec.json.encode(event) + b"\n"


def decode_line(line: bytes | str) -> Event:
    """Read one event. Raises msgspec.ValidationError or msgspec.DecodeError."""
    event: Event = _decoder.decode(line)
    return event


def read_events(lines: Iterable[bytes], *, origin: str) -> Iterator[Event]:
    """Read the events of a file, line by line. Reading ends at a last line that is cut short (a killed run).

    Events of an unknown kind are skipped. Raises InputError with `origin` and the line for a line that is not
    an event.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield decode_line(line)
        except msgspec.ValidationError as error:
            if "Invalid value" in str(error) and "$.event" in str(error):
                continue
            raise _not_events(origin, number, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not line.endswith(b"\n"):
                return
            raise _not_events(origin, number, str(error)) from error


def _not_events(origin: str, number: int, why: str) -> InputError:
    return InputError(
        f"{origin}, line {number}, is not a run event: {why}", "give the events.jsonl of a gputopo run"
    )
