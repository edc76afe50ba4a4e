"""The job that was run, from the JSON form of its spec (`gputopo.runspec/1`), also of an older version.

What compares runs, describes one or learns from it reads this, not the JSON. None: not stated.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gputopo.values.run.batches import BatchSize, batches_of
from gputopo.values.run.events import Device
from gputopo.values.run.plan import AllReduce, VariableUpdate

PROGRAM = "program"  # the task of a run of the user's own program


class JobServer(msgspec.Struct, frozen=True):
    """A host of the run by its name, and the address of its TensorFlow server, port included."""

    host: str
    address: str


class JobPrecision(msgspec.Struct, frozen=True):
    """Compute type and loss scale; whether each tower is compiled with XLA."""

    compute: str | None = None
    xla: bool | None = None
    loss_scale: float | None = None
    auto_loss_scale: bool = False


class JobExchange(msgspec.Struct, frozen=True):
    """How variables and gradients travel, besides the mode; `groups`: of towers."""

    ps_spread: bool = False  # variables spread over the GPUs by bytes
    staged: bool = False
    relaxed: bool = False
    asynchronous: bool = False
    repacking: int = 0  # chunks
    small_bytes: int = 0
    small_group: int | None = None
    transfer: str | None = None
    groups: tuple[tuple[int, ...], ...] = ()


class JobData(msgspec.Struct, frozen=True):
    """Where examples come from: a folder, or `source`: made "gpu" once on the devices, "cpu", "python"."""

    folder: str | None = None
    source: str = "gpu"
    name: str | None = None
    distortions: bool = False
    feed: str | None = None
    cache: str | bool | None = None  # its form; older specs: whether records are cached
    resize: str | None = None
    private_threads: int | None = None
    prefetch: int | None = None

    @property
    def is_free(self) -> bool:
        """Whether the examples are made once on the devices, so that the input takes no time."""
        return self.folder is None and self.source == "gpu"

    @property
    def kind(self) -> str:
        """What a measurement calls it: "real", "synthetic", "synthetic-cpu", "synthetic-python"."""
        if self.folder:
            return "real"
        return f"synthetic-{self.source}" if self.source in ("cpu", "python") else "synthetic"


class JobOptimization(msgspec.Struct, frozen=True):
    """The optimizer."""

    optimizer: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What was run, on which devices and how; names and meanings as in `launch.spec.run_spec.RunSpec`."""

    model: str | None = None
    task: str | None = None  # train, forward, eval, input, program
    command: tuple[str, ...] = ()  # of a user's program
    backend: str | None = None
    devices: tuple[Device, ...] = ()
    servers: tuple[JobServer, ...] = ()  # of several hosts, by rank
    method: str | None = None
    strategy: str | None = None
    variable_update: VariableUpdate | None = None
    ps_device: str | None = None  # as TensorFlow names it
    all_reduce: AllReduce | None = None
    grad_reduce: str | None = None
    batch_size: BatchSize | None = None
    data_format: str | None = None
    precision: JobPrecision = JobPrecision()
    exchange: JobExchange = JobExchange()
    data: JobData | None = None
    optimization: JobOptimization = JobOptimization()
    runtime: dict[str, Any] = {}
    drills: tuple[dict[str, Any], ...] = ()  # faults injected on purpose, see `drill.drills_of`
    rehearsal_of: str | None = None
    asked: dict[str, Any] = {}

    @property
    def trains(self) -> bool:
        """Whether it trains, by the core or by a strategy or method."""
        return self.task in (None, "train")

    @property
    def has_free_input(self) -> bool:
        """Whether its input takes no time, as far as the spec states it."""
        return self.data is None or self.data.is_free

    @property
    def variables_on(self) -> str | None:
        """Where the variables were, as `--ps` names it: GPUs by their index; None: on each device."""
        if self.ps_device is None:
            return "gpu:spread" if self.exchange.ps_spread else None
        return next((f"gpu:{one.gpu}" for one in self.devices if one.device == self.ps_device), "cpu")

    @property
    def batches(self) -> tuple[int, ...]:
        """Examples of each device; none where the spec does not have them."""
        if self.batch_size is None:
            return ()
        found = batches_of(self.batch_size, len(self.devices))
        return found if len(found) == len(self.devices) else ()


def job_of(spec: Mapping[str, Any]) -> Job:
    """Return the job of a spec, which is free-form JSON in a file: nothing is known of what is not a spec."""
    try:
        return msgspec.convert(spec, Job, strict=False)
    except msgspec.ValidationError:
        return Job()


OWN_TRAINER = "own towers"  # in result.json
