"""Train parallel Keras models by `fit` in its own process; FOLDER/found.json has the results.

The batch of 14 rows does not divide by 3. Every case starts from the same serial model.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

ROWS = 14
TOWERS = 3
METHODS = ("kuza55", "fchollet")  # what sets avolkov1 apart needs no rows that do not divide


def main(folder: str) -> None:
    tf.config.set_soft_device_placement(False)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * TOWERS)
    found: dict[str, Any] = {"serial": _fit(_serial(), None), "one tower": _fit(_serial(), "avolkov1", 1)}
    found |= {method: _fit(_serial(), method) for method in METHODS}
    found["statistics"] = _statistics()
    found["dropped"] = _dropped()
    found["saved"] = _saved(Path(folder))
    (Path(folder) / "found.json").write_text(json.dumps(found))


def _serial(*, norm: bool = False) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    inner = [layers.BatchNormalization(momentum=0.5)] if norm else []
    with tf.device("/CPU:0"):
        return keras.Sequential(
            [
                keras.Input((6, 5, 2)),
                layers.Conv2D(3, 3, activity_regularizer="l2", kernel_regularizer="l2"),
                *inner,
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(4),
            ]
        )


def _parallel(serial: Any, method: Any, towers: int, batch: int = ROWS) -> Any:
    from gputopo.launch.compare.keras_step import make_parallel

    return make_parallel(serial, method, [f"/CPU:{tower}" for tower in range(towers)], batch=batch)


def _rows() -> tuple[Any, Any]:
    draw = np.random.default_rng(5)
    return draw.normal(size=(ROWS, 6, 5, 2)).astype("float32"), draw.integers(0, 4, ROWS)


def _fit(serial: Any, method: str | None, towers: int = TOWERS) -> dict[str, Any]:
    import keras

    model = serial if method is None else _parallel(serial, method, towers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, 0.9), loss, metrics=[loss], jit_compile=False)
    images, labels = _rows()
    reported = model.fit(images, labels, batch_size=ROWS, epochs=4, shuffle=False, verbose=0)
    return {
        "losses": reported.history["loss"],
        "of labels": next(of for name, of in reported.history.items() if name != "loss"),
        "weights": [value.ravel().tolist() for value in serial.get_weights()],
        "count": len(model.weights),
    }


def _statistics() -> dict[str, Any]:
    """The moving mean after a step of two towers, and that of tower 0's rows alone."""
    images, _ = _rows()
    serial = _serial(norm=True)
    model = _parallel(serial, "kuza55", 2)
    tf.function(lambda: model(images, training=True), autograph=False)()
    alone = _serial(norm=True)
    alone(images[: ROWS // 2], training=True)
    kept = dict(zip([one.name for one in serial.weights], serial.get_weights(), strict=True))
    wanted = dict(zip([one.name for one in alone.weights], alone.get_weights(), strict=True))
    return {"found": kept["moving_mean"].tolist(), "wanted": wanted["moving_mean"].tolist()}


def _dropped() -> list[list[list[int]]]:
    """Which of 64 ones are kept: [step][tower][kept]."""
    import keras

    with tf.device("/CPU:0"):
        serial = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=1)])
    model = _parallel(serial, "kuza55", 2, batch=2)
    step = tf.function(lambda: model(tf.ones((2, 64)), training=True), autograph=False)
    return [[np.flatnonzero(row).tolist() for row in step().numpy()] for _ in range(2)]


def _saved(folder: Path) -> dict[str, float]:
    """How far outputs are apart after weights went from a parallel model to a serial one, and back."""
    import keras

    from gputopo.launch.compare.keras_step import towers_of

    images, _ = _rows()
    weights, whole = folder / "own.weights.h5", folder / "own.keras"

    def apart(one: Any, other: Any) -> float:
        return float(abs(one(images).numpy() - other(images).numpy()).max())

    parallel = _parallel(_serial(norm=True), "avolkov1", TOWERS)
    serial = towers_of(parallel)[0].serial
    serial.set_weights([value + 0.25 for value in serial.get_weights()])
    serial.save_weights(weights)
    serial.save(whole)
    fresh = _serial(norm=True)
    found = {"before": apart(fresh, parallel)}
    fresh.load_weights(weights)
    found["into serial"] = apart(fresh, parallel)
    found["whole"] = apart(keras.models.load_model(whole), parallel)
    fresh.set_weights([value - 0.5 for value in fresh.get_weights()])
    fresh.save_weights(weights)
    found["changed"] = apart(fresh, parallel)
    serial.load_weights(weights)
    found["from serial"] = apart(fresh, parallel)
    parallel.set_weights([value * 2.0 for value in fresh.get_weights()])  # the list itself is the same
    fresh.set_weights(parallel.get_weights())
    found["as a list"] = apart(fresh, parallel)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
