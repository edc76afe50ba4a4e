"""The placement that a spec names. One small class each: `direct` and, stale by one step, `delays`."""

import math
from collections.abc import Sequence

from gputopo.launch.models.model import Model
from gputopo.launch.spec.rules import require_exchange
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.placement.delays import RelaxedReplicas, StagedServer
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.direct import (
    AsynchronousServer,
    Independent,
    ParameterServer,
    Replicated,
)
from gputopo.launch.train.placement.interface import Placement
from gputopo.launch.train.reductions.methods import reducer_of
from gputopo.launch.train.reductions.partitioning import owners_of
from gputopo.launch.train.reductions.reducer import Reducer, self_test


def place(model: Model, spec: RunSpec) -> Placement:
    """Create the variables where the spec places them. A reduction is tested on its devices first.

    Raises UsageError for options that do not go together, HardwareError if a device is not there or the
    reduction adds up wrongly.
    """
    require_exchange(spec)
    devices = [device.device for device in spec.devices]
    for device in {*devices, *filter(None, [spec.ps_device])}:
        require(device)
    if spec.variable_update == "parameter_server":
        servers = servers_of(model, spec)
        if spec.exchange.staged:
            return StagedServer(model, devices, servers, spec.seed)
        kind = AsynchronousServer if spec.exchange.asynchronous else ParameterServer
        return kind(model, devices, servers, spec.seed)
    if spec.variable_update == "replicated":
        replicas = RelaxedReplicas if spec.exchange.relaxed else Replicated
        return replicas(model, devices, _tested_reducer(spec, devices), spec.seed)
    return Independent(model, devices, spec.seed)


def servers_of(model: Model, spec: RunSpec) -> list[tuple[str, ...]]:
    """Return the devices of each variable of a parameter server, by the spec: several have a part each."""
    if not spec.exchange.ps_spread:
        return [(spec.ps_device or HOST,)] * len(model.variables)
    sizes = [math.prod(variable.shape) for variable in model.variables]
    return owners_of(sizes, [device.device for device in spec.devices])


def _tested_reducer(spec: RunSpec, devices: Sequence[str]) -> Reducer:
    """Build the reduction with its wrappers, and test it."""
    name = spec.all_reduce or "copy"
    exchange = spec.exchange
    reducer = reducer_of(name, devices, exchange)
    self_test(reducer, name, devices, exchange.transfer)
    return reducer
