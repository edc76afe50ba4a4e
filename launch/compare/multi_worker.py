"""Training by tf.distribute.MultiWorkerMirroredStrategy, with a process on each host for its devices.

The strategy joins the processes and adds up the gradients of all hosts. Losses, time marks, waits and
checkpoint values are exchanged by collectives between the hosts' CPUs.
"""

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.device_names import JOB, host_of
from gputopo.launch.supervise.watchdog import PATIENCE, Watchdog
from gputopo.launch.train.placement.devices import cannot_listen
from gputopo.launch.train.stepper import Emit, Observer, StepOutcome
from gputopo.values.run.events import HostExchange, Silent, Step
from gputopo.values.run.names import read
from gputopo.values.run.spec import RunSpec

Array = np.ndarray[Any, Any]
Tensor = Any
# Seconds for which a worker waits for others to join, and for a sign of life. Not measured; chosen to be long
# because the launchers detect failed hosts and end all workers, and a suspended job must be able to continue.
_PATIENCE_S = 24 * 3600
_instances = itertools.count(1)  # different collectives in a process must have different keys
_CLOCK_STEPS = 101  # steps whose median is the difference of two clocks; not measured
_LOOK_S = 1.0  # between two checks of whether this host has entered the step; not measured
SCOPE = "hosts/"  # of the ops that these collectives add to a step's graph
_GROUP = 1_000_000  # key of the group of hosts; tf.distribute counts its keys from 1


def started(spec: RunSpec) -> tf.distribute.Strategy:
    """Make the strategy of a spec, which waits for the processes of the other hosts.

    No device may have been used before. The hosts come from the spec; TF_CONFIG is ignored. Raises
    HardwareError if this host cannot listen on its address.
    """
    assert spec.strategy is not None
    assert spec.rank is not None
    gpus = len(spec.own_devices) if spec.backend == "gpu" else 0
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({JOB: [server.address for server in spec.servers]}),
        task_type=JOB,
        task_id=spec.rank,
        num_accelerators={"GPU": gpus} if gpus else {},  # the strategy does not look for GPUs itself
        rpc_layer="grpc",
    )
    reduction = read(spec.strategy).reduction or ("nccl" if gpus else "ring")
    implementation = tf.distribute.experimental.CommunicationImplementation(reduction.upper())
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    _set_timeouts(len(spec.servers))
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except tf.errors.UnknownError as error:
        raise cannot_listen(spec, spec.rank, error) from error


def _set_timeouts(hosts: int) -> None:
    """Configure TensorFlow's coordination service as the strategy does, but with longer time limits.

    The strategy has no option for them.
    """
    from tensorflow.python.distribute.collective_all_reduce_strategy import coordination_config_pb2
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{JOB}/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * _PATIENCE_S,
        heartbeat_timeout_in_ms=1000 * _PATIENCE_S,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name=JOB, num_tasks=hosts)],
    )


class Absence(Observer):
    """Reports that this host keeps the others waiting because its process does not enter the next step.

    The other hosts wait within the step. `is_there`: returns whether this host has entered it.
    """

    def __init__(self, is_there: Callable[[], bool], rank: int, emit: Emit) -> None:
        self._is_there, self._rank, self._emit = is_there, rank, emit
        self._watchdog = Watchdog(PATIENCE, time.monotonic())
        self._over = threading.Event()

        def watch() -> None:
            while not self._over.wait(_LOOK_S):
                self.look(time.monotonic())

        self._thread = threading.Thread(target=watch, name="absence", daemon=True)

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Record a step. Watching starts after the first step, which compiles."""
        self._watchdog.record_event(step, time.monotonic())
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._over.set()

    def look(self, now_s: float) -> None:
        """Report a late step if a report is due. `now_s`: reading of a monotonic clock."""
        sign = None if self._is_there() else self._watchdog.sign(now_s)
        if sign is not None:
            seconds, during = sign
            does = "has not begun the next step"
            self._emit(
                Silent(time_s=time.time(), rank=self._rank, seconds=seconds, during=during, process=does)
            )


class Hosts:
    """Collectives between the hosts' CPUs. Every host must run the same collectives in the same order.

    `ended`: this host's clock at the end of the latest collective. A collective ends on all hosts at the same
    time, so the median difference of their `ended` over some steps is the difference of their clocks.
    `is_in_step`: True from the time when this host's input for a step is ready until the step ends.
    """

    def __init__(self, spec: RunSpec) -> None:
        assert spec.rank is not None
        self._ranks = spec.ranks
        self._rank = spec.rank
        self._cpu = host_of(spec.own_devices[0].device)
        self._own = [device.tower for device in spec.own_devices]
        self._towers = len(spec.devices)
        self._apart: deque[Array] = deque(maxlen=_CLOCK_STEPS)
        self.is_in_step = False
        self.of_all_towers(tf.zeros((len(self._own), 1), tf.float64))
        self.ended = time.time()

    def enter(self, waited_s: float) -> Tensor:
        """Enter a step; return [seconds that this host waited for its input, `ended`] for the other hosts."""
        self.is_in_step = True
        return tf.constant([waited_s, self.ended], tf.float64)

    def of_all_towers(self, rows: Tensor) -> Tensor:
        """Return the rows [towers, ...] of all hosts, in a graph. `rows`: the rows of this host's towers.

        They are added to zeros, which is exact and keeps the order of the towers for any order of the hosts.
        """
        others = [[self._own[0], self._towers - self._own[-1] - 1], *[[0, 0]] * (len(rows.shape) - 1)]
        with tf.device(self._cpu), tf.name_scope(SCOPE):
            return tf.raw_ops.CollectiveReduceV2(
                input=tf.pad(rows, others),
                **self._keys(),
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="ring",
            )

    def adapted(self, outcome: StepOutcome, of_hosts: Array, ended: float) -> StepOutcome:
        """Return the outcome of a step with all marks on this host's clock, relative to its step's start.

        `of_hosts` [towers, 2]: for each tower, the seconds that its host waited for the input, and its
        `ended` in the previous step. `ended`: the time on this host when it had the rows of all hosts.
        """
        waited, before = of_hosts.T
        self._apart.append(before - self.ended)
        self.ended, self.is_in_step = ended, False
        marks = outcome.marks - np.median(self._apart, axis=0)[:, None]
        return dataclasses.replace(outcome, marks=marks, waited_s=float(waited.max()))

    def exchanged(self, outcome: StepOutcome, there_s: float) -> StepOutcome:
        """Add the exchange time: this host had the sums at `there_s`. The other hosts' times are unknown."""
        sums_s = max(float(there_s - outcome.marks[:, 2].max()), 0.0)
        of_hosts = {rank: sums_s if rank == self._rank else None for rank in self._ranks}
        exchange = tuple(HostExchange(rank=rank, sums_s=seconds) for rank, seconds in of_hosts.items())
        return dataclasses.replace(outcome, exchange=exchange)

    def observers(self, emit: Emit) -> list[Observer]:
        """Return the observer that reports a late host; none for rank 0, which its launcher watches."""
        return [Absence(lambda: self.is_in_step, self._rank, emit)] if self._rank else []

    def from_first(self, values: Iterable[Tensor]) -> list[Tensor]:
        """Return rank 0's values on every host, one collective per value, outside of a graph."""
        values_of_first = []
        for value in values:
            with tf.device(self._cpu):
                copied = tf.identity(value)
                if self._rank == 0:
                    send = tf.raw_ops.CollectiveBcastSendV2
                    values_of_first.append(send(input=copied, **self._keys(), communication_hint="ring"))
                else:
                    receive = tf.raw_ops.CollectiveBcastRecvV2
                    shape = tf.constant(copied.shape.as_list(), tf.int32)
                    values_of_first.append(
                        receive(shape=shape, T=copied.dtype, **self._keys(), communication_hint="ring")
                    )
        return values_of_first

    def _keys(self) -> dict[str, Tensor]:
        return {
            "group_size": tf.constant(len(self._ranks)),
            "group_key": tf.constant(_GROUP),
            "instance_key": tf.constant(next(_instances)),
        }
