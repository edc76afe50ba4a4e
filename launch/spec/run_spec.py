"""What to run, frozen: the one value that goes from the launcher to the worker (`gputopo.runspec/1`).

A field that can be asked for has its option in `gputopo/values/options.csv`.
"""

from typing import Annotated, Literal

import msgspec

from gputopo.launch.spec.job_spec import JobSpec
from gputopo.launch.spec.names import Method, read_strategy
from gputopo.launch.spec.readers import (
    read_batch,
    read_consistency,
    read_data_place,
    read_folder,
    read_resume,
    read_schedule,
    read_steps,
)
from gputopo.values.run.batches import BatchSize, batches_of
from gputopo.values.run.drill import Drill, read_drills
from gputopo.values.run.events import Device
from gputopo.values.run.plan import AllReduce, VariableUpdate

DataFormat = Literal["NCHW", "NHWC"]
GradReduce = Literal["mean", "sum"]
OptimizerName = Literal["sgd", "momentum", "rmsprop", "adam"]
ScheduleName = Literal["constant", "piecewise", "exponential", "cosine"]
PrecisionName = Literal["fp32", "bf16", "fp16"]
DataSource = Literal["gpu", "cpu", "python"]
Feed = Literal["sync", "queue", "dataset", "staged"]
CacheForm = Literal["raw", "decoded"]
ResizeMethod = Literal["crop", "nearest", "bilinear", "bicubic", "area", "round_robin"]
Task = Literal["train", "forward", "eval", "input"]
ThreadMode = Literal["global", "gpu_private", "gpu_shared"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Factor of the learning rate by step.

    piecewise: `factors[i]` until `boundaries[i]`, the last one for ever. exponential: times `decay` every
    `decay_steps` steps, in stairs. cosine: down to 0 at `decay_steps`.
    """

    kind: Annotated[ScheduleName, read_schedule] = "constant"
    warmup_steps: int = 0
    boundaries: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    decay: float = 0.1
    decay_steps: int = 0


class Optimization(msgspec.Struct, frozen=True, kw_only=True):
    """How gradients change the variables. Defaults are those of tf_cnn_benchmarks."""

    optimizer: OptimizerName = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    gradient_clip_norm: float | None = None
    on_nan: Literal["stop", "warn"] = "stop"
    schedule: Schedule = Schedule()


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The type to compute in; variables stay float32. `loss_scale` multiplies the loss (fp16)."""

    compute: PrecisionName = "fp32"
    loss_scale: float = 1.0
    # Halve it and skip the step where a gradient is not finite; double it after this number of good steps
    # (the default of --fp16_inc_loss_scale_every_n of tf_cnn_benchmarks).
    auto_loss_scale: bool = False
    loss_scale_steps: int = 1000
    xla: bool = False
    tf32: Literal["on", "off"] = "on"
    deterministic: bool = False


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How variables and gradients move beside the plain form of a mode."""

    ps_spread: bool = False  # a parameter server on the devices of all towers, variables spread by bytes
    staged: bool = False
    relaxed: Annotated[bool, read_consistency] = False
    asynchronous: bool = False
    groups: tuple[tuple[int, ...], ...] = ()  # towers close to each other, for the hierarchical reduction
    repacking: int = 0
    small_bytes: int = 0
    small_group: int = 10
    transfer: Literal["fp32", "fp16"] = "fp32"


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Where examples come from. `folder` None: synthetic ones, made at `source` and transferred by `feed`.

    With `cache` the first pass has the same order as without, later ones do not.
    """

    source: DataSource = "gpu"
    feed: Feed = "sync"
    folder: Annotated[str | None, read_data_place] = None
    name: Literal["imagenet", "cifar10"] | None = None
    distortions: bool = False
    resize: ResizeMethod = "bilinear"
    private_threads: int | None = None
    cache: CacheForm | None = None
    prefetch: int = 1
    bad_records: Literal["stop", "skip"] = "stop"


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """What a run saves. Folders are absolute; None: nothing is written. `trace`: folder of the profile.

    `until`: steps that the weights are trained for at the end, however many a checkpoint has; None: the steps
    of the run are those after the checkpoint.
    """

    checkpoints: Annotated[str | None, read_folder] = None
    checkpoint_steps: int | None = None
    keep_checkpoints: int = 5
    resume: Annotated[bool, read_resume] = False
    resume_or_start: bool = False
    until: int | None = None
    export: Annotated[str | None, read_folder] = None
    trace: str | None = None
    trace_steps: Annotated[tuple[int, ...], read_steps] = ()
    tensorboard: Annotated[str | None, read_folder] = None


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of TensorFlow's runtime; None: its own default."""

    intra_threads: int | None = None
    inter_threads: int | None = None
    gpu_thread_mode: ThreadMode = "gpu_private"
    per_gpu_threads: int = 2
    memory_limit_mib: int | None = None


class RunSpec(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.runspec/1"):
    """One run of the built-in training core.

    `model`: a name of gputopo.workload.workloads, `keras:NAME`, or `module:function`. Rank 0's process trains
    over all hosts that have devices.
    """

    # Of the host whose process this is, where each host has one for its own devices; None: one for all.
    rank: int | None = None
    task: Task = "train"
    method: Method | None = None
    strategy: Annotated[str | None, read_strategy] = None
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None  # TensorFlow's device of all variables; None: copies, or spread
    all_reduce: AllReduce | None = None
    grad_reduce: GradReduce = "mean"
    batch_size: Annotated[BatchSize, read_batch]
    num_batches: int | None = None
    # Of counted steps, if `num_batches` is None; None: no limit of time.
    time_budget_s: float | None = None
    # Relative standard error of the speed at which counting ends before that; None: it does not.
    max_error: float | None = None
    max_batches: int | None = 100  # None: to the end of the data
    num_warmup_batches: int = 10
    # The warm-up lasts so long at least; None: exactly `num_warmup_batches`, and none is found afterwards.
    min_warmup_s: float | None = 0.0
    data_format: DataFormat = "NHWC"
    learning_rate: float = 0.005
    seed: int = 1234
    optimization: Optimization = Optimization()
    precision: Precision = Precision()
    exchange: Exchange = Exchange()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    runtime: Runtime = Runtime()
    drills: Annotated[tuple[Drill, ...], read_drills] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the hosts that have devices."""
        return tuple(dict.fromkeys(device.rank for device in self.devices))

    @property
    def batches(self) -> tuple[int, ...]:
        """Examples of each device and step."""
        return batches_of(self.batch_size, len(self.devices))

    @property
    def own_devices(self) -> tuple[Device, ...]:
        """Devices that this process trains on: those of its host, where each host has a process, else all."""
        return tuple(device for device in self.devices if self.rank in (None, device.rank))

    @property
    def joint_batch(self) -> int:
        """Examples of all devices and a step."""
        return sum(self.batches)

    @property
    def saves_after_a_step(self) -> bool:
        """Whether the worker saves something at the end of a step: checkpoints, scalars or a trace."""
        saved = self.lifecycle
        checkpoints = self.task == "train" and saved.checkpoints is not None
        return checkpoints or saved.tensorboard is not None or bool(saved.trace_steps)

    @property
    def batch_limit(self) -> int | None:
        """Maximum number of counted steps; None: to the end of the data."""
        return self.num_batches or self.max_batches

    def after(self, trained: int) -> "RunSpec | None":
        """Return the spec of the steps that are left after so many trained ones; None: none is.

        A new warm-up trains, too, so it is taken from the steps that are left.
        """
        if self.lifecycle.until is None or not trained:
            return self
        left = self.lifecycle.until - trained
        if left < 1:
            return None
        warmup = min(self.num_warmup_batches, left - 1)
        return msgspec.structs.replace(self, num_batches=left - warmup, num_warmup_batches=warmup)
