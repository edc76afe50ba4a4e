"""What to run, frozen: the one value that goes from the launcher to the worker (`gputopo.runspec/1`)."""

from typing import Any, Literal

import msgspec

from gputopo.values.events import Device
from gputopo.values.plan import AllReduce, VariableUpdate

Backend = Literal["cpu", "gpu"]
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
Method = Literal["kuza55", "avolkov1", "fchollet"]
ThreadMode = Literal["global", "gpu_private", "gpu_shared"]


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a spec."""


class Schedule(_Part, frozen=True):
    """The learning rate by step: `RunSpec.learning_rate` times a factor.

    `warmup_steps`: the factor grows from 0 to 1 in a straight line first. piecewise: `factors[i]` holds until
    `boundaries[i]`, the last one for ever (one factor more than boundaries). exponential: times `decay` every
    `decay_steps` steps, in stairs. cosine: down to 0 at `decay_steps`.
    """

    kind: ScheduleName = "constant"
    warmup_steps: int = 0
    boundaries: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    decay: float = 0.1
    decay_steps: int = 0


class Optimization(_Part, frozen=True):
    """How gradients become changes. Defaults are those of tf_cnn_benchmarks.

    `weight_decay` adds that share of a variable to its gradient. `gradient_clip` cuts every entry at plus and
    minus that; `gradient_clip_norm` scales all gradients together down to that norm.
    """

    optimizer: OptimizerName = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    rmsprop_decay: float = 0.9
    rmsprop_momentum: float = 0.9
    rmsprop_epsilon: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    gradient_clip_norm: float | None = None
    schedule: Schedule = Schedule()


class Precision(_Part, frozen=True):
    """The type to compute in; variables stay float32.

    `loss_scale` multiplies the loss and divides the gradients (fp16). With `auto_loss_scale` it is halved,
    and the step left out, where a gradient is not finite, and doubled after `loss_scale_steps` good steps
    (1000: the default of --fp16_inc_loss_scale_every_n of tf_cnn_benchmarks).
    """

    compute: PrecisionName = "fp32"
    loss_scale: float = 1.0
    auto_loss_scale: bool = False
    loss_scale_steps: int = 1000
    xla: bool = False


class Exchange(_Part, frozen=True):
    """How variables and gradients move beside the plain form of a mode.

    `ps_spread`: a parameter server on all towers' devices, each variable on the one with the fewest bytes so
    far. `staged`: weights and gradients pass one-step buffers (stale by one). `relaxed`: replicated towers
    apply the reduced gradients of the step before. `asynchronous`: each tower applies its own gradients to
    the common variables as soon as it has them. `groups`: towers that lie close together, for the
    hierarchical reduction. `repacking`: all gradients as so many equal pieces. `small_bytes`, `small_group`:
    runs of gradients up to that size are reduced as one, so many at a time. `transfer`: the type they travel
    in.
    """

    ps_spread: bool = False
    staged: bool = False
    relaxed: bool = False
    asynchronous: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    repacking: int = 0
    small_bytes: int = 0
    small_group: int = 10
    transfer: Literal["fp32", "fp16"] = "fp32"


class Data(_Part, frozen=True):
    """Where examples come from. `folder` None: synthetic ones, made at `source` and given by `feed`.

    `name`: imagenet (TFRecords) or cifar10 (binaries) in the folder. `bad_records`: skip or stop. `cache`:
    records are kept in memory after the first pass, raw as they are in the files or as decoded pictures; the
    first pass is in the same order with and without, later ones are not.
    `prefetch`: batches that are ready on the devices ahead of the step; 0: one, on the host.
    `private_threads`: of the pipeline.
    """

    source: DataSource = "gpu"
    feed: Feed = "sync"
    folder: str | None = None
    name: str | None = None
    distortions: bool = False
    resize: ResizeMethod = "bilinear"
    private_threads: int | None = None
    cache: CacheForm | None = None
    prefetch: int = 1
    bad_records: Literal["stop", "skip"] = "stop"


class Lifecycle(_Part, frozen=True):
    """What is kept of a run. Folders are absolute; None: nothing is written.

    `checkpoint_steps`: every so many steps, and at the end. `trace_steps`: numbers of steps to profile.
    """

    checkpoints: str | None = None
    checkpoint_steps: int | None = None
    keep_checkpoints: int = 5
    resume: bool = False
    export: str | None = None
    trace: str | None = None
    trace_steps: tuple[int, ...] = ()
    tensorboard: str | None = None
    training_accuracy: bool = False


class Runtime(_Part, frozen=True):
    """Settings of TensorFlow's runtime; None: its own default.

    `memory_limit_mib`: of each GPU; None lets it grow.
    """

    intra_threads: int | None = None
    inter_threads: int | None = None
    gpu_thread_mode: ThreadMode = "gpu_private"
    per_gpu_threads: int = 2
    memory_limit_mib: int | None = None


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.runspec/1"):
    """One run of the built-in training core.

    `model`: a name of gputopo.workload.workloads, `keras:NAME`, or `module:function`. `task`: train, forward
    passes only, evaluation of a checkpoint, or the input alone. `method`: one of the three ways of Keras
    programs; `strategy`: a tf.distribute strategy in place of our own towers.
    `devices`: a tower each, in order. `ps_device` is the TensorFlow device that holds the variables
    (`/CPU:0`, `/GPU:1`), None where every tower has its own copy or they are spread. `batch_size` is per
    device.
    `num_batches` None: as many as fit into `time_budget_s` seconds after the warm-up (None: however long it
    takes), `max_batches` at most (None: to the end of the data).
    `detect_warmup`: the warm-up ends by the rule of gputopo.runs.steadiness, `num_warmup_batches` at least.
    `extra_forward` (for trying out the anomaly report) adds forward passes to a tower: {1: 2} makes
    tower 1 run its forward pass two times more in each step. `max_clocks_mhz`: the most that each GPU of the
    machine can do, {0: {"graphics": 1911, "memory": 4004}}, to compare the clocks under load with.
    `asked`: the options of plan and training that were typed, by name (`num_gpus`). `versions`: what the
    launcher knows of the machine's software and the worker does not.
    """

    model: str
    devices: tuple[Device, ...]
    backend: Backend
    task: Task = "train"
    method: Method | None = None
    strategy: str | None = None
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    grad_reduce: GradReduce = "mean"
    batch_size: int
    num_batches: int | None = None
    time_budget_s: float | None = None
    max_batches: int | None = 100
    num_warmup_batches: int = 10
    detect_warmup: bool = False
    data_format: DataFormat = "NHWC"
    learning_rate: float = 0.005
    seed: int = 1234
    optimization: Optimization = Optimization()
    precision: Precision = Precision()
    exchange: Exchange = Exchange()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    runtime: Runtime = Runtime()
    extra_forward: dict[int, int] = {}
    max_clocks_mhz: dict[int, dict[str, int]] = {}
    rehearsal_of: str | None = None
    asked: dict[str, Any] = {}
    versions: dict[str, str] = {}
    says: tuple[str, ...] = ()

    @property
    def most_batches(self) -> int | None:
        """How many steps are counted at most; None: to the end of the data."""
        return self.num_batches or self.max_batches
