"""The `tf.train.Example` of an ImageNet record: built, parsed, and checked field by field.

The fields are those of the ImageNet builder scripts (tensorflow/models, build_imagenet_data.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gputopo.launch.data.example_fields import LABEL, PICTURE

Tensor = Any
NO_LABEL = -1  # of a record without the field
_BOXES = "image/object/bbox/"
_SIDES = tuple(f"{_BOXES}{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_SHOWN_NAMES = 5


@dataclass(frozen=True)
class Box:
    """Bounding box in fractions of the image's height and width, 0 to 1, each minimum below its maximum."""

    ymin: float
    xmin: float
    ymax: float
    xmax: float


@dataclass(frozen=True)
class LabelledImage:
    """One image: `encoded` as JPEG, `label` from 1, height and width in pixels.

    `text` and `filename`: names as bytes of the file system, not always UTF-8.
    """

    encoded: bytes
    label: int
    height: int
    width: int
    text: bytes
    synset: str
    filename: bytes
    boxes: tuple[Box, ...] = ()


def serialized(image: LabelledImage) -> bytes:
    """Return an image as a serialized Example; equal images yield equal bytes."""
    boxes = image.boxes
    fields = {
        "image/height": _integers([image.height]),
        "image/width": _integers([image.width]),
        "image/colorspace": _strings([b"RGB"]),
        "image/channels": _integers([3]),
        LABEL: _integers([image.label]),
        "image/class/synset": _strings([image.synset.encode()]),
        "image/class/text": _strings([image.text]),
        f"{_BOXES}xmin": _floats([box.xmin for box in boxes]),
        f"{_BOXES}xmax": _floats([box.xmax for box in boxes]),
        f"{_BOXES}ymin": _floats([box.ymin for box in boxes]),
        f"{_BOXES}ymax": _floats([box.ymax for box in boxes]),
        f"{_BOXES}label": _integers([image.label] * len(boxes)),
        "image/format": _strings([b"JPEG"]),
        "image/filename": _strings([image.filename]),
        PICTURE: _strings([image.encoded]),
    }
    example = tf.train.Example(features=tf.train.Features(feature=fields))
    encoded: bytes = example.SerializeToString(deterministic=True)
    return encoded


def parsed(record: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parse a serialized Example: its JPEG, its label as stored (NO_LABEL without one), its boxes [n, 4]."""
    expected = {
        PICTURE: tf.io.FixedLenFeature((), tf.string, ""),
        LABEL: tf.io.FixedLenFeature((), tf.int64, NO_LABEL),
        **{side: tf.io.VarLenFeature(tf.float32) for side in _SIDES},
    }
    found = tf.io.parse_single_example(record, expected)
    boxes = tf.stack([found[side].values for side in _SIDES], axis=1)  # ymin, xmin, ymax, xmax
    return found[PICTURE], found[LABEL], boxes


def wrong_fields(record: bytes) -> str | int:
    """Describe why a record is no example with one label; its label where nothing is wrong."""
    fields = _fields(record)
    if fields is None:
        return "it is no Example message"
    if PICTURE not in fields:
        names = sorted(fields)
        listed = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
        return f"it has no {PICTURE}, but {listed or 'no field at all'}"
    if LABEL not in fields:
        return "it has no label"
    for name, kind, what in ((PICTURE, "bytes_list", "string"), (LABEL, "int64_list", "whole number")):
        values = _values(fields[name], kind)
        if values is None or len(values) != 1:
            return f"its {name} is not one {what}"
    if not fields[PICTURE].bytes_list.value[0]:
        return f"its {PICTURE} is empty"
    for name in _SIDES:
        if name in fields and _values(fields[name], "float_list") is None:
            return f"its {name} holds no fractions"
    if len({len(_values(fields[name], "float_list") or ()) if name in fields else 0 for name in _SIDES}) > 1:
        return "its boxes have not all four sides"
    label: int = fields[LABEL].int64_list.value[0]
    return label


def wrong_picture(record: bytes) -> str:
    """Describe why the picture of a record, or a part of it that its boxes allow, cannot be decoded."""
    fields = wrong_fields(record)
    if isinstance(fields, str):
        return fields
    encoded = tf.train.Example.FromString(record).features.feature[PICTURE].bytes_list.value[0]
    try:
        with tf.device("/CPU:0"):
            tf.io.decode_jpeg(encoded, channels=3)
    except tf.errors.OpError:
        return "it holds no picture that can be decoded"
    return "its boxes are not within its picture"


def _fields(record: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return None


def _values(feature: Any, kind: str) -> Any:
    """Values of a field, None if they are of another kind. An empty list is of every kind."""
    stored = feature.WhichOneof("kind")
    if stored is None:
        return ()
    return getattr(feature, kind).value if stored == kind else None


def _strings(values: Sequence[bytes]) -> Any:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _integers(values: Sequence[int]) -> Any:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: Sequence[float]) -> Any:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
