"""The `tf.train.Example` of an ImageNet record: parsed, and checked field by field.

The fields are those of the ImageNet builder scripts (tensorflow/models, build_imagenet_data.py).
"""

from typing import Any

import tensorflow as tf

Tensor = Any
PICTURE, LABEL = "image/encoded", "image/class/label"
LABELS = (1, 1000)  # as stored in the files; 0 is the background, which no image has
NO_LABEL = -1  # label of a record without the field
_SIDES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_SHOWN_NAMES = 5


def parsed(record: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parse a serialized Example into its JPEG, its label as stored (or NO_LABEL), and its boxes [n, 4]."""
    expected = {
        PICTURE: tf.io.FixedLenFeature((), tf.string, ""),
        LABEL: tf.io.FixedLenFeature((), tf.int64, NO_LABEL),
        **{side: tf.io.VarLenFeature(tf.float32) for side in _SIDES},
    }
    fields = tf.io.parse_single_example(record, expected)
    boxes = tf.stack([fields[side].values for side in _SIDES], axis=1)  # ymin, xmin, ymax, xmax
    return fields[PICTURE], fields[LABEL], boxes


def wrong_fields(record: bytes) -> str | int:
    """Return why a record is not an example with one label, or the label if nothing is wrong."""
    from google.protobuf.message import DecodeError

    try:
        fields = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return "it is not an Example message"
    if PICTURE not in fields:
        names = sorted(fields)
        listed = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
        return f"it has no {PICTURE}, but {listed or 'no fields'}"
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
            return f"its {name} does not hold fractions"
    if len({len(_values(fields[name], "float_list") or ()) if name in fields else 0 for name in _SIDES}) > 1:
        return "its boxes are incomplete"
    label: int = fields[LABEL].int64_list.value[0]
    return label


def wrong_picture(record: bytes) -> str:
    """Return why the image of an example, or a crop that its boxes allow, cannot be decoded."""
    encoded = tf.train.Example.FromString(record).features.feature[PICTURE].bytes_list.value[0]
    try:
        with tf.device("/CPU:0"):
            tf.io.decode_jpeg(encoded, channels=3)
    except tf.errors.OpError:
        return "it has no image that can be decoded"
    return "its boxes are not within its image"


def _values(feature: Any, kind: str) -> Any:
    """Return the values of a field, or None if they are of another kind. An empty list is of every kind."""
    stored = feature.WhichOneof("kind")
    if stored is None:
        return ()
    return getattr(feature, kind).value if stored == kind else None
