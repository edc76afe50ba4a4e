"""Training under a tf.distribute strategy with gputopo's loop instead of fit, to compare with its own towers.

The strategy creates the variables, runs the replicas and adds up their gradients. The arithmetic, the rows of
the batch and the optimizer are the same as for gputopo's own towers, so that losses agree to rounding.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.compare.multi_worker import SCOPE, Hosts
from gputopo.launch.device_names import host_of
from gputopo.launch.models.model import Model
from gputopo.launch.spec.rules import remarks
from gputopo.launch.train.graph_step import OF_HOST, GraphStep
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.marks import clock
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.algorithms import self_test
from gputopo.launch.train.placement.devices import HOST, home, require_device
from gputopo.launch.train.placement.variables import VariableSet, create, create_state, write_state
from gputopo.launch.train.stepper import StepOutcome, unequal_batches
from gputopo.launch.train.towers import TowerMath
from gputopo.values.run.names import MULTI_WORKER, StrategyName, read
from gputopo.values.run.spec import RunSpec

Tensor = Any
# The ops by which devices reduce together in tf.distribute; without such an op it copies and adds.
_COLLECTIVES = {"CollectiveReduceV2", "CollectiveReduce", "NcclAllReduce"}
_NAMES = {MULTI_WORKER: "MultiWorkerMirroredStrategy"}  # the class name if it differs
_OPERATIONS = {
    "nccl": "NcclAllReduce",
    "hierarchical": "HierarchicalCopyAllReduce",
    "one": "ReductionToOneDevice",
}


def strategy_of(asked: StrategyName, devices: Sequence[str], server: str) -> tf.distribute.Strategy:
    """Make a strategy over devices (`/GPU:0`). `server`: device of the variables in a central strategy."""
    if asked.kind == "one-device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    if asked.kind == "central":
        return tf.distribute.experimental.CentralStorageStrategy(list(devices), server)
    operations = None
    if asked.reduction is not None:
        operations = getattr(tf.distribute, _OPERATIONS[asked.reduction])()
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=operations)


class StrategyStep(GraphStep):
    """Takes the steps of `--strategy`. The first replica's moving statistics are used, as in own towers.

    `strategy`: the strategy of several hosts, each with a process for its own devices (see `multi_worker`);
    each device then has its own statistics. None: make the strategy here.

    Raises UsageError if an option cannot be combined with the strategy. Raises HardwareError if a device is
    not there or the strategy's reduction returns wrong sums.
    """

    def __init__(self, model: Model, spec: RunSpec, strategy: tf.distribute.Strategy | None = None) -> None:
        assert spec.strategy is not None
        self._asked = read(spec.strategy)
        self.spec = spec
        self._devices = [device.device for device in spec.own_devices]
        self._first = spec.own_devices[0].tower
        self._server = (spec.ps_device or HOST) if self._asked.kind == "central" else None
        for device in {*self._devices, self._server or host_of(self._devices[0])}:
            require_device(device)
        self._strategy = strategy or strategy_of(self._asked, self._devices, self._server or HOST)
        hosts = None if strategy is None else Hosts(spec)
        with tf.device(HOST):
            first = [variable.read_value() for variable in create(model, HOST, spec.seed)]
            still = [variable.read_value() for variable in create_state(model, HOST)]
        with self._strategy.scope():
            self._trained = [
                tf.Variable(value, name=variable.name, aggregation=tf.VariableAggregation.SUM)
                for variable, value in zip(model.variables, first, strict=True)
            ]
            # A central strategy requires an aggregation if replicas may assign; these replicas do not.
            self._moving = [
                tf.Variable(
                    value,
                    trainable=False,
                    name=variable.name,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for variable, value in zip(model.state, still, strict=True)
            ]
        self.placement = VariableSet(self._places(self._trained), self._places(self._moving))
        self_test(
            self._reduce,
            f"--strategy {spec.strategy}",
            self._devices,
            first=self._first,
            towers=len(spec.devices),
        )
        super().__init__(model, spec, source_of(model, spec), hosts)
        self.optimize(self.placement)
        self.math = TowerMath(model, spec, self.source, self.scale)
        self.graph = self.compiled(self._build, OF_HOST)
        self.says += (*remarks(spec), self._ran())

    def __call__(self, number: int) -> StepOutcome:
        """Take one step."""
        fed = self.source.feed(number)
        made = self.graph(tf.constant(number, tf.int64), self.of_host(), *fed)
        losses, begin, marks, of_hosts, clocks, _ = made
        began = begin.numpy()
        outcome = StepOutcome(losses.numpy(), marks.numpy() - began, examples=unequal_batches(self.spec))
        if self.hosts is None:
            return outcome
        there, ended = clocks.numpy().tolist()
        return self.hosts.exchanged(self.hosts.adapted(outcome, of_hosts.numpy(), ended), there - began)

    def check_variables(self) -> dict[str, int]:
        """Check that every replica has its copies, or the server has all; return the bytes by device."""
        devices = [self._server] if self._server else self._devices
        return checking.check_variables(
            (variables, [device] * len(variables))
            for sets in (self.placement.places, self.placement.states)
            for variables, device in zip(sets, devices, strict=True)
        )

    def _build(self, number: Tensor, of_host: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        with home():
            return self._outcome(number, of_host, fed)

    def _outcome(self, number: Tensor, of_host: Tensor, fed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        begin = clock([])

        def replica() -> tuple[Any, ...]:
            tower = _tower()
            made, _, state, marks = self.passed(tower, number, fed, [begin], scope=f"tower_{tower}/")
            loss, *gradients = made
            return loss, gradients, state, marks

        local = self._strategy.experimental_local_results
        with self._strategy.scope():
            losses, gradients, states, marks = self._strategy.run(replica)
            marks = local(marks)
            with tf.control_dependencies(marks):
                # Gradients [variable], each of all replicas -> totals [variable][place]
                pairs = list(zip(gradients, self._trained, strict=True))
                sums = self._strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
                totals = [local(total) for total in sums]
                # The time when all sums were on this host's devices; if it is the only one, do not wait.
                places = zip(zip(*totals, strict=True), self._devices, strict=True)
                there = clock(
                    [self.marks.arrived(total, device) for total, device in places] if self.hosts else []
                )
                updates = self.updater.update(list(zip(*totals, strict=True)), number)
                first = [local(state)[0] for state in states]
                accepted = self.updater.accepted([first] * len(self.placement.states))
                updates += write_state(self.placement, accepted)
        with tf.device(HOST):
            # [towers, 6]: each tower's loss and marks, and its host's values from `enter`. They are exchanged
            # while gradients are.
            rows = tf.stack(
                [
                    tf.concat([[tf.cast(loss, tf.float64)], of_tower, of_host], axis=0)
                    for loss, of_tower in zip(local(losses), marks, strict=True)
                ]
            )
            rows = rows if self.hosts is None else self.hosts.of_all_towers(rows)
            clocks = tf.stack([there, clock([rows])])
            with tf.control_dependencies(updates):
                loss, of_marks, of_hosts = map(tf.identity, tf.split(rows, (1, 3, 2), axis=1))
                probes = tf.add_n(self.marks.probes)
            losses = tf.cast(tf.reshape(loss, (-1,)), tf.float32)
            return losses, tf.identity(begin), of_marks, of_hosts, clocks, probes

    def read(self, place: int, device: str) -> tuple[list[Tensor], list[Tensor]]:
        """Read a replica's own copies, or copy the server's variables to its device."""
        return self._read(self._trained, device), self._read(self._moving, device)

    def _read(self, variables: Sequence[Any], device: str) -> list[Tensor]:
        values = []
        for variable in variables:
            with tf.device(self._server or device):
                value = variable.read_value()
            with tf.device(device):
                values.append(tf.identity(value))
        return values

    def _reduce(self, values: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce by the strategy, as a `Reducer`, for the test of the sums."""
        with self._strategy.scope():
            sums = []
            for of_towers in values:
                per_replica = self._strategy.run(lambda tensors=of_towers: tensors[_tower() - self._first])
                total = self._strategy.extended.reduce_to(
                    tf.distribute.ReduceOp.SUM, per_replica, self._trained[0]
                )
                sums.append(list(self._strategy.experimental_local_results(total)))
        return [of_places if len(of_places) > 1 else of_places * len(self._devices) for of_places in sums]

    def _places(self, variables: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """Return the plain variables of the strategy's distributed variables: [place][variable]."""
        count = 1 if self._server else len(self._devices)
        local = [self._strategy.experimental_local_results(variable) for variable in variables]
        return tuple([of_one[place] for of_one in local] for place in range(count))

    def _ran(self) -> str:
        """Return a description of the reduction that runs, read from the graph.

        TensorFlow chooses the reduction if the user does not.
        """
        name = _NAMES.get(self._asked.kind) or type(self._strategy).__name__.removesuffix("V1")
        nodes = (node for node in self.graph_nodes() if not node.name.startswith(SCOPE))
        reductions = set()
        for node in nodes:
            if node.op in _COLLECTIVES:
                reductions.add((node.op, str(node.attr["communication_hint"].s.decode())))
        ran = " and ".join(sorted(op + (f" ({hint})" if hint else "") for op, hint in reductions))
        if self._asked.kind in ("central", "one-device"):
            what = "one set of variables"
        elif len(self.spec.devices) == 1:
            what = "nothing to reduce on one device"
        elif self.hosts is not None:
            what = f"gradients reduced over {len(self.spec.ranks)} hosts by {ran}"
        else:
            by = _OPERATIONS.get(self._asked.reduction or "", "TensorFlow's choice")
            what = f"gradients reduced by {by}: {ran or 'copies that are added up'}"
        return f"Strategy {self.spec.strategy}: tf.distribute {name}, {what}, in gputopo's training loop."


def _tower() -> int:
    """Return the index of the replica that is being built."""
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(number))
