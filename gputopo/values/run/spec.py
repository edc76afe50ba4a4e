"""What to run, frozen: the value that the launcher sends to the worker (`gputopo.runspec/1`).

It is stored with the run, so that code that compares, describes or learns from runs reads the same structs
(`gputopo.values.run.program.job_of`). A field that has an option declares it next to its type.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from gputopo.values.option import Option
from gputopo.values.run.batches import BatchSize, batches_of
from gputopo.values.run.drill import Drill, read_drills
from gputopo.values.run.events import Device
from gputopo.values.run.names import Method, read_strategy
from gputopo.values.run.plan import AllReduce, VariableUpdate
from gputopo.values.run.readers import (
    read_batch,
    read_consistency,
    read_data_place,
    read_folder,
    read_resume,
    read_schedule,
    read_steps,
)

Backend = Literal["cpu", "gpu"]


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a run."""

    host: str
    address: str  # "10.0.0.2:40123": of its TensorFlow server, or where a program may listen
    cores: int  # number of cores that its devices may use


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The common fields of the specs of the training core and of programs."""

    model: str
    devices: tuple[Device, ...]  # in order; devices of one host are next to each other
    backend: Backend
    servers: tuple[Server, ...] = ()  # by rank, if a run has several hosts
    # Maximum clocks of each GPU, {"0": {"graphics": 1911, "memory": 4004}}, for comparison with the clocks
    # under load.
    max_clocks_mhz: dict[str, dict[str, int]] = {}
    rehearsal_of: str | None = None  # name of the machine of the plan
    asked: dict[str, Any] = {}  # options of plan and training as typed, by name (`num_gpus`)
    versions: dict[str, str] = {}  # of software that the worker cannot see
    says: tuple[str, ...] = ()  # notes for every output


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

    piecewise: `factors[i]` until `boundaries[i]`, the last factor after that. exponential: multiplied by
    `decay` every `decay_steps` steps, as a staircase. cosine: decreases to 0 at `decay_steps`.
    """

    THEME: ClassVar[str] = "Optimizer"

    kind: Annotated[
        ScheduleName,
        read_schedule,
        Option(
            "--learning-rate-schedule",
            "Factor of the learning rate by step: piecewise:STEP=FACTOR,... or exponential:STEPS:DECAY "
            "or cosine:STEPS, or model (the schedule of the model's authors)",
            value="NAME[:...]",
            more=True,
        ),
    ] = "constant"
    warmup_steps: Annotated[
        int, Option("--learning-rate-warmup-steps", "Steps in which the rate grows from 0", min=0, more=True)
    ] = 0
    boundaries: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    decay: float = 0.1
    decay_steps: int = 0


class Optimization(msgspec.Struct, frozen=True, kw_only=True):
    """How gradients change the variables. The defaults are from tf_cnn_benchmarks."""

    THEME: ClassVar[str] = "Optimizer"

    optimizer: Annotated[OptimizerName, Option("--optimizer", "Optimizer")] = "sgd"
    momentum: Annotated[float, Option("--momentum", "Momentum coefficient", min=0, below=1, more=True)] = 0.9
    nesterov: Annotated[
        bool, Option("--nesterov", "Nesterov momentum, as tf_cnn_benchmarks uses it", more=True)
    ] = False
    weight_decay: Annotated[
        float, Option("--weight-decay", "L2 coefficient λ: gradient += λw", min=0, more=True)
    ] = 0.0
    gradient_clip: Annotated[
        float | None, Option("--gradient-clip", "Clip every gradient element to [-X, X]", above=0, more=True)
    ] = None
    gradient_clip_norm: Annotated[
        float | None,
        Option("--gradient-clip-norm", "Scale all gradients down to this global norm", above=0, more=True),
    ] = None
    on_nan: Annotated[
        Literal["stop", "warn"],
        Option(
            "--on-nan",
            "If the loss is NaN or infinite: stop the training, or only warn",
            more=True,
        ),
    ] = "stop"
    schedule: Schedule = Schedule()


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The type for computing; variables stay float32. `loss_scale`: factor of the loss (fp16)."""

    THEME: ClassVar[str] = "Precision and layout"

    compute: Annotated[PrecisionName, Option("--precision", "Compute type", detail="Variables stay fp32")] = (
        "fp32"
    )
    loss_scale: Annotated[
        float,
        Option(
            "--loss-scale",
            "Loss scale of fp16; auto adapts it",
            default="128 with fp16",
            above=0,
            words={"auto": {"loss_scale": 128.0, "auto_loss_scale": True}},
            more=True,
        ),
    ] = 1.0
    # If a gradient is not finite, halve the scale and skip the step; double it after this number of good
    # steps (the default of --fp16_inc_loss_scale_every_n of tf_cnn_benchmarks).
    auto_loss_scale: bool = False
    loss_scale_steps: int = 1000
    xla: Annotated[bool, Option("--xla", "Compile with XLA")] = False
    tf32: Annotated[
        Literal["on", "off"], Option("--tf32", "TensorFloat-32 in fp32 products on GPUs", more=True)
    ] = "on"
    deterministic: Annotated[
        bool,
        Option(
            "--deterministic", "Make runs on the same hardware bit-identical, with slower kernels", more=True
        ),
    ] = False


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How variables and gradients move, if it differs from the plain form of a mode."""

    THEME: ClassVar[str] = "Exchange between devices"

    ps_spread: bool = False  # a parameter server over the devices of all towers, variables spread by bytes
    staged: Annotated[
        bool,
        Option("--staged-vars", "Use weights and gradients of the previous step (stale by one)", more=True),
    ] = False
    relaxed: Annotated[
        bool,
        read_consistency,
        Option(
            "--variable-consistency",
            "relaxed: replicated applies the gradients of the previous step",
            value="strong|relaxed",
            default="strong",
            more=True,
        ),
    ] = False
    asynchronous: Annotated[
        bool, Option("--async", "Apply each device's gradients as soon as they are computed", more=True)
    ] = False
    groups: tuple[tuple[int, ...], ...] = ()  # towers near each other, for the hierarchical reduction
    repacking: Annotated[
        int,
        Option(
            "--gradient-repacking",
            "Reduce all gradients as K equal chunks; 0: each separately",
            value="K",
            min=0,
            max=1024,
            more=True,
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
            more=True,
        ),
    ] = 0
    small_group: Annotated[
        int,
        Option(
            "--agg-small-grads-max-group", "Maximum number of small gradients in a group", min=1, more=True
        ),
    ] = 10
    transfer: Annotated[
        Literal["fp32", "fp16"],
        Option(
            "--fp16-transfer", "Transfer gradients as float16", words={"": {"transfer": "fp16"}}, more=True
        ),
    ] = "fp32"


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Where examples come from. `folder` None: synthetic, created at `source` and transferred by `feed`.

    With `cache`, the first pass has the same order as without it; later passes do not.
    """

    THEME: ClassVar[str] = "Data"

    source: Annotated[
        DataSource,
        Option(
            "--data-source",
            "Where synthetic examples are created: gpu: once, on the device; cpu: in each step, by "
            "TensorFlow; python: in each step, in Python",
            more=True,
        ),
    ] = "gpu"
    feed: Annotated[Feed, Option("--feed", "How Python batches are transferred", more=True)] = "sync"
    folder: Annotated[
        str | None, read_data_place, Option("--data-dir", "ImageNet TFRecords or CIFAR-10 files", value="DIR")
    ] = None
    name: Annotated[
        Literal["imagenet", "cifar10"] | None,
        Option("--data-name", "Data set; sets the shape of examples", default="by model"),
    ] = None
    distortions: Annotated[
        bool,
        Option(
            "--distortions", "Distort real images: colours of ImageNet, crop and flip of CIFAR-10", more=True
        ),
    ] = False
    resize: Annotated[ResizeMethod, Option("--resize-method", "Resize method of ImageNet", more=True)] = (
        "bilinear"
    )
    private_threads: Annotated[
        int | None,
        Option(
            "--datasets-num-private-threads",
            "Threads of the input pipeline",
            default="by cores",
            min=1,
            more=True,
        ),
    ] = None
    cache: Annotated[
        CacheForm | None,
        Option(
            "--cache",
            "Cache ImageNet in memory after the first pass: raw records, or decoded images",
            more=True,
        ),
    ] = None
    prefetch: Annotated[
        int,
        Option(
            "--prefetch",
            "Number of batches copied to the devices ahead of their step; 0: one batch, kept on the host",
            min=0,
            more=True,
        ),
    ] = 1
    bad_records: Annotated[
        Literal["stop", "skip"], Option("--bad-records", "Stop at a damaged record, or skip it", more=True)
    ] = "stop"

    @property
    def is_free(self) -> bool:
        """Whether the examples are created once on the devices, so that the input takes no time."""
        return self.folder is None and self.source == "gpu"

    @property
    def kind(self) -> str:
        """The kind of data in a measurement: "real", "synthetic", "synthetic-cpu", "synthetic-python"."""
        if self.folder:
            return "real"
        return f"synthetic-{self.source}" if self.source in ("cpu", "python") else "synthetic"


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """What a run saves. Folders are absolute; None: do not write. `trace`: folder of the profile.

    `until`: total number of steps of the weights at the end, including the steps of a checkpoint; None: the
    steps of the run are in addition to the checkpoint's.
    """

    THEME: ClassVar[str] = "Saved files"

    checkpoints: Annotated[
        str | None, read_folder, Option("--checkpoints", "Folder of checkpoints", value="DIR")
    ] = None
    checkpoint_steps: Annotated[
        int | None,
        Option(
            "--checkpoint-steps", "Steps between checkpoints", default="only at the end", min=1, more=True
        ),
    ] = None
    keep_checkpoints: Annotated[
        int, Option("--keep-checkpoints", "Number of checkpoints to keep", min=1, more=True)
    ] = 5
    resume: Annotated[
        bool,
        read_resume,
        Option(
            "--resume",
            "Continue from the latest checkpoint",
            detail="auto: start from the beginning if there is none; --num-batches is then the total",
            value="[auto]",
        ),
    ] = False
    resume_or_start: bool = False
    until: int | None = None
    export: Annotated[
        str | None,
        read_folder,
        Option("--export", "Write the model, for a single device, at the end", value="DIR", more=True),
    ] = None
    trace: str | None = None
    trace_steps: Annotated[
        tuple[int, ...],
        read_steps,
        Option(
            "--trace",
            "Profile these steps, such as 5 or 5-7,20; the profile is in the run folder",
            value="STEPS",
            more=True,
        ),
    ] = ()
    tensorboard: Annotated[
        str | None,
        read_folder,
        Option("--tensorboard", "Write scalars of each device", value="DIR", more=True),
    ] = None


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of TensorFlow's runtime; None: TensorFlow's default."""

    THEME: ClassVar[str] = "TensorFlow runtime"

    intra_threads: Annotated[
        int | None,
        Option("--num-intra-threads", "Threads within an op", default="TensorFlow's", min=1, more=True),
    ] = None
    inter_threads: Annotated[
        int | None, Option("--num-inter-threads", "Concurrent ops", default="TensorFlow's", min=1, more=True)
    ] = None
    gpu_thread_mode: Annotated[
        ThreadMode, Option("--gpu-thread-mode", "Threads that launch GPU kernels", more=True)
    ] = "gpu_private"
    per_gpu_threads: Annotated[
        int, Option("--per-gpu-thread-count", "Number of these threads per GPU", min=1, more=True)
    ] = 2
    memory_limit_mib: Annotated[
        int | None,
        Option(
            "--gpu-memory-limit",
            "Memory limit of each GPU",
            value="SIZE",
            default="grows as needed",
            unit="MiB",
            min=1,
            more=True,
        ),
    ] = None


class RunSpec(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.runspec/1"):
    """One run of the built-in training core.

    `model`: a name in gputopo.workload.workloads, `keras:NAME`, or `module:function`. The process of rank 0
    trains over all hosts that have devices.
    """

    # Rank of the host of this process, if each host has its own process; None: one process for all.
    rank: int | None = None
    task: Annotated[
        Task, Option("--task", "What to run", detail="eval needs --checkpoints", theme="Model and steps")
    ] = "train"
    method: Method | None = None
    strategy: Annotated[
        str | None,
        read_strategy,
        Option(
            "--strategy",
            "Train with tf.distribute, for comparison: mirrored, mirrored:nccl, mirrored:hierarchical, "
            "mirrored:one, central, one-device, multi_worker_mirrored, multi_worker_mirrored:nccl, "
            "multi_worker_mirrored:ring; or the method of a multi-GPU Keras program: kuza55, avolkov1, "
            "fchollet",
            value="NAME",
            theme="Model and steps",
            more=True,
        ),
    ] = None
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None  # TensorFlow's device with all variables; None: copies, or spread
    all_reduce: AllReduce | None = None
    grad_reduce: Annotated[
        GradReduce,
        Option("--grad-reduce", "Mean or sum over replicas", theme="Exchange between devices", more=True),
    ] = "mean"
    batch_size: Annotated[
        BatchSize,
        read_batch,
        Option(
            "--batch-size",
            "Examples per device and step",
            detail="One number, one for each device, or auto: in proportion to their speeds",
            value="N[,N...]|auto",
            default="by model",
            theme="Model and steps",
        ),
    ]
    num_batches: Annotated[
        int | None,
        Option(
            "--num-batches",
            "Number of counted steps",
            detail="With --resume auto: of all runs together",
            default="100; on CPU devices until the speed is known to 1%, at most 20 s; all examples with "
            "--task eval and --data-dir",
            min=1,
            theme="Model and steps",
        ),
    ] = None
    # Time limit of the counted steps if `num_batches` is None; None: no limit.
    time_budget_s: float | None = None
    # Counting ends early if the speed has this relative standard error; None: it does not.
    max_error: float | None = None
    max_batches: int | None = 100  # None: to the end of the data
    num_warmup_batches: Annotated[
        int,
        Option(
            "--num-warmup-batches",
            "Number of uncounted warm-up steps, or auto",
            default="10 (3 on CPU devices), at least 1 s, and the next steps if they are slower",
            min=0,
            words={"auto": {}},
            theme="Model and steps",
            more=True,
        ),
    ] = 10
    # Minimum seconds of the warm-up; None: exactly `num_warmup_batches` steps, without looking for more
    # afterwards.
    min_warmup_s: float | None = 0.0
    data_format: Annotated[
        DataFormat,
        Option(
            "--data-format",
            "Layout of images",
            default="NCHW on GPUs, NHWC on the CPU",
            theme="Precision and layout",
            more=True,
        ),
    ] = "NHWC"
    learning_rate: Annotated[
        float,
        Option("--learning-rate", "Learning rate", default="by model", min=0, theme="Optimizer"),
        Option(
            "--scale-learning-rate",
            "Scale the rate linearly with devices",
            words={"": {}},
            theme="Optimizer",
            more=True,
        ),
    ] = 0.005
    seed: Annotated[int, Option("--seed", "Random seed", min=0, theme="Model and steps", more=True)] = 1234
    optimization: Optimization = Optimization()
    precision: Precision = Precision()
    exchange: Exchange = Exchange()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    runtime: Runtime = Runtime()
    drills: Annotated[
        tuple[Drill, ...],
        read_drills,
        Option(
            "--drill",
            "Inject a fault, such as slow-gpu=1:0.85",
            detail="Faults: slow-gpu=1:0.85, slow-weights=1:0.8, slow-input=0.8, lost-gpu=1@200, nan@50, "
            "hang@100; @N: from counted step N on. Repeatable",
            value="FAULT[@N]",
            theme="Model and steps",
            repeated=True,
        ),
    ] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the hosts with devices."""
        return tuple(dict.fromkeys(device.rank for device in self.devices))

    @property
    def batches(self) -> tuple[int, ...]:
        """Examples per step of each device."""
        return batches_of(self.batch_size, len(self.devices))

    @property
    def variables_on(self) -> str | None:
        """Where the variables are, in the form of `--ps`, with GPU indices; None: on each device."""
        if self.ps_device is None:
            return "gpu:spread" if self.exchange.ps_spread else None
        return next(
            (f"gpu:{device.gpu}" for device in self.devices if device.device == self.ps_device), "cpu"
        )

    @property
    def own_devices(self) -> tuple[Device, ...]:
        """Devices that this process trains on: of its host if each host has a process, else all."""
        return tuple(device for device in self.devices if self.rank in (None, device.rank))

    @property
    def joint_batch(self) -> int:
        """Examples per step of all devices together."""
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
        """Return the spec for the remaining steps after `trained` ones; None if no steps remain.

        A new warm-up also trains, so that it is part of the remaining steps.
        """
        if self.lifecycle.until is None or not trained:
            return self
        left = self.lifecycle.until - trained
        if left < 1:
            return None
        warmup = min(self.num_warmup_batches, left - 1)
        return msgspec.structs.replace(self, num_batches=left - warmup, num_warmup_batches=warmup)
