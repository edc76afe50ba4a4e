"""What to run, frozen: the one value that goes from the launcher to the worker (`gputopo.runspec/1`).

A field that can be asked for declares its option: its place on the command line, its check and its help.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from gputopo.launch.spec.job_spec import JobSpec
from gputopo.launch.spec.names import METHODS, STRATEGIES, Method, read_strategy
from gputopo.launch.spec.readers import (
    FP16_LOSS_SCALE,
    SCHEDULE_GRAMMAR,
    no_field,
    read_batch,
    read_data_place,
    read_folder,
    read_resume,
    read_schedule,
    read_steps,
)
from gputopo.values.option import Option, require_choice
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

STEPS, EXCHANGE = "Model and steps", "Exchange between devices"
OPTIMIZER, LAYOUT = "Optimizer", "Precision and layout"
# Headings of the options, in the order of the help.
THEMES = (STEPS, "Data", EXCHANGE, OPTIMIZER, LAYOUT, "Saved files", "TensorFlow runtime")


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a spec. `THEME`: heading of its options. `MORE`: only --help-all shows them."""

    THEME: ClassVar[str] = ""
    MORE: ClassVar[bool] = False


class Schedule(_Part, frozen=True):
    """Factor of the learning rate by step.

    piecewise: `factors[i]` until `boundaries[i]`, the last one for ever. exponential: times `decay` every
    `decay_steps` steps, in stairs. cosine: down to 0 at `decay_steps`.
    """

    THEME: ClassVar[str] = OPTIMIZER
    MORE: ClassVar[bool] = True

    kind: Annotated[
        ScheduleName,
        Option(
            "--learning-rate-schedule",
            f"Factor of the learning rate by step: {SCHEDULE_GRAMMAR}",
            value="NAME[:...]",
            read=read_schedule,
            sets_fields=True,
        ),
    ] = "constant"
    warmup_steps: Annotated[
        int, Option("--learning-rate-warmup-steps", "Steps in which the rate grows from 0", min=0)
    ] = 0
    boundaries: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    decay: float = 0.1
    decay_steps: int = 0


class Optimization(_Part, frozen=True):
    """How gradients change the variables. Defaults are those of tf_cnn_benchmarks."""

    THEME: ClassVar[str] = OPTIMIZER
    MORE: ClassVar[bool] = True

    optimizer: Annotated[OptimizerName, Option("--optimizer", "Optimizer", more=False)] = "sgd"
    momentum: Annotated[float, Option("--momentum", "Momentum coefficient", min=0, below=1)] = 0.9
    nesterov: Annotated[bool, Option("--nesterov", "Nesterov momentum, as tf_cnn_benchmarks uses it")] = False
    weight_decay: Annotated[float, Option("--weight-decay", "L2 coefficient λ: gradient += λw", min=0)] = 0.0
    gradient_clip: Annotated[
        float | None, Option("--gradient-clip", "Clip every gradient element to [-X, X]", above=0)
    ] = None
    gradient_clip_norm: Annotated[
        float | None, Option("--gradient-clip-norm", "Scale all gradients down to this global norm", above=0)
    ] = None
    on_nan: Annotated[
        Literal["stop", "warn"],
        Option("--on-nan", "What a loss that is NaN or infinite does: end the training, or only be reported"),
    ] = "stop"
    schedule: Schedule = Schedule()


class Precision(_Part, frozen=True):
    """The type to compute in; variables stay float32. `loss_scale` multiplies the loss (fp16)."""

    THEME: ClassVar[str] = LAYOUT

    compute: Annotated[PrecisionName, Option("--precision", "Compute type", detail="Variables stay fp32")] = (
        "fp32"
    )
    loss_scale: Annotated[
        float,
        Option(
            "--loss-scale",
            "Loss scale of fp16; auto adapts it",
            default=f"{FP16_LOSS_SCALE:g} with fp16",
            above=0,
            words={"auto": {"loss_scale": FP16_LOSS_SCALE, "auto_loss_scale": True}},
            more=True,
        ),
    ] = 1.0
    # Halve it and skip the step where a gradient is not finite; double it after this number of good steps
    # (the default of --fp16_inc_loss_scale_every_n of tf_cnn_benchmarks).
    auto_loss_scale: bool = False
    loss_scale_steps: int = 1000
    xla: Annotated[bool, Option("--xla", "Compile with XLA")] = False
    tf32: Annotated[
        Literal["on", "off"], Option("--tf32", "TensorFloat-32 in fp32 products on GPUs", more=True)
    ] = "on"
    deterministic: Annotated[
        bool,
        Option(
            "--deterministic", "Same numbers in each run on the same hardware, by slower kernels", more=True
        ),
    ] = False


class Exchange(_Part, frozen=True):
    """How variables and gradients move beside the plain form of a mode."""

    THEME: ClassVar[str] = EXCHANGE
    MORE: ClassVar[bool] = True

    ps_spread: bool = False  # a parameter server on the devices of all towers, variables spread by bytes
    staged: Annotated[
        bool, Option("--staged-vars", "Use weights and gradients of the previous step (stale by one)")
    ] = False
    relaxed: Annotated[
        bool,
        Option(
            "--variable-consistency",
            "relaxed: replicated applies the gradients of the previous step",
            value="strong|relaxed",
            default="strong",
            read=lambda flag, text: require_choice(flag, text, ("strong", "relaxed")) == "relaxed",
        ),
    ] = False
    asynchronous: Annotated[
        bool, Option("--async", "Apply each device's gradients as soon as they are computed")
    ] = False
    groups: tuple[tuple[int, ...], ...] = ()  # towers close to each other, for the hierarchical reduction
    repacking: Annotated[
        int,
        Option(
            "--gradient-repacking",
            "Reduce all gradients as K equal chunks; 0: each separately",
            value="K",
            min=0,
            max=1024,  # each is some ops more for every device; more is probably a typing mistake
        ),
    ] = 0
    small_bytes: Annotated[
        int,
        Option(
            "--agg-small-grads-max-bytes",
            "Reduce gradients up to this size together; 0: none",
            value="SIZE",
            unit="bytes",
            min=0,
        ),
    ] = 0
    small_group: Annotated[
        int, Option("--agg-small-grads-max-group", "Maximum number of small gradients in a group", min=1)
    ] = 10
    transfer: Annotated[
        Literal["fp32", "fp16"], Option("--fp16-transfer", "Transfer gradients as float16", const="fp16")
    ] = "fp32"


class Data(_Part, frozen=True):
    """Where examples come from. `folder` None: synthetic ones, made at `source` and transferred by `feed`.

    With `cache` the first pass has the same order as without, later ones do not.
    """

    THEME: ClassVar[str] = "Data"
    MORE: ClassVar[bool] = True

    source: Annotated[
        DataSource,
        Option(
            "--data-source",
            "Synthetic examples: made once on the device, each step by TensorFlow on the CPU, or in Python",
        ),
    ] = "gpu"
    feed: Annotated[Feed, Option("--feed", "How Python batches are transferred")] = "sync"
    folder: Annotated[
        str | None,
        Option(
            "--data-dir",
            "ImageNet TFRecords or CIFAR-10 files",
            value="DIR",
            read=read_data_place,
            more=False,
        ),
    ] = None
    name: Annotated[
        Literal["imagenet", "cifar10"] | None,
        Option("--data-name", "Data set; sets the shape of examples", default="by model", more=False),
    ] = None
    distortions: Annotated[
        bool, Option("--distortions", "Distort real images: colours of ImageNet, crop and flip of CIFAR-10")
    ] = False
    resize: Annotated[ResizeMethod, Option("--resize-method", "Resize method of ImageNet")] = "bilinear"
    private_threads: Annotated[
        int | None,
        Option("--datasets-num-private-threads", "Threads of the input pipeline", default="by cores", min=1),
    ] = None
    cache: Annotated[
        CacheForm | None,
        Option("--cache", "Cache ImageNet in memory after the first pass: raw records, or decoded images"),
    ] = None
    prefetch: Annotated[
        int,
        Option("--prefetch", "Batches ready on the devices ahead of their step; 0: one, on the host", min=0),
    ] = 1
    bad_records: Annotated[
        Literal["stop", "skip"], Option("--bad-records", "Stop at a damaged record, or skip it")
    ] = "stop"


class Lifecycle(_Part, frozen=True):
    """What a run saves. Folders are absolute; None: nothing is written. `trace`: folder of the profile."""

    THEME: ClassVar[str] = "Saved files"
    MORE: ClassVar[bool] = True

    checkpoints: Annotated[
        str | None,
        Option(
            "--checkpoints",
            "Folder of checkpoints",
            value="DIR",
            read=read_folder,
            more=False,
        ),
    ] = None
    checkpoint_steps: Annotated[
        int | None,
        Option("--checkpoint-steps", "Steps between checkpoints", default="at the end only", min=1),
    ] = None
    keep_checkpoints: Annotated[int, Option("--keep-checkpoints", "Number of checkpoints to keep", min=1)] = 5
    resume: Annotated[
        bool,
        Option(
            "--resume",
            "Continue from the latest checkpoint",
            detail="auto: begin at the start where there is none",
            value="[auto]",
            read=read_resume,
            sets_fields=True,
            more=False,
        ),
    ] = False
    resume_or_start: bool = False
    export: Annotated[
        str | None,
        Option("--export", "Write the model, for a single device, at the end", value="DIR", read=read_folder),
    ] = None
    trace: str | None = None
    trace_steps: Annotated[
        tuple[int, ...],
        Option(
            "--trace",
            "Profile these steps, such as 5 or 5-7,20, into the run's folder",
            value="STEPS",
            read=read_steps,
        ),
    ] = ()
    tensorboard: Annotated[
        str | None, Option("--tensorboard", "Write scalars of each device", value="DIR", read=read_folder)
    ] = None


class Runtime(_Part, frozen=True):
    """Settings of TensorFlow's runtime; None: its own default."""

    THEME: ClassVar[str] = "TensorFlow runtime"
    MORE: ClassVar[bool] = True

    intra_threads: Annotated[
        int | None, Option("--num-intra-threads", "Threads within an op", default="TensorFlow's", min=1)
    ] = None
    inter_threads: Annotated[
        int | None, Option("--num-inter-threads", "Concurrent ops", default="TensorFlow's", min=1)
    ] = None
    gpu_thread_mode: Annotated[ThreadMode, Option("--gpu-thread-mode", "Threads that launch GPU kernels")] = (
        "gpu_private"
    )
    per_gpu_threads: Annotated[
        int, Option("--per-gpu-thread-count", "Number of these threads per GPU", min=1)
    ] = 2
    memory_limit_mib: Annotated[
        int | None,
        Option(
            "--gpu-memory-limit",
            "Memory limit of each GPU",
            value="SIZE",
            unit="MiB",
            default="grows as needed",
            min=1,
        ),
    ] = None


class RunSpec(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.runspec/1"):
    """One run of the built-in training core.

    `model`: a name of gputopo.workload.workloads, `keras:NAME`, or `module:function`. Rank 0's process trains
    over all hosts that have devices.
    """

    # Of the host whose process this is, where each host has one for its own devices; None: one for all.
    rank: int | None = None
    task: Annotated[
        Task,
        Option("--task", "What to run", detail="eval needs --checkpoints", theme=STEPS),
    ] = "train"
    method: Method | None = None
    strategy: Annotated[
        str | None,
        Option(
            "--strategy",
            f"Train with tf.distribute, to compare: {', '.join(STRATEGIES)}; or as a multi-GPU Keras program "
            f"does: {', '.join(METHODS)}",
            value="NAME",
            read=read_strategy,
            sets_fields=True,
            theme=STEPS,
            more=True,
        ),
    ] = None
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None  # TensorFlow's device of all variables; None: copies, or spread
    all_reduce: AllReduce | None = None
    grad_reduce: Annotated[
        GradReduce, Option("--grad-reduce", "Mean or sum over replicas", theme=EXCHANGE, more=True)
    ] = "mean"
    batch_size: Annotated[
        BatchSize,
        Option(
            "--batch-size",
            "Examples per device and step",
            detail="One number, one for each device, or auto: in proportion to their speeds",
            value="N[,N...]|auto",
            default="by model",
            read=read_batch,
            sets_fields=True,
            theme=STEPS,
        ),
    ]
    num_batches: Annotated[
        int | None,
        Option(
            "--num-batches",
            "Number of counted steps",
            default="100; by time on CPU devices; all examples with --task eval and --data-dir",
            min=1,
            theme=STEPS,
        ),
    ] = None
    time_budget_s: float | None = (
        None  # of counted steps, where `num_batches` is None; None: no limit of time
    )
    max_batches: int | None = 100  # None: to the end of the data
    num_warmup_batches: Annotated[
        int,
        Option(
            "--num-warmup-batches",
            "Uncounted warm-up steps; auto: until step times are steady",
            default="10; 3 on CPU devices",
            min=0,
            words={"auto": {"detect_warmup": True}},
            theme=STEPS,
            more=True,
        ),
    ] = 10
    detect_warmup: bool = False  # it ends by runs.speed.steadiness, `num_warmup_batches` at least
    data_format: Annotated[
        DataFormat,
        Option(
            "--data-format",
            "Layout of images",
            default="NCHW on GPUs, NHWC on the CPU",
            theme=LAYOUT,
            more=True,
        ),
    ] = "NHWC"
    learning_rate: Annotated[
        float,
        Option("--learning-rate", "Learning rate", default="by model", min=0, theme=OPTIMIZER, more=False),
        Option(
            "--scale-learning-rate",
            "Scale the rate linearly with devices",
            const=True,
            read=no_field,
            sets_fields=True,
            theme=OPTIMIZER,
            more=True,
        ),
    ] = 0.005
    seed: Annotated[int, Option("--seed", "Random seed", min=0, theme=STEPS, more=True)] = 1234
    optimization: Optimization = Optimization()
    precision: Precision = Precision()
    exchange: Exchange = Exchange()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    runtime: Runtime = Runtime()
    drills: Annotated[
        tuple[Drill, ...],
        Option(
            "--drill",
            "Inject a fault, such as slow-gpu=1:0.85",
            detail="slow-gpu=1:0.85, slow-weights=1:0.8, slow-input=0.8, lost-gpu=1@200, nan@50, hang@100; "
            "@N: from counted step N on. Repeatable",
            value="FAULT[@N]",
            read=read_drills,
            repeated=True,
            theme=STEPS,
        ),
    ] = ()

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
