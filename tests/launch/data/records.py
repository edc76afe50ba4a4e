"""Records as they stand in a TFRecord file."""

import struct
from collections.abc import Sequence

from gputopo.launch.data.tfrecords import masked_crc


def framed(data: bytes) -> bytes:
    """Frame the data of one record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def example(picture: bytes | None, labels: Sequence[int] | None, *, packed: bool = True) -> bytes:
    """Return an Example message with a picture and a list of labels; None: without the field."""
    fields = b""
    if picture is not None:
        fields += _entry(b"image/encoded", _part(1, _part(1, picture)))
    if labels is not None:
        numbers = [_varint(label % (1 << 64)) for label in labels]
        listed = _part(1, b"".join(numbers)) if packed else b"".join(b"\x08" + one for one in numbers)
        fields += _entry(b"image/class/label", _part(3, listed))
    return _part(1, fields)


def _entry(name: bytes, feature: bytes) -> bytes:
    return _part(1, _part(1, name) + _part(2, feature))


def _part(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
