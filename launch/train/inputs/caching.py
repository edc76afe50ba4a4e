"""Whether the records of a data set fit into memory, before a run that keeps them there."""

from collections.abc import Sequence
from pathlib import Path

import psutil
import tensorflow as tf

from gputopo.launch.spec.run_spec import CacheForm
from gputopo.launch.train.inputs.wrong_examples import PICTURE
from gputopo.values.errors import ExitCode, GputopoError

_SAMPLED = 32  # records of which the mean size of a picture is taken
_GIB = 2**30


class NoRoomError(GputopoError):
    """The memory does not hold what was to be kept in it."""

    exit_code = ExitCode.HARDWARE


def require_room(paths: Sequence[Path], form: CacheForm, *, free: int | None = None) -> None:
    """Raise NoRoomError if records kept in a form would take more than the free memory, in bytes.

    `free` None: what the kernel says can be had without swapping. Better now than in the middle of the first
    pass, when the kernel ends the worker. Raises OSError for a file that cannot be read.
    """
    room = psutil.virtual_memory().available if free is None else free
    raw = sum(path.stat().st_size for path in paths)
    needed = raw if form == "raw" else round(raw * _growth(paths))
    if needed <= room:
        return
    other = f"use --cache raw, which holds {raw / _GIB:.1f} GiB" if raw <= room < needed else ""
    raise NoRoomError(
        f"--cache {form} would hold about {needed / _GIB:.1f} GiB, and {room / _GIB:.1f} GiB of memory are "
        "free",
        other or "leave --cache out: the kernel keeps of the files what it has room for",
    )


def _growth(paths: Sequence[Path]) -> float:
    """Give how many bytes a byte of the files becomes when its picture is decoded, by the first records."""
    stored = decoded = 0
    wanted = {PICTURE: tf.io.FixedLenFeature((), tf.string, "")}
    with tf.device("/CPU:0"):
        records = tf.data.TFRecordDataset([str(path) for path in paths])
        # Counted before errors are ignored: a file that cannot be opened gives one without end.
        tried = tf.data.Dataset.zip(tf.data.Dataset.range(_SAMPLED), records).ignore_errors()
        for _, record in tried:
            try:
                encoded = tf.io.parse_single_example(record, wanted)[PICTURE]
                height, width, colours = tf.image.extract_jpeg_shape(encoded).numpy().tolist()
            except tf.errors.OpError:  # no JPEG: the reader tells of it, or reads it
                continue
            stored += len(record.numpy())
            decoded += height * width * max(colours, 3)
    return decoded / stored if stored else 1.0
