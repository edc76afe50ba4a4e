"""The `Example` messages of ImageNet's TFRecords, written without TensorFlow.

The fields are those of the ImageNet builder scripts. The wire format is protocol buffers' own: an Example
holds Features (field 1), a map (field 1) of names (1) to features (2), each of which is a list of bytes (1),
floats (2, packed) or whole numbers (3, packed) (tensorflow/core/example/{example,feature}.proto).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_KINDS = {bytes: 1, float: 2, int: 3}
_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class Box:
    """A bounding box in shares of the image's sides, 0 to 1, each minimum under its maximum."""

    ymin: float
    xmin: float
    ymax: float
    xmax: float


@dataclass(frozen=True)
class LabelledImage:
    """One image: `encoded` as JPEG, `label` from 1, height and width in pixels.

    `text` and `filename`: names as the disk has them, which need be of no encoding.
    """

    encoded: bytes
    label: int
    height: int
    width: int
    text: bytes
    synset: str
    filename: bytes
    boxes: tuple[Box, ...] = ()


def example(image: LabelledImage) -> bytes:
    """Give an image as a serialized Example."""
    fields: dict[str, tuple[type, Sequence[bytes] | Sequence[float] | Sequence[int]]] = {
        "image/height": (int, [image.height]),
        "image/width": (int, [image.width]),
        "image/colorspace": (bytes, [b"RGB"]),
        "image/channels": (int, [3]),
        "image/class/label": (int, [image.label]),
        "image/class/synset": (bytes, [image.synset.encode()]),
        "image/class/text": (bytes, [image.text]),
        "image/object/bbox/xmin": (float, [box.xmin for box in image.boxes]),
        "image/object/bbox/xmax": (float, [box.xmax for box in image.boxes]),
        "image/object/bbox/ymin": (float, [box.ymin for box in image.boxes]),
        "image/object/bbox/ymax": (float, [box.ymax for box in image.boxes]),
        "image/object/bbox/label": (int, [image.label] * len(image.boxes)),
        "image/format": (bytes, [b"JPEG"]),
        "image/filename": (bytes, [image.filename]),
        "image/encoded": (bytes, [image.encoded]),
    }
    return _message(1, _features(fields))


def _features(fields: Mapping[str, tuple[type, Sequence[bytes] | Sequence[float] | Sequence[int]]]) -> bytes:
    entries = []
    for name, (kind, values) in fields.items():
        feature = _message(_KINDS[kind], _list(kind, values))
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return b"".join(entries)


def _list(kind: type, values: Sequence[bytes] | Sequence[float] | Sequence[int]) -> bytes:
    if kind is bytes:
        return b"".join(_message(1, value) for value in values if isinstance(value, bytes))
    if kind is float:
        return _message(1, struct.pack(f"<{len(values)}f", *values)) if values else b""
    return _message(1, b"".join(_varint(int(value)) for value in values)) if values else b""


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Give a whole number from 0 as seven bits a byte, lowest first, the top bit set on all but the last."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
