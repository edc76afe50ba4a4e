"""Scripts in the shape of the public guides of Keras and TensorFlow train under `gputopo.launch.strategy`.

Each runs in a process of its own on two logical CPU devices, or, if it makes its data set before it calls
`strategy`, on the one that TensorFlow has made by then. All models have BatchNormalization or Dropout.
"""

from pathlib import Path

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

_BEGIN = """
import os, tempfile
import keras, numpy as np, tensorflow as tf
import gputopo.launch
from gputopo.launch import user_strategy
from gputopo.values.machine import Driver, Machine

user_strategy.read_machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
folder = tempfile.mkdtemp()
images = np.random.default_rng(1).random((12, 4, 4, 1), dtype="float32")
labels = np.arange(12) % 3
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def data():
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)

def build():
    return keras.Sequential([
        keras.Input((4, 4, 1)),
        keras.layers.Conv2D(2, 3),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3),
    ])

def compiled():
    model = build()
    model.compile(keras.optimizers.Adam(), entropy, metrics=["accuracy"])
    return model
"""

FIT_OF_A_DATA_SET_MADE_BEFORE = """
examples = data().cache().shuffle(12)
strategy = gputopo.launch.strategy(compiled)
with strategy.scope():
    model = compiled()
slower = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
weights = keras.callbacks.ModelCheckpoint(folder + "/{epoch}.weights.h5", save_weights_only=True)
model.fit(examples, epochs=2, callbacks=[slower, weights], verbose=0)
model.load_weights(folder + "/2.weights.h5")
print(strategy.num_replicas_in_sync, len(model.evaluate(examples, verbose=0)))
"""

LOOP_IN_A_FUNCTION = """
strategy = gputopo.launch.strategy(num_gpus=2)
batches = strategy.experimental_distribute_dataset(data())
with strategy.scope():
    each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    model, optimizer = build(), keras.optimizers.SGD(0.1)

def train_step(batch):
    x, y = batch
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        loss = tf.nn.compute_average_loss(each(y, outputs), global_batch_size=4)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(y, outputs)
    return loss

@tf.function
def train_epoch(batches):
    total = 0.0
    for batch in batches:
        of_replicas = strategy.run(train_step, args=(batch,))
        total += strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)
    return total

print(strategy.num_replicas_in_sync, float(train_epoch(batches)) > 0, optimizer.iterations.numpy())
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(FIT_OF_A_DATA_SET_MADE_BEFORE, "1 2", id="fit of a data set made before"),
        pytest.param(LOOP_IN_A_FUNCTION, "2 True 3", id="loop in a function"),
    ],
)
def test_a_script_in_the_shape_of_a_guide_trains(script: str, printed: str, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(_BEGIN + script)  # `tf.function` reads the source of loops
    done = run_program("-c", "import runpy, sys; runpy.run_path(sys.argv[1])", str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [printed]
    several = ["MirroredStrategy", "why:", "on", "on"]
    assert [line.split()[1] for line in done.stderr.splitlines() if line.startswith("gputopo: ")] == (
        ["OneDeviceStrategy", "why:"] if printed.startswith("1") else several
    )


FAILS = """
strategy = gputopo.launch.strategy(num_gpus=2)
with strategy.scope():
    model = compiled()
fitted = model.fit(images[:9], labels[:9], batch_size=4, epochs=2, verbose=0)
print([bool(np.isfinite(loss)) for loss in fitted.history["loss"]])
"""


def test_what_breaks_under_the_strategy_is_what_the_scope_warns_of(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(_BEGIN + FAILS)
    done = run_program("-c", "import runpy, sys; runpy.run_path(sys.argv[1])", str(file))
    assert "fit fails on fewer examples than devices, or its loss is NaN" in done.stderr
    assert done.returncode != 0 or "False" in done.stdout
