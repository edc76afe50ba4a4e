"""The framing of TFRecord files, without TensorFlow.

A record is: its length (8 bytes, little endian), a masked CRC-32C of these 8 bytes, the data, a masked
CRC-32C of the data (tensorflow/core/lib/io/record_writer.h).
"""

import functools
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HEADER_BYTES = 12
FOOTER_BYTES = 4
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed (RFC 3720, appendix B.4)
_MASK = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h
_ALL = 0xFFFFFFFF
_LANES = 256  # pieces of a message that are worked on side by side
_LONG = 4 * _LANES  # shorter messages go byte by byte

Table = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True)
class Framing:
    """How far a file can be followed: whole records from its start, and what is wrong after them, or None.

    `bytes`: of these records, their framing included.
    """

    records: int
    damage: str | None = None
    bytes: int = 0


def walk(path: Path, *, most: int | None = None) -> Framing:
    """Follow the records of a file by their lengths; `most`: stop after so many.

    Reads 12 bytes of each record: the data's own checksums are not looked at. Raises OSError.
    """
    size = path.stat().st_size
    if size == 0:
        return Framing(0, "the file is empty")
    # Not mapped into memory: a file that is cut meanwhile would end the process.
    with path.open("rb", buffering=0) as file:
        end = records = 0
        while end < size and (most is None or records < most):
            header = os.pread(file.fileno(), HEADER_BYTES, end)
            if len(header) < HEADER_BYTES:
                return Framing(records, _cut(records), end)
            length, checksum = struct.unpack("<QI", header)
            if masked_crc(header[:8]) != checksum:
                why = "the file is no TFRecord file" if records == 0 else "the checksum of a length is wrong"
                return Framing(records, why, end)
            after = end + HEADER_BYTES + length + FOOTER_BYTES
            if after > size:
                return Framing(records, _cut(records), end)
            end, records = after, records + 1
        return Framing(records, None, end)


def wrong_record(path: Path, number: int) -> str:
    """Say what is wrong with record `number` of a file that could not be used. Raises OSError."""
    before = walk(path, most=number)
    if before.damage is not None:  # the file was another one when the record was counted
        return before.damage
    with path.open("rb") as file:
        file.seek(before.bytes)
        header = file.read(HEADER_BYTES)
        length = int.from_bytes(header[:8], "little")
        rest = os.fstat(file.fileno()).st_size - before.bytes - HEADER_BYTES
        if len(header) < HEADER_BYTES or length + FOOTER_BYTES > rest:
            return _cut(number)
        data, footer = file.read(length), file.read(FOOTER_BYTES)
    checksum = int.from_bytes(footer, "little")
    if masked_crc(data) != checksum:
        return "its checksum does not match its bytes"
    return "it is empty" if length == 0 else "it could not be read, and its checksum is right"


def frame(data: bytes) -> bytes:
    """Give a record as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data)))
    )


def masked_crc(data: bytes) -> int:
    """Give the checksum as TFRecord files hold it: turned right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & _ALL


def crc32c(data: bytes) -> int:
    """Give the CRC-32C of some bytes.

    A long message is cut into lanes of equal length that go through the table side by side. The checksum is
    linear, so two neighbours are joined by moving the left one over the length of the right one.
    """
    if len(data) < _LONG:
        return _serial(data, _ALL) ^ _ALL
    length = len(data) // _LANES
    lanes = np.frombuffer(data, np.uint8, length * _LANES).reshape(_LANES, length)
    table = _table()
    crcs = np.zeros(_LANES, np.uint32)
    crcs[0] = _ALL
    for column in np.ascontiguousarray(lanes.T):
        crcs = table[(crcs ^ column) & 0xFF] ^ (crcs >> np.uint32(8))
    over = _over_zeros(length)
    while len(crcs) > 1:
        crcs = _times(over, crcs[0::2]) ^ crcs[1::2]
        over = _times(over, over)
    return _serial(data[length * _LANES :], int(crcs[0])) ^ _ALL


def _serial(data: bytes, crc: int) -> int:
    table = _listed()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


@functools.cache
def _table() -> Table:
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = np.where(crcs & 1, (crcs >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), crcs >> np.uint32(1))
    return crcs


@functools.cache
def _listed() -> list[int]:
    numbers: list[int] = _table().tolist()
    return numbers


@functools.lru_cache(maxsize=64)
def _over_zeros(count: int) -> Table:
    """Give what `count` zero bytes do to a checksum: the image of each of its 32 bits."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    result, power = bits, _table()[bits & 0xFF] ^ (bits >> np.uint32(8))
    while count:
        if count & 1:
            result = _times(power, result)
        power = _times(power, power)
        count >>= 1
    return result


def _times(images: Table, crcs: Table) -> Table:
    """Move checksums by a linear map that is given as the images of the 32 bits."""
    chosen = (crcs[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)  # [n, 32]
    moved: Table = np.bitwise_xor.reduce(np.where(chosen, images[None, :], np.uint32(0)), axis=1)
    return moved


def _cut(records: int) -> str:
    return f"the file ends within record {records}"
