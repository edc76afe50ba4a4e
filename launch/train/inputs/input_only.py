"""The input without a model: images per second that reach the devices."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.inputs.source import Fact, Shape, Source, noticing
from gputopo.launch.train.loop import is_warm, longest_warmup
from gputopo.launch.train.placement.devices import HOST, home
from gputopo.launch.train.training import NO_START, Start
from gputopo.values.run.events import Event, Noticed, Step, TowerMarks, WarmupDone

Tensor = Any
Emit = Callable[[Event], None]


def measure_input(model: Shape, spec: RunSpec, emit: Emit, *, start: Start = NO_START) -> Mapping[str, Fact]:
    """Take batches as training would and copy them to the devices; return the input's description.

    The events are those of training. A Step has no loss; in its marks `weights_s` is the time of waiting for
    the batch on the host, and `compute_s` the time from then until it was on the tower's device. The
    step ends when all towers have theirs. Raises what the input raises; the end of the data ends the run.
    """
    began = time.perf_counter()
    with noticing(source_of(model, spec), emit) as source:
        arrival = Arrival(source, spec)
        start.emit_built(source, emit, began)
        images = _run(arrival, spec, emit) * spec.joint_batch
        for notice in _read_again(source, spec, images):
            emit(Noticed(time_s=time.time(), says=notice))
        return source.describe()


class Arrival:
    """A graph that only copies each tower's batch to its device."""

    def __init__(self, source: Source, spec: RunSpec) -> None:
        self._source = source
        self._devices = [device.device for device in spec.devices]
        self._graph = tf.compat.v1.wrap_function(self._build, list(source.signature))

    def __call__(self, number: int) -> np.ndarray[Any, Any]:
        """Take the batch of a step: [towers, 2] seconds of waiting for it, and until it had arrived.

        Raises StopIteration at the end of the data.
        """
        began = time.time()
        fed = self._source.feed(number)
        ready = time.time()
        marks, _ = self._graph(*fed)
        arrived = np.maximum(marks.numpy() - ready, 0.0)
        return np.stack([np.full_like(arrived, ready - began), arrived], axis=1)

    def _build(self, *fed: Tensor) -> tuple[Tensor, Tensor]:
        with home():
            return self._copied(fed)

    def _copied(self, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        marks, probes = [], []
        for tower, device in enumerate(self._devices):
            with tf.name_scope(f"tower_{tower}"):
                images, labels = self._source.read(tower, fed)
                with tf.device(device), tf.control_dependencies([images, labels]):
                    first = tf.strided_slice(tf.reshape(images, (-1,)), [0], [1])  # [1]
            with tf.device(HOST):
                probe = tf.negative(first)
                with tf.control_dependencies([probe]):
                    marks.append(tf.timestamp())
            probes.append(probe)
        with tf.device(HOST):
            return tf.stack(marks), tf.add_n(probes)


def _read_again(source: Source, spec: RunSpec, images: int) -> tuple[str, ...]:
    """Report more images than the data set has: from the second pass on no disk is measured."""
    known = source.images_per_epoch
    if spec.data.folder is None or not known or images <= known:
        return ()
    return (
        f"The {known} images were taken {images / known:.1f} times over: after the first pass they come from "
        "the host's memory, so this rate is not that of the disk.",
    )


def _run(arrival: Arrival, spec: RunSpec, emit: Emit) -> int:
    """Warm up, then count steps up to the spec's number or time; return how many were taken in all."""
    longest = max(longest_warmup(spec), 1)  # the first step compiles
    warmup: list[float] = []
    began = time.perf_counter()
    while not warmup or not is_warm(spec, warmup):
        seconds = _one(arrival, len(warmup), len(warmup) + 1 - longest, spec, emit)
        if seconds is None:
            return len(warmup)
        warmup.append(seconds)
    emit(WarmupDone(time_s=time.time(), steps=len(warmup), seconds=time.perf_counter() - began))
    began = time.perf_counter()
    for step in itertools.count(1):
        if spec.batch_limit is not None and step > spec.batch_limit:
            break
        used = time.perf_counter() - began
        budget = spec.time_budget_s if spec.num_batches is None and step > 1 else None
        if budget is not None and used + used / (step - 1) > budget:
            break
        if _one(arrival, len(warmup) + step - 1, step, spec, emit) is None:
            break
    return len(warmup) + step - 1


def _one(arrival: Arrival, taken: int, step: int, spec: RunSpec, emit: Emit) -> float | None:
    """Take a step after `taken` others and return its seconds; None at the end of the data."""
    began = time.perf_counter()
    try:
        times: Sequence[Sequence[float]] = arrival(taken).tolist()
    except StopIteration:
        return None
    seconds = time.perf_counter() - began
    emit(
        Step(
            time_s=time.time(),
            step=step,
            seconds=seconds,
            images=spec.joint_batch,
            loss=None,
            waited_s=max((waited for waited, _ in times), default=None),
            marks=tuple(
                TowerMarks(tower=tower, start_s=0.0, weights_s=waited, compute_s=arrived)
                for tower, (waited, arrived) in enumerate(times)
            ),
        )
    )
    return seconds
