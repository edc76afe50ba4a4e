"""What to run, frozen: the one value that goes from the launcher to the worker (`gputopo.runspec/1`)."""

from typing import Literal

import msgspec

from gputopo.events import Device
from gputopo.plan import AllReduce, VariableUpdate

Backend = Literal["cpu", "gpu"]
DataFormat = Literal["NCHW", "NHWC"]
GradReduce = Literal["mean", "sum"]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.runspec/1"):
    """One run of the built-in training core.

    `devices`: a tower each, in order. `ps_device` is the TensorFlow device that holds the variables
    (`/CPU:0`, `/GPU:1`), None where every tower has its own copy. `batch_size` is per device.
    `num_batches` None: as many as fit into `time_budget_s` seconds after the warm-up, `max_batches` at most.
    `extra_forward` (for trying out the anomaly report) adds forward passes to a tower: {1: 2} makes
    tower 1 run its forward pass two times more in each step. `max_clocks_mhz`: the most that each GPU of the
    machine can do, {0: {"graphics": 1911, "memory": 4004}}, to compare the clocks under load with.
    """

    model: str
    devices: tuple[Device, ...]
    backend: Backend
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    grad_reduce: GradReduce = "mean"
    batch_size: int
    num_batches: int | None = None
    time_budget_s: float | None = None
    max_batches: int = 100
    num_warmup_batches: int = 10
    data_format: DataFormat = "NHWC"
    learning_rate: float = 0.005
    seed: int = 1234
    extra_forward: dict[int, int] = {}
    max_clocks_mhz: dict[int, dict[str, int]] = {}
    rehearsal_of: str | None = None
    says: tuple[str, ...] = ()
