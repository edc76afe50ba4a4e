"""The framing of TFRecord files."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train.inputs.tfrecords import Framing, crc32c, frame, masked_crc, walk, wrong_record


def bit_by_bit(data: bytes) -> int:
    """CRC-32C by its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4, and the usual check value
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums_are_those_of_the_standard(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@given(st.binary(min_size=1, max_size=64), st.integers(1, 200))
def test_long_messages_in_lanes_give_the_checksum_of_the_definition(part: bytes, times: int) -> None:
    data = part * times
    assert crc32c(data) == bit_by_bit(data)


def test_the_mask_is_the_one_of_the_format() -> None:
    crc = crc32c(b"123456789")
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_a_record_is_length_checksum_data_checksum() -> None:
    framed = frame(b"abc")
    length, of_length = struct.unpack("<QI", framed[:12])
    assert (length, framed[12:15], len(framed)) == (3, b"abc", 19)
    assert of_length == masked_crc(framed[:8])
    assert struct.unpack("<I", framed[15:]) == (masked_crc(b"abc"),)


@given(
    records=st.lists(st.binary(max_size=40), min_size=1, max_size=5), cut=st.floats(0, 1, exclude_max=True)
)
def test_a_file_cut_anywhere_is_followed_to_its_last_whole_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], cut: float
) -> None:
    framed = [frame(record) for record in records]
    size = int(cut * len(b"".join(framed)))
    path = tmp_path_factory.mktemp("cut") / "file"
    path.write_bytes(b"".join(framed)[:size])
    ends = [0]
    for one in framed:
        ends.append(ends[-1] + len(one))
    whole = max(number for number, end in enumerate(ends) if end <= size)
    found = walk(path)
    assert found.records == whole
    assert found.bytes == ends[whole]
    assert (found.damage is None) == (size == ends[whole] and size > 0)


def test_a_whole_file_is_counted_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(frame(b"one") + frame(b"") + frame(b"three"))
    assert walk(path) == Framing(3, None, 3 * 16 + 8)
    assert walk(path, most=2) == Framing(2, None, 2 * 16 + 3)


def test_another_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"this is a text of some length")
    assert walk(path) == Framing(0, "the file is no TFRecord file")
    path.write_bytes(frame(b"one") + b"this is a text of some length")
    assert walk(path) == Framing(1, "the checksum of a length is wrong", 19)
    path.write_bytes(b"")
    assert walk(path) == Framing(0, "the file is empty")


def test_what_is_wrong_with_a_record_is_told_from_its_own_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    damaged = bytearray(frame(b"three"))
    damaged[13] ^= 1
    path.write_bytes(frame(b"one") + frame(b"") + bytes(damaged) + frame(b"four"))
    assert [wrong_record(path, number) for number in range(4)] == [
        "it could not be read, and its checksum is right",
        "it is empty",
        "its checksum does not match its bytes",
        "it could not be read, and its checksum is right",
    ]


@pytest.mark.parametrize("left", [0, 1, 7, 19, 27, 33])
def test_a_record_of_a_file_that_was_cut_since_it_was_counted_is_told_as_cut(
    tmp_path: Path, left: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes((frame(b"one") + frame(b"two"))[:left])
    assert wrong_record(path, 1) == (
        "the file is empty" if left == 0 else f"the file ends within record {int(left >= 19)}"
    )
