"""What gputopo asks of tf.data beside the steps of a pipeline."""

from typing import Any

import tensorflow as tf

Dataset = Any


def with_threads(made: Dataset, threads: int) -> Dataset:
    """Give the dataset threads of its own, and keep its order."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.deterministic = True
    return made.with_options(options)


def untuned(made: Dataset) -> Dataset:
    """Give the dataset without the thread that tunes it while it runs.

    All numbers of our pipelines are given, so there is nothing to tune. That thread sleeps for as long as the
    pipeline has run, up to a minute, and now and then is not woken when the iterator is dropped (found with
    TensorFlow 2.21: 8 of 20 iterators, each 2 s old): the program then stands still until it wakes by itself.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return made.with_options(options)
