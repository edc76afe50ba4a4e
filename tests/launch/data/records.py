"""Records as they are in a TFRecord file, and the Examples of ImageNet in them."""

import struct
from collections.abc import Sequence

from gputopo.launch.data import masked_crc

HEADER_BYTES = 12
FOOTER_BYTES = 4


def framed(data: bytes) -> bytes:
    """Frame the data of one record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _varint(number: int) -> bytes:
    """Return a number from 0 on as protocol buffers store it: in groups of 7 bits, the lowest first."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _part(field: int, data: bytes) -> bytes:
    """Return a field of a message that has a length: text, bytes, another message, packed numbers."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _bytes(value: bytes) -> bytes:
    return _part(1, _part(1, value))


def _floats(values: Sequence[float]) -> bytes:
    return _part(2, _part(1, struct.pack(f"<{len(values)}f", *values)) if values else b"")


def _int(value: int) -> bytes:
    return _part(3, _part(1, _varint(value)))


def example(encoded: bytes, label: int, boxes: Sequence[Sequence[float]] = ()) -> bytes:
    """Return a serialized Example, made without TensorFlow. `boxes`: ymin, xmin, ymax, xmax."""
    features = {"image/encoded": _bytes(encoded), "image/class/label": _int(label)}
    for place, side in enumerate(("ymin", "xmin", "ymax", "xmax")):
        features[f"image/object/bbox/{side}"] = _floats([box[place] for box in boxes])
    entries = (
        _part(1, _part(1, name.encode()) + _part(2, value)) for name, value in sorted(features.items())
    )
    return _part(1, b"".join(entries))
