"""How batches that are made outside the step's graph get into it.

They are made, waited for and handed in before the step starts. An iterator that the graph itself reads works
too (a captured `get_next` in a wrap_function graph), but then waiting for data happens between a tower's time
marks and looks like slow arithmetic of the tower; so it is not done. A tensor that is handed in stays on the
device where it already is, so a batch that was copied ahead costs the step nothing.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.source import Fact, Shape
from gputopo.launch.train.placement.devices import HOST
from gputopo.values.errors import InputError

Tensor = Any
Batch = Sequence[Any]  # images and labels of tower 0, of tower 1, ...: arrays or tensors
Made = Callable[[int], Batch]
THREAD_NAME = "gputopo-input"
_PER_TOWER = 2  # images and labels
# What making a batch in Python may raise for bad data; all else is a fault of ours, or no memory.
FAILURES = (OSError, ValueError, ArithmeticError, LookupError)


class Maker(Protocol):
    """Makes the joint batch of each step, on the host."""

    def make(self, number: int) -> Batch:
        """Make the batch of step `number`. Raises StopIteration at the end of the data."""

    def close(self) -> None:
        """Let go of files and threads."""


@runtime_checkable
class ReadsOn(Protocol):
    """A maker that reads a data set, in which it can begin anywhere."""

    def go_on(self, number: int, image: int) -> None:
        """Let the batch of step `number` begin with that image."""


class Taken(Protocol):
    """Gives batches in the order of the steps."""

    def take(self, number: int) -> Batch:
        """Give the batch of step `number`; raises what making it raised."""

    def close(self) -> None:
        """Stop what makes batches ahead, and wait until it has stopped."""


class AtOnce:
    """Each batch is made when it is asked for."""

    def __init__(self, make: Made) -> None:
        self._make = make

    def take(self, number: int) -> Batch:
        """Make it now."""
        return self._make(number)

    def close(self) -> None:
        """Nothing runs."""


class Ahead:
    """A thread makes batches, `depth` of them ahead of the step that takes them, and no more.

    A failure waits in its batch's place and is raised by `take`, so that no step waits for a thread that is
    dead.
    """

    def __init__(self, make: Made, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"a depth of {depth} is not ahead")
        self._make = make
        self._depth = depth
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)
        self._pending: deque[Future[Batch]] = deque()
        self._first = 0  # number of the batch that is first in `_pending`

    def take(self, number: int) -> Batch:
        """Wait for the batch; the first one, or one out of order, is made from scratch."""
        if number != self._first:
            self._drop()
            self._first = number
        self._fill()
        batch = self._pending.popleft()
        self._first += 1
        self._fill()
        return batch.result()

    def close(self) -> None:
        """Wait for the batch in the making, drop all others."""
        self._drop()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        while len(self._pending) < self._depth:
            self._pending.append(self._thread.submit(self._make, self._first + len(self._pending)))

    def _drop(self) -> None:
        for batch in self._pending:
            batch.cancel()
        self._pending.clear()


class FedSource:
    """A source whose batches are handed to the graph."""

    def __init__(
        self,
        model: Shape,
        spec: RunSpec,
        maker: Maker,
        taken: Taken,
        facts: Mapping[str, Fact],
        *,
        made_format: str,
        images: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`made_format`: the data format that the maker gives; what differs is turned on the device.

        `images`: tells how many usable images the data set has, as far as is known by now.
        """
        self._devices = [device.device for device in spec.devices]
        self._maker = maker
        self._taken = taken
        self._facts = facts
        self._turn = made_format != spec.data_format
        height, width, channels = model.input_shape
        shape = (height, width, channels) if made_format == "NHWC" else (channels, height, width)
        self.signature: Sequence[Any] = [
            tf.TensorSpec((spec.batch_size, *shape), tf.float32),
            tf.TensorSpec((spec.batch_size,), tf.int64),
        ] * len(spec.devices)
        self._images = images
        self.waited_s = 0.0

    @property
    def images_per_epoch(self) -> int | None:
        """Usable images of the data set, as far as is known by now."""
        return self._images()

    @property
    def says(self) -> tuple[str, ...]:
        """What the maker has to say."""
        said: tuple[str, ...] = getattr(self._maker, "says", ())
        return said

    def describe(self) -> Mapping[str, Fact]:
        """Give the settings."""
        return self._facts

    def go_on(self, number: int, image: int) -> None:
        """Tell it to the maker, if that reads a data set."""
        if isinstance(self._maker, ReadsOn):
            self._maker.go_on(number, image)

    def feed(self, number: int) -> Sequence[Tensor]:
        """Take the batch and make tensors of what are arrays still."""
        began = time.perf_counter()
        try:
            batch = self._taken.take(number)
        except FAILURES as error:
            raise InputError(
                f"the batch of step {number} cannot be made: {type(error).__name__}: {error}",
                "see worker.log in the run's folder",
            ) from error
        fed = on_host(batch)
        self.waited_s = time.perf_counter() - began
        return fed

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Bring the tower's part to its device, if it is not there yet."""
        images, labels = fed[_PER_TOWER * tower : _PER_TOWER * (tower + 1)]
        with tf.device(self._devices[tower]):
            images, labels = tf.identity(images), tf.identity(labels)
            if self._turn:  # the maker's form is [b, h, w, c]
                images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
        return images, labels

    def close(self) -> None:
        """Stop the thread first, then what it reads from."""
        self._taken.close()
        self._maker.close()


def on_host(batch: Batch) -> list[Tensor]:
    """Make tensors of arrays, on the host; tensors stay where they are."""
    with tf.device(HOST):
        return [one if tf.is_tensor(one) else tf.constant(one) for one in batch]


class Staged(Ahead):
    """Batches that are on the towers' devices before their step begins."""

    def __init__(self, make: Made, devices: Sequence[str], depth: int) -> None:
        super().__init__(self._made_and_copied, depth)
        self._on_host = make
        self._devices = devices
        # A copy to a GPU returns when it is done: one thread for each, so that the links work side by side.
        self._copying = ThreadPoolExecutor(len(devices), thread_name_prefix=THREAD_NAME)

    def close(self) -> None:
        """Stop making first, then copying."""
        super().close()
        self._copying.shutdown(wait=True)

    def _made_and_copied(self, number: int) -> Batch:
        batch = on_host(self._on_host(number))
        parts = [batch[first : first + _PER_TOWER] for first in range(0, len(batch), _PER_TOWER)]
        copied = self._copying.map(_copied, parts, self._devices)
        return [one for part in copied for one in part]


def _copied(part: Batch, device: str) -> Batch:
    with tf.device(device):
        return [tf.identity(one) for one in part]


def readiness(spec: RunSpec, ahead: int) -> dict[str, Fact]:
    """Tell how many batches `staged` has ready, and on which devices."""
    on_devices = ", ".join(device.device for device in spec.devices)
    return {"ahead": max(ahead, 1), "ready_on": on_devices if ahead else HOST}


def staged(maker: Maker, spec: RunSpec, *, ahead: int) -> Taken:
    """Have batches ready on the devices, `ahead` of them; 0: on the host, made by a thread one ahead."""
    if ahead == 0:
        return Ahead(maker.make, 1)
    return Staged(maker.make, [device.device for device in spec.devices], ahead)
