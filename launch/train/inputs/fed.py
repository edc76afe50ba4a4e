"""Batches made on the host and fed into the graph: on demand, made ahead, or copied to the devices ahead."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from gputopo.launch.train.inputs.source import Fact, InputSource, Shape, Tensor, own_rows
from gputopo.launch.train.placement.devices import HOST
from gputopo.values.run.spec import RunSpec

Batch = Sequence[Any]  # images and labels of tower 0, of tower 1, ...: arrays or tensors
THREAD_NAME = "gputopo-input"
_PER_TOWER = 2  # images and labels


class Maker:
    """Makes the joint batch of each step, on the host."""

    @property
    def notices(self) -> tuple[str, ...]:
        """See `InputSource`."""
        return ()

    def make(self, number: int) -> Batch:
        """Make the batch of step `number`. Raises StopIteration at the end of the data."""
        raise NotImplementedError

    def start_at(self, number: int, image: int) -> None:
        """Start the batch of step `number` with image `image` of the data set."""

    def close(self) -> None:
        """Release files and threads."""


class Batches:
    """The batches of a maker in the order of the steps. Each is made when it is requested."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self._make = make

    def take(self, number: int) -> Batch:
        """Return the batch of step `number`. Raises the exception that was raised while making it."""
        return self._make(number)

    def close(self) -> None:
        """Stop making batches ahead, and wait until this has stopped."""


class Prefetched(Batches):
    """A thread makes up to `depth` batches ahead of the step that takes them.

    An exception is stored in place of its batch and raised by `take`, so that no step waits for a dead
    thread.
    """

    def __init__(self, make: Callable[[int], Batch], depth: int) -> None:
        assert depth > 0
        super().__init__(make)
        self._depth = depth
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)
        self._pending: deque[Future[Batch]] = deque()
        self._first = 0  # number of the first batch in `_pending`

    def take(self, number: int) -> Batch:
        """Wait for the batch. The first batch and a batch out of order are not made ahead."""
        if number != self._first:
            self._drop()
            self._first = number
        self._fill()
        batch = self._pending.popleft()
        self._first += 1
        self._fill()
        return batch.result()

    def close(self) -> None:
        """Wait for the batch that is being made, and drop all others."""
        self._drop()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        while len(self._pending) < self._depth:
            self._pending.append(self._thread.submit(self._make, self._first + len(self._pending)))

    def _drop(self) -> None:
        for batch in self._pending:
            batch.cancel()
        self._pending.clear()


class Staged(Prefetched):
    """Batches that are on the towers' devices before their step begins."""

    def __init__(self, make: Callable[[int], Batch], devices: Sequence[str], depth: int) -> None:
        def copied(part: Batch, device: str) -> Batch:
            with tf.device(device):
                return [tf.identity(tensor) for tensor in part]

        def made_and_copied(number: int) -> Batch:
            batch = on_host(make(number))
            parts = [batch[first : first + _PER_TOWER] for first in range(0, len(batch), _PER_TOWER)]
            return [tensor for part in self._copying.map(copied, parts, devices) for tensor in part]

        super().__init__(made_and_copied, depth)
        # A copy to a GPU blocks until it is done: one thread per device uses the links in parallel.
        self._copying = ThreadPoolExecutor(len(devices), thread_name_prefix=THREAD_NAME)

    def close(self) -> None:
        """Stop making batches first, then copying."""
        super().close()
        self._copying.shutdown(wait=True)


def staged(maker: Maker, spec: RunSpec, *, ahead: int) -> Batches:
    """Prefetch `ahead` batches to the devices; 0: one batch ahead, on the host."""
    if ahead == 0:
        return Prefetched(maker.make, 1)
    return Staged(maker.make, [device.device for device in spec.own_devices], ahead)


def readiness(spec: RunSpec, ahead: int) -> dict[str, Fact]:
    """Return how many batches `staged` prefetches, and on which devices."""
    on_devices = ", ".join(device.device for device in spec.own_devices)
    return {"ahead": max(ahead, 1), "ready_on": on_devices if ahead else HOST}


class FedSource(InputSource):
    """A source whose batches are fed into the graph."""

    def __init__(
        self,
        model: Shape,
        spec: RunSpec,
        maker: Maker,
        batches: Batches,
        facts: Mapping[str, Fact],
        *,
        made_format: str,
        images: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Set up the feed. `made_format`: the maker's data format, transposed on the device if necessary.

        `images`: returns the number of usable images of the data set, as far as known.
        """
        self._devices = [device.device for device in spec.own_devices]
        self._first = spec.own_devices[0].tower
        self._maker = maker
        self._batches = batches
        self._facts = facts
        self._transposes = made_format != spec.data_format
        height, width, channels = model.input_shape
        shape = (height, width, channels) if made_format == "NHWC" else (channels, height, width)
        self.signature = signature_of(spec, shape)
        self._images = images

    @property
    def images_per_epoch(self) -> int | None:
        """Number of usable images of the data set, as far as known."""
        return self._images()

    @property
    def notices(self) -> tuple[str, ...]:
        """The maker's notices."""
        return self._maker.notices

    def describe(self) -> Mapping[str, Fact]:
        """Return the settings."""
        return self._facts

    def start_at(self, number: int, image: int) -> None:
        """Tell the maker to start at an image."""
        self._maker.start_at(number, image)

    def feed(self, number: int) -> Sequence[Tensor]:
        """Return the batch of a step as tensors."""
        began = time.perf_counter()
        fed = on_host(self._batches.take(number))
        self.waited_s = time.perf_counter() - began
        return fed

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Copy the tower's part to its device, if it is not there yet."""
        place = tower - self._first
        images, labels = fed[_PER_TOWER * place : _PER_TOWER * (place + 1)]
        with tf.device(self._devices[place]):
            images, labels = tf.identity(images), tf.identity(labels)
            if self._transposes:  # the maker's form is [b, h, w, c]
                images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
        return images, labels

    def close(self) -> None:
        """Stop the thread first, then close the maker that it calls."""
        self._batches.close()
        self._maker.close()


def signature_of(spec: RunSpec, shape: Sequence[int]) -> list[Any]:
    """Return the TensorSpecs for this process's part of a joint batch: images and labels of each tower."""
    signature = []
    for rows in own_rows(spec):
        signature += [tf.TensorSpec((rows.batch, *shape), tf.float32), tf.TensorSpec((rows.batch,), tf.int64)]
    return signature


def on_host(batch: Batch) -> list[Tensor]:
    """Convert arrays to tensors on the host; leave tensors on their device."""
    with tf.device(HOST):
        return [tensor if tf.is_tensor(tensor) else tf.constant(tensor) for tensor in batch]
