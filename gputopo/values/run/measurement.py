"""One measured throughput with the conditions under which it was measured, from any source.

A condition that the source does not report is None. None equals neither a reported value nor a default.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

COMPLETE: Final = "complete"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
Status = Literal["complete", "failed", "interrupted", "missing"]
BUSY: Final = "other programs were busy"  # start of the condition of a run next to other programs
PUBLISHED: Final = "published: "  # start of the source of a published figure
DRILL: Final = "a fault was injected on purpose"  # start of the condition of a run with drills


class DeviceFigure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a measurement: its own pace, its clocks under load, and what its run reported about it.

    `graphics_mhz`, `memory_mhz`: medians under load, or the clocks in a log.
    """

    number: int
    name: str | None = None
    images_per_sec: float | None = None
    graphics_mhz: float | None = None
    memory_mhz: float | None = None
    anomaly: str | None = None  # in words


class Predicted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The images/sec that a plan predicted. `verdict`: within, slower, faster or not compared."""

    images_per_sec: float
    low: float
    high: float
    verdict: str = "not compared"


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Images/sec of one training job on `n_gpus` devices together. Unknown values are None.

    `cpu`, `gpu`: models. `framework`: the program. `method`: how it uses several devices if this is not an
    option, such as "kuza55". `version`: of TensorFlow. `variable_update`, `ps_device`, `all_reduce`: as in
    the options of `gputopo run`.

    `images_per_sec`: the figure that the source reports as its result (total or mean); `median`: of its
    steps. `conditions`: other differences in words, such as a power cap or another process.
    """

    source: str  # the file, run folder or publication
    status: Status = "complete"  # missing: a cell that the source lists without a figure
    reason: str | None = None  # why there is no figure
    machine: str | None = None  # name of the machine
    cpu: str | None = None
    gpu: str | None = None
    gpus: tuple[int, ...] = ()  # indices of the GPUs in use, in tower order
    n_gpus: int = 1
    backend: str | None = None  # "gpu", or "cpu" for CPU devices
    model: str = "unknown"
    dataset: str | None = None
    data: str | None = None  # "synthetic", "synthetic-cpu" and "synthetic-python" (created there), "real"
    distortions: bool | None = None  # whether real examples were augmented
    task: str = "train"  # "train", "forward", "eval" or "input"
    batch_per_gpu: int | None = None
    precision: str | None = None
    data_format: str | None = None  # NCHW or NHWC
    xla: bool | None = None
    framework: str | None = None
    method: str | None = None
    version: str | None = None
    driver: str | None = None  # version of the GPUs' driver
    variable_update: str | None = None
    ps_device: str | None = None
    all_reduce: str | None = None
    unit: str = "images"  # the unit of the speeds; a user's program may count examples, steps, tokens
    images_per_sec: float | None = None
    median: float | None = None
    uncertainty: float | None = None  # standard error of the mean
    jitter: float | None = None  # as tf_cnn_benchmarks prints it
    steps: int | None = None  # number of counted steps
    devices: tuple[DeviceFigure, ...] = ()
    predicted: Predicted | None = None
    conditions: tuple[str, ...] = ()
    suspect: str | None = None  # why the figure is doubtful
    limited_by_input: str | None = None  # what the run reports about its input
    time_s: float | None = None  # when, in seconds since 1970
    digest: str | None = None  # of the file's content, if there is a file

    @property
    def is_measured(self) -> bool:
        """Whether there is a figure from a run that completed."""
        return self.status == COMPLETE and self.images_per_sec is not None

    @property
    def spoilt(self) -> str | None:
        """Why the figure is not reliable enough for a verdict, None if it is."""
        if self.steps == 1:
            return "one step was counted"
        return next((condition for condition in self.conditions if condition.startswith((BUSY, DRILL))), None)

    @property
    def is_drill(self) -> bool:
        """Whether a fault was injected on purpose. Such a run is neither pooled nor compared."""
        return any(condition.startswith(DRILL) for condition in self.conditions)

    @property
    def is_published(self) -> bool:
        """Whether it is a published figure, which cannot be measured again."""
        return self.source.startswith(PUBLISHED)

    @property
    def mode(self) -> str:
        """The exchange between devices in short: `parameter_server cpu`, `replicated nccl`."""
        return " ".join(filter(None, (self.variable_update, self.ps_device, self.all_reduce)))

    @property
    def program(self) -> str:
        """The program in short: `keras kuza55`."""
        return " ".join(filter(None, (self.framework, self.method)))

    @property
    def device_word(self) -> str:
        """The kind of its devices: `GPU` or `CPU device`."""
        return "CPU device" if self.backend == "cpu" else "GPU"

    @property
    def gpus_words(self) -> str:
        """The number of devices with their kind: `4 GPUs`, `1 CPU device`."""
        return f"{self.n_gpus} {self.device_word}{'' if self.n_gpus == 1 else 's'}"

    def value_words(self, name: str) -> str:
        """Return the value of a condition in words."""
        value = getattr(self, name)
        if value is None or value == ():
            return "not stated"
        if name == "xla":
            return "XLA" if value else "no XLA"
        if name == "distortions":
            return "distortions" if value else "no distortions"
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return f"{text}/sec" if name == "unit" else text

    def job_words(self, names: Sequence[str]) -> str:
        """Return these conditions in words: `resnet50, batch 64, replicated nccl`."""
        words: list[str] = []
        for name in names:
            value = getattr(self, name)
            if value in (None, False) or (name == "task" and value == "train"):
                continue
            if name in MODE[1:] and words:
                words[-1] += f" {self.value_words(name)}" if self.variable_update else ""
            else:
                words.append(_NAMED.get(name, "") + self.value_words(name))
        return ", ".join(words)


# Columns: the fields with a single value.
COLUMNS: tuple[str, ...] = tuple(
    name
    for name in Measurement.__struct_fields__
    if name not in ("devices", "predicted", "conditions", "digest")
)


# All conditions of a measurement, in the order in which differences are reported, with their names.
CONDITIONS: Mapping[str, str] = {
    "machine": "machine",
    "cpu": "CPU",
    "backend": "kind of device",
    "gpu": "GPU model",
    "n_gpus": "number of GPUs",
    "gpus": "set of GPUs",
    "framework": "program",
    "method": "method",
    "version": "version of TensorFlow",
    "task": "task",
    "unit": "unit of the speed",
    "model": "model",
    "dataset": "data set",
    "data": "data source",
    "distortions": "distortions",
    "batch_per_gpu": "batch per device",
    "precision": "precision",
    "data_format": "layout",
    "xla": "XLA",
    "variable_update": "variable update",
    "ps_device": "parameter server",
    "all_reduce": "reduction",
}
MODE = ("variable_update", "ps_device", "all_reduce")
# Conditions whose values are unclear without their names.
_NAMED = {"version": "TensorFlow ", "dataset": "data set ", "batch_per_gpu": "batch "}
