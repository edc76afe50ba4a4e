"""Training on two hosts with TensorFlow's MultiWorkerMirroredStrategy: the peer of bench_hosts.

Run `python -m tests.benchmarks.multi_worker_peer MODEL BATCH STEPS` with TF_CONFIG in the environment. The
model, its arithmetic and its examples are gputopo's. Prints the images/sec of both hosts together, from the
median step.
"""

import statistics
import sys
import time

import tensorflow as tf

from gputopo.launch.models import Stream, TowerRows, build_model
from gputopo.launch.train.inputs import examples
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
    model = build_model(name, spec)
    rows = TowerRows(0, batch, Stream(spec.seed, 4))
    images, labels = examples(model, rows, seed=spec.seed, data_format="NHWC")
    with strategy.scope():
        trained = [tf.Variable(tf.random.normal(one.shape, one.start, one.stddev)) for one in model.variables]
        state = [
            tf.Variable(
                tf.fill(one.shape, one.start),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for one in model.state
        ]

    def replica() -> tf.Tensor:
        weights = [tf.identity(one) for one in trained]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = model.forward(weights, list(map(tf.identity, state)), images, rows, "NHWC").logits
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, weights)
        context = tf.distribute.get_replica_context()
        totals = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for variable, total in zip(trained, totals, strict=True):
            variable.assign_sub(spec.learning_rate * total)
        return loss

    step = tf.function(lambda: strategy.run(replica))

    seconds = []
    for _ in range(steps + WARMUP):
        began = time.perf_counter()
        step().numpy()
        seconds.append(time.perf_counter() - began)
    print(2 * batch / statistics.median(seconds[WARMUP:]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
