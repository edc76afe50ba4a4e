"""What is wrong with a record of ImageNet's that cannot be used, in words. Looked at when it has failed."""

from typing import Any

import tensorflow as tf

PICTURE, LABEL = "image/encoded", "image/class/label"
SIDES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_SHOWN = 5  # names of fields


def wrong_fields(record: bytes) -> str | int:
    """Say what keeps a record from being an example with one label; give the label where nothing does."""
    fields = _fields(record)
    if fields is None:
        return "it is no Example message"
    if PICTURE not in fields:
        names = sorted(fields)
        listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        return f"it has no {PICTURE}, but {listed or 'no field at all'}"
    if LABEL not in fields:
        return "it has no label"
    for name, kind, what in ((PICTURE, "bytes_list", "string"), (LABEL, "int64_list", "whole number")):
        values = _values(fields[name], kind)
        if values is None or len(values) != 1:
            return f"its {name} is not one {what}"
    if not fields[PICTURE].bytes_list.value[0]:
        return f"its {PICTURE} is empty"
    for name in SIDES:
        if name in fields and _values(fields[name], "float_list") is None:
            return f"its {name} holds no fractions"
    if len({len(_values(fields[name], "float_list") or ()) if name in fields else 0 for name in SIDES}) > 1:
        return "its boxes have not all four sides"
    label: int = fields[LABEL].int64_list.value[0]
    return label


def wrong_picture(record: bytes) -> str:
    """Say what keeps a record's picture, or a part of it that its boxes allow, from being made."""
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
    """Give the values of a field, None if it holds another kind. An empty list is of every kind."""
    held = feature.WhichOneof("kind")
    if held is None:
        return ()
    return getattr(feature, kind).value if held == kind else None
