"""A peer: the same models with tf.distribute.MirroredStrategy, used as in its documentation.

    python -m tests.benchmarks.mirrored_peer --model resnet20 --devices 2 --batch-size 64

By Keras `fit` on CPU devices, with synthetic examples that are made once. Prints a line for each counted
step and `total images/sec` as tf_cnn_benchmarks does: counted images over their wall time.
"""

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    """Train, and print the images/sec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--num-batches", type=int, default=10)
    parser.add_argument("--num-warmup-batches", type=int, default=3)
    arguments = parser.parse_args()
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * arguments.devices
    )
    strategy = tf.distribute.MirroredStrategy([f"/CPU:{number}" for number in range(arguments.devices)])
    seconds = _fit(strategy, arguments)
    images = arguments.batch_size * arguments.devices * arguments.num_batches
    print(f"total images/sec: {images / seconds:.2f}")


def _network(arguments: argparse.Namespace) -> Any:
    from gputopo.launch.models import build_model

    return build_model(arguments.model)


def _layer(network: Any, batch: int) -> Any:
    """Return the model as a Keras layer, as its users would write it."""
    import keras
    import tensorflow as tf

    from gputopo.launch.models import Stream, TowerRows

    class NetworkLayer(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.trained, self.untrained = (
                [
                    self.add_weight(
                        shape=spec.shape,
                        initializer=keras.initializers.RandomNormal(spec.start, spec.stddev),
                        trainable=trainable,
                        aggregation="mean",
                        name=spec.name.replace("/", "_"),
                    )
                    for spec in specs
                ]
                for specs, trainable in ((network.variables, True), (network.state, False))
            )

        def call(self, images: Any) -> Any:
            weights = [tf.convert_to_tensor(variable) for variable in self.trained]
            state = [tf.convert_to_tensor(variable) for variable in self.untrained]
            rows = TowerRows(0, batch, Stream(1, 4))
            done = network.forward(weights, state, images, rows, "NHWC")
            for variable, value in zip(self.untrained, done.state, strict=True):
                variable.assign(value)
            return done.logits

    return NetworkLayer()


def _examples(network: Any, count: int) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(1)
    images = random.standard_normal((count, *network.input_shape), dtype=np.float32)
    return images, random.integers(0, network.classes, count)


def _fit(strategy: Any, arguments: argparse.Namespace) -> float:
    import keras
    import tensorflow as tf

    network = _network(arguments)
    joint = arguments.batch_size * arguments.devices
    steps = arguments.num_warmup_batches + 1 + arguments.num_batches

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        began = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == arguments.num_warmup_batches:
                self.began = time.perf_counter()
            elif batch > arguments.num_warmup_batches:
                print("step", batch, flush=True)

    with strategy.scope():
        images = keras.Input(network.input_shape)
        model = keras.Model(images, _layer(network, arguments.batch_size)(images))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.005), loss=loss)
    made = _examples(network, joint)
    data = tf.data.Dataset.from_tensors(made).cache().repeat(steps).prefetch(2)
    clock = Clock()
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return time.perf_counter() - clock.began


if __name__ == "__main__":
    main()
