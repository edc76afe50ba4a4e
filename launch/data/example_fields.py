"""The label of a serialized `tf.train.Example`, read without TensorFlow, from the bytes of the message.

Example holds one Features message (field 1), that a map entry (1) for each field: its name (1) and a Feature
(2), whose Int64List (3) has the numbers (1): tensorflow/core/example/{example,feature}.proto. How messages
are written: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

PICTURE, LABEL = "image/encoded", "image/class/label"
LABELS = (1, 1000)  # in the files; 0 is the background, which no image has
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of a field
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES, _LARGEST = 10, (1 << 64) - 1


def wrong_label(record: bytes) -> str | None:
    """Describe why a record with a picture has no label of ImageNet; None: it has, or TensorFlow decides."""
    try:
        found = _int64_lists(record)
    except ValueError:
        return None
    if PICTURE not in found:
        return None
    if LABEL not in found:
        return "it has no label"
    numbers = found[LABEL]
    if len(numbers) != 1 or LABELS[0] <= numbers[0] <= LABELS[1]:
        return None
    return f"its label {numbers[0]} is none of {LABELS[0]} to {LABELS[1]}"


def _int64_lists(record: bytes) -> dict[str, list[int]]:
    """Return the whole numbers of each field by its name. Raises ValueError for what is no such message."""
    found: dict[str, list[int]] = {}
    for features in _inner(record, 1):
        for entry in _inner(features, 1):
            names = [value.decode() for value in _inner(entry, 1)]
            numbers = [
                number
                for feature in _inner(entry, 2)
                for listed in _inner(feature, 3)
                for field, value in _fields(listed)
                if field == 1
                for number in ([value] if isinstance(value, int) else _varints(value))
            ]
            for name in names:
                found[name] = [number - (1 << 64) if number >> 63 else number for number in numbers]
    return found


def _inner(message: bytes, number: int) -> Iterator[bytes]:
    for field, value in _fields(message):
        if field == number and isinstance(value, bytes):
            yield value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Return number and value of each field of a message. Raises ValueError."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"no field is of the kind {kind}")
        if at + size > len(message):
            raise ValueError("the message ends within a field")
        yield tag >> 3, message[at : at + size]
        at += size


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where the next field begins. Raises ValueError."""
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value & _LARGEST, at + place + 1
    raise ValueError("a number does not end")
