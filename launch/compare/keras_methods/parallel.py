"""From a serial Keras model to one that runs on several devices, and back."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from gputopo.launch.compare.keras_methods.recipes import RECIPES, rows_of_towers
from gputopo.launch.compare.keras_methods.tower import Merge, Statistics, Tower
from gputopo.launch.models.keras.shapes import shapes_of
from gputopo.launch.spec.run_spec import Method
from gputopo.launch.train.placement.devices import HOST, require

Tensor = Any


def make_parallel(
    serial: keras.Model,
    method: Method,
    devices: Sequence[str],
    *,
    server: str = HOST,
    batch: int | None = None,
    xla: bool = False,
    ending: Callable[[Tensor], Tensor] | None = None,
) -> keras.Model:
    """Return a Keras model that cuts its batch over `devices` (`/GPU:0`) as the method does.

    It shares the variables of `serial`, which stay where they are; `server` is that device. `batch`: the
    joint batch, None for any. `xla`: each tower is compiled by itself, both ways. `ending` changes a tower's
    outputs on its device and keeps their shape. Compile the model with jit_compile=False: a cluster has one
    device. Raises HardwareError if TensorFlow has no such device, UsageError for fewer rows than devices, or
    a serial model that has not one input and one output of a known shape.
    """
    for device in {*devices, server}:
        require(device)
    recipe = RECIPES[method]
    if batch is not None:
        rows_of_towers(batch, len(devices), recipe.cut)
    shape, classes = shapes_of(serial, serial.name)
    statistics = Statistics()
    joint = keras.Input(shape, batch_size=batch)
    towers = [
        Tower(serial, recipe, tower, devices, statistics, classes=classes, xla=xla, ending=ending)
        for tower in range(len(devices))
    ]
    merge = Merge(server if recipe.merge_on == "server" else HOST, serial, statistics)
    return keras.Model(joint, merge([tower(joint) for tower in towers]), name=f"{method}_{len(devices)}")


def serial_model(parallel: keras.Model) -> keras.Model:
    """Return the serial model within a parallel one: to save and to load the same variables."""
    return towers_of(parallel)[0].serial


def towers_of(parallel: keras.Model) -> list[Tower]:
    """Return the towers in order."""
    return [layer for layer in parallel.layers if isinstance(layer, Tower)]
