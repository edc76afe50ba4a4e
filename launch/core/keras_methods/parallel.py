"""From a serial Keras model to one that runs on several devices, and back."""

from collections.abc import Sequence

import keras

from gputopo.launch.core.keras_methods.recipes import RECIPES
from gputopo.launch.core.keras_methods.tower import Merge, Tower
from gputopo.launch.core.placement.devices import HOST, require
from gputopo.launch.spec import Method


def make_parallel(
    serial: keras.Model,
    method: Method,
    devices: Sequence[str],
    *,
    server: str = HOST,
    batch: int | None = None,
) -> keras.Model:
    """Give a Keras model that cuts its batch over `devices` (`/GPU:0`) as the method does.

    It shares the variables of `serial`, which stay where they are; `server` is that device. `batch`: the
    joint batch, None for any. Compile it with jit_compile=False. Raises HardwareError if TensorFlow has no
    such device, UsageError for fewer rows than devices.
    """
    for device in {*devices, server}:
        require(device)
    recipe = RECIPES[method]
    shape = serial.inputs[0].shape[1:]
    joint = keras.Input(shape, batch_size=batch)
    towers = [Tower(serial, recipe, tower, devices) for tower in range(len(devices))]
    outputs = Merge(server if recipe.merge_on == "server" else HOST)([tower(joint) for tower in towers])
    return keras.Model(joint, outputs, name=f"{method}_{len(devices)}")


def serial_model(parallel: keras.Model) -> keras.Model:
    """Give the serial model within a parallel one: to save and to load the same variables."""
    return next(layer.serial for layer in parallel.layers if isinstance(layer, Tower))


def towers_of(parallel: keras.Model) -> list[Tower]:
    """Give the towers in order."""
    return [layer for layer in parallel.layers if isinstance(layer, Tower)]
