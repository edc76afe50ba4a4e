"""The result of a run (`gputopo.result/1`), which `gputopo.runs.summary` derives from its events only."""

from typing import Any

import msgspec

from gputopo.values.run.events import (
    Anomaly,
    CheckpointSaved,
    Device,
    Evaluated,
    Exported,
    LossNotFinite,
    MemoryPeak,
    RankFailed,
    Replanned,
    Resumed,
    Traced,
)
from gputopo.values.run.program import job_of
from gputopo.values.run.spec import JobSpec
from gputopo.values.run.verdict import SLOW, Cost, Hardware, HostSummary, Placed, Verdict


class DeviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One device's row of the final table, with medians over the counted steps.

    `images_per_sec`: the device's own pace, which is its batch divided by the time in which it waited for
    weights and computed. In synchronous training all devices end a step together, so that only their paces
    differ. `other_ms`: the rest of the step, which is waiting for its turn and for slower devices, the
    reduction and the update.

    `alone_images_per_sec`: of the device by itself, from a screen or runs of the same job; see
    `Result.alone`. `verdict`: whether it is slow, even with its peers, or the run cannot tell.
    `graphics_percent`, `memory_percent`: the clocks under load as a percentage of the card's maximum.
    """

    device: Device
    batch_size: int
    images_per_sec: float | None = None
    alone_images_per_sec: float | None = None
    percent_of_best: float | None = None
    weights_ms: float | None = None
    compute_ms: float | None = None
    other_ms: float | None = None
    graphics_mhz: int | None = None
    graphics_percent: float | None = None
    memory_mhz: int | None = None
    memory_percent: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    missing: dict[str, str] = {}  # why sampled values of a GPU are not known, by field
    anomaly: str | None = None
    verdict: Verdict | None = None


class HostExchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one host in the exchange of gradients: medians of `events.HostExchange` in ms."""

    rank: int
    host: str | None = None
    sends_ms: float | None = None
    receives_ms: float | None = None
    sums_ms: float | None = None


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange of gradients between hosts, as far as it is not hidden behind computing.

    `ms`: median time from when the last gradient of all devices was computed until all sums were on all
    devices; `percent`: its share of the step. None if sums are not sent to all hosts.
    """

    hosts: tuple[HostExchanged, ...]
    ms: float | None = None
    percent: float | None = None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Images per second of all devices together.

    `mean`: images per step / mean step time. `uncertainty`: its standard error over blocks of steps, which
    may be correlated. `margin`: twice that; the mean of 5 % of the repeats would differ by more.
    """

    mean: float
    uncertainty: float
    jitter: float  # 1.4826 x median absolute deviation of the speeds
    median: float  # median of the speeds
    total: float  # all counted images / wall time of the counted steps

    @property
    def margin(self) -> float:
        """The number printed after ±: two standard errors of the mean."""
        return 2 * self.uncertainty


class SpeedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a run's speed that is not its warm-up. `before`, `after`: medians in images/sec."""

    after_step: int  # number of the counted step
    before: float
    after: float


class InputVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run is limited by its input, see `gputopo.runs.compared`.

    `verdict`: "input": the input is slower than the training; "close": it is as fast, or a little faster;
    "enough": it is so much faster that training does not wait. `headroom`: rate of the input by itself
    divided by the training's, None if only the waiting time is known.
    """

    verdict: str  # input, close, enough
    headroom: float | None
    says: str
    other: str | None  # the run it was compared with, None if it was judged by its own waiting time


class PartMs(msgspec.Struct, frozen=True):
    """Milliseconds of a part of the step, predicted and measured."""

    predicted: float
    measured: float


class AgainstPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A run compared with the prediction of its plan, see `gputopo.runs.compared`.

    `images_per_sec` and its range are predictions. `verdict`: "within" the range, "slower", "faster", or "not
    compared".
    """

    verdict: str  # within, slower, faster, not compared
    says: str
    images_per_sec: float
    images_per_sec_low: float
    images_per_sec_high: float
    measured: float  # median
    resource: str | None = None  # what is slower or faster than predicted, as far as the time marks show it
    parts: dict[str, PartMs] = {}  # compute and weights of the slowest device, and the rest of the step


class Result(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.result/1"):
    """All measurements of a run, complete or not.

    `ran`: what the run did, see `gputopo.runs.ran`. `batch_size`: per device, None if devices differ
    (`devices` has each); `global_batch_size`: of all devices. `warmup_steps`, `warmup_s`: of the warm-up
    before the `steps`. `steady_steps`, `steady_s`: length of the warm-up by the step times
    (`runs.first_part`), None if the run was not steady, for the reason in `steady`. `throughput` excludes it.
    `speed_change`: a change of the speed.

    Separate times: `import_s`, `build_s`, `first_step_s` (tracing and compiling), `warmup_s`, `counted_s`;
    `wall_s` is the time of the whole run. `input_waited_share`: share of the counted steps' time, 0 to 1, in
    which all devices waited for examples. `prediction` is derived from this run and its plan, None if the
    plan predicts nothing. Everything else is derived from this run's events.
    """

    status: str  # complete, interrupted or failed
    exit_code: int
    spec: dict[str, Any]
    backend: str
    rehearsal_of: str | None = None
    drills: tuple[str, ...] = ()  # faults that were injected on purpose, as typed
    says: tuple[str, ...] = ()
    steps: int = 0
    warmup_steps: int = 0
    images: int = 0
    unit: str = "images"  # of `images` and `throughput`; a user's program may have another unit
    throughput: Throughput | None = None
    devices: tuple[DeviceResult, ...] = ()
    exchange: Exchanged | None = None  # between several hosts
    anomalies: tuple[Anomaly, ...] = ()
    anomaly_check: str = "not made"  # "made", or "not made: why"
    run_verdict: Verdict | None = None  # for all devices together
    cost: Cost | None = None  # of all slow devices together
    host_load: HostSummary | None = None  # while the steps were counted
    failure: RankFailed | None = None
    replanned: Replanned | None = None  # if the plan's NCCL failed; `spec` is then of the replacement
    parameters: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    replica_difference: float | None = None
    variables_on: dict[str, int] = {}
    ops_on: dict[str, int] = {}
    import_s: float | None = None
    build_s: float | None = None
    first_step_s: float | None = None
    warmup_s: float | None = None
    counted_s: float | None = None
    wall_s: float | None = None
    versions: dict[str, str] = {}
    asked: dict[str, Any] = {}  # the options as typed
    ran: dict[str, Any] = {}
    batch_size: int | None = None
    global_batch_size: int | None = None
    steady_steps: int | None = None
    steady_s: float | None = None
    steady: str = "not determined"
    speed_change: SpeedChange | None = None
    last_top1: float | None = None
    last_top5: float | None = None
    resumed: Resumed | None = None
    checkpoints: tuple[CheckpointSaved, ...] = ()  # checkpoints that exist
    evaluations: tuple[Evaluated, ...] = ()
    exports: tuple[Exported, ...] = ()
    traces: tuple[Traced, ...] = ()
    memory: MemoryPeak | None = None
    loss_not_finite: LossNotFinite | None = None
    input: dict[str, str | int | float | None] = {}  # how the examples came, as the input reports it
    input_waited_share: float | None = None
    input_verdict: InputVerdict | None = None  # from this run and an earlier one
    prediction: AgainstPrediction | None = None
    alone: str | None = None  # folders of the screen or runs that measured single devices
    hardware: Hardware | None = None  # of a user's program: from samples only
    placed: Placed | None = None  # the GPUs on which a user's program was seen

    @property
    def images_per_sec(self) -> float | None:
        """Images per second of all devices together; None if no step was counted."""
        return None if self.throughput is None else self.throughput.mean

    @property
    def job(self) -> JobSpec:
        """What ran, from its spec."""
        return job_of(self.spec)

    def peak_bytes(self, device: Device) -> int | None:
        """Return the peak of a device's memory by TensorFlow's allocator; None: not measured."""
        return None if self.memory is None else self.memory.devices.get(device.device)

    @property
    def of_several_hosts(self) -> bool:
        """Whether devices of several hosts trained together."""
        return any(row.device.host is not None for row in self.devices)

    @property
    def is_slow(self) -> bool:
        """Whether one device is slow, or all devices together are: an anomaly."""
        return bool(self.anomalies) or (self.run_verdict is not None and self.run_verdict.word == SLOW)
