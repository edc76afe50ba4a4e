"""Seconds of a training step on logical CPU devices: computing, and what is done with every variable. Pure.

The devices of a process share its memory and the cores, so a copy between them moves nothing, no link limits
and nothing overlaps: a step is the sum of all work. What a mode adds to it is counted in two units, as the
training core builds it (`gputopo.launch.train`):

- times that a number of the variables is read or written: adding n tensors reads n and writes one, an update
  reads a variable and its gradient and writes the variable, joining chunks reads and writes them. A sum that
  is added to or joined next is still in a cache, and counts as far as it is stored;
- ops that each variable costs, whatever its size, and collectives, which wait for one another.

The speed of one device contains one update for every step of a device.
"""

import functools
from importlib import resources
from typing import NamedTuple

import msgspec

from gputopo.prediction.programs import FILE
from gputopo.prediction.step import Model, Placing
from gputopo.values.run.all_reduce import parse

UPDATE = 3  # times that an update reads or writes a number
_GROUPS = 2  # halves of the towers, where nothing says which are close (`hierarchical`)


class CpuDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of gputopo's core on logical CPU devices.

    - `memory_gb_per_s`: rate at which numbers of the variables are read or written;
    - `us_op`: microseconds of each op of a variable;
    - `us_collective`: microseconds of TensorFlow's collective of a variable, on whatever number of devices;
    - `at_once`: time that several devices compute together over what one after another would take;
    - `low`, `high`: range of measured over predicted images/sec.
    """

    name: str
    source: str
    memory_gb_per_s: float
    us_op: float
    us_collective: float
    at_once: float
    low: float
    high: float


class Work(NamedTuple):
    """What is done with the variables in a step: times that a number is read or written, and ops of each.

    `collectives`: of each variable, made one after another.
    """

    passes: float
    ops: float
    collectives: int = 0

    def seconds(self, model: Model, constants: CpuDevices) -> float:
        """Return how long it takes for all variables of a model."""
        moved = self.passes * model.bytes / (1e9 * constants.memory_gb_per_s)
        each_us = self.ops * constants.us_op + self.collectives * constants.us_collective
        return moved + 1e-6 * len(model.sizes) * each_us


class CpuStep(NamedTuple):
    """Seconds of a step by part: computing, gradients that are added, variables that are updated."""

    compute_s: float
    gradients_s: float
    updates_s: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.gradients_s + self.updates_s


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    cpu_devices: CpuDevices


@functools.cache
def cpu_devices() -> CpuDevices:
    """Return the constants, fitted to runs (`python -m gputopo.prediction.fit`)."""
    data = resources.files("gputopo.reference.data").joinpath(FILE).read_bytes()
    return msgspec.json.decode(data, type=_Table).cpu_devices


def added(placing: Placing, towers: int) -> Work:
    """Return what adding the gradients of the towers takes, and bringing the sums to all that need them."""
    if towers == 1 or placing.variable_update == "independent":
        return Work(0, 0)
    at_once = Work(towers + 1, 1)
    if placing.variable_update == "parameter_server":
        return at_once
    reduction = parse(placing.all_reduce or "copy")
    if reduction.name == "ring":
        return Work(2 * towers, 2 * towers - 1)
    if reduction.name == "collective":
        # RingReducer: input to output, each chunk received into a buffer before it is added, or taken.
        return Work(2 * towers + 7 * (towers - 1), 0, collectives=1)
    if reduction.name == "hierarchical":
        groups = min(_GROUPS, towers - 1)
        return Work(towers + groups, groups + 1)
    joined = 2 * towers if reduction.parts > 1 else 0
    return Work(at_once.passes + joined, at_once.ops + joined)


def updated(placing: Placing, towers: int) -> Work:
    """Return what updating the variables takes: once at a parameter server, else on every tower."""
    places = 1 if placing.variable_update == "parameter_server" else towers
    return Work(UPDATE * places, places)


def predict(model: Model, placing: Placing, towers: int, step_s: float, constants: CpuDevices) -> CpuStep:
    """Return the step of so many towers. `step_s`: seconds of one device's step alone, with its update."""
    alone = updated(placing, 1).seconds(model, constants)
    share = 1.0 if towers == 1 else constants.at_once
    return CpuStep(
        towers * share * max(0.0, step_s - alone),
        added(placing, towers).seconds(model, constants),
        updated(placing, towers).seconds(model, constants),
    )
