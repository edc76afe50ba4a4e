"""Records as they stand in a TFRecord file."""

import struct

from gputopo.launch.data.tfrecords import masked_crc


def framed(data: bytes) -> bytes:
    """Frame the data of one record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
