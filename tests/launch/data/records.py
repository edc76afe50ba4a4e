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


def example(encoded: bytes, label: int, boxes: Sequence[Sequence[float]] = ()) -> bytes:
    """Return a serialized Example. `boxes`: ymin, xmin, ymax, xmax."""
    import tensorflow as tf

    made = tf.train.Example()
    fields = made.features.feature
    fields["image/encoded"].bytes_list.value.append(encoded)
    fields["image/class/label"].int64_list.value.append(label)
    for place, side in enumerate(("ymin", "xmin", "ymax", "xmax")):
        fields[f"image/object/bbox/{side}"].float_list.value.extend(box[place] for box in boxes)
    return made.SerializeToString(deterministic=True)  # type: ignore[no-any-return]
