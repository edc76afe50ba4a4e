"""Training on two hosts with TensorFlow's MultiWorkerMirroredStrategy: the peer of bench_hosts.

Run `python -m tests.benchmarks.multi_worker_peer MODEL BATCH STEPS` with TF_CONFIG in the environment. The
model, its arithmetic and its examples are gputopo's. Prints the images/sec of both hosts together, from the
median step.
"""

import statistics
import sys
import time

import tensorflow as tf

from gputopo.launch.models import models
from gputopo.launch.train.inputs.synthetic import SyntheticSource
from gputopo.launch.train.loss_scale import LossScale
from gputopo.launch.train.placement.variables import create, create_state
from gputopo.launch.train.towers import TowerMath
from gputopo.values.run.events import Device
from gputopo.values.run.spec import RunSpec

WARMUP = 3


def main(name: str, batch: int, steps: int) -> None:
    """Train and print the speed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring)
    )
    spec = RunSpec(model=name, devices=(Device(tower=0, device="/CPU:0"),), backend="cpu", batch_size=batch)
    model = models.build_model(name, spec)
    math = TowerMath(model, spec, SyntheticSource(model, spec), LossScale(spec))
    first = [variable.read_value() for variable in create(model, "/CPU:0", spec.seed)]
    still = [variable.read_value() for variable in create_state(model, "/CPU:0")]
    with strategy.scope():
        trained = [tf.Variable(value) for value in first]
        state = [
            tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
            for value in still
        ]

    def replica(number: tf.Tensor) -> tf.Tensor:
        weights = [tf.identity(one) for one in trained]
        loss, gradients, _ = math.forward_backward(0, number, weights, list(map(tf.identity, state)), ())
        context = tf.distribute.get_replica_context()
        totals = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for variable, total in zip(trained, totals, strict=True):
            variable.assign_sub(spec.learning_rate * total)
        return loss

    step = tf.function(lambda number: strategy.run(replica, (number,)))

    seconds = []
    for number in range(steps + WARMUP):
        began = time.perf_counter()
        step(tf.constant(number, tf.int64)).numpy()
        seconds.append(time.perf_counter() - began)
    print(2 * batch / statistics.median(seconds[WARMUP:]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
