"""The framing of TFRecord files."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.data import count_records, find_damage, find_data, masked_crc
from tests.launch.data.records import framed


def test_checksums_are_those_of_the_standard_masked_as_the_format_asks() -> None:
    cases: list[tuple[bytes, int]] = [  # RFC 3720, appendix B.4, and the usual check value
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ]
    for data, crc in cases:
        assert masked_crc(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def walked(path: Path) -> tuple[int | None, str | None]:
    """Return the number of whole records of a data set's only file, and what is wrong after them."""
    found = find_data(path.parent)
    records, damage = count_records(found, "train"), find_damage(found, "train")
    assert [(file, number) for file, number, _ in damage] == [(path, records)] * len(damage)
    return records, damage[0][2] if damage else None


@given(
    records=st.lists(st.binary(max_size=40), min_size=1, max_size=5), cut=st.floats(0, 1, exclude_max=True)
)
def test_a_file_cut_anywhere_is_followed_to_its_last_whole_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], cut: float
) -> None:
    parts = [framed(record) for record in records]
    size = int(cut * len(b"".join(parts)))
    path = tmp_path_factory.mktemp("cut") / "train-00000-of-00001"
    path.write_bytes(b"".join(parts)[:size])
    ends = list(itertools.accumulate(map(len, parts), initial=0))
    whole = max(number for number, end in enumerate(ends) if end <= size)
    found, damage = walked(path)
    assert found == whole
    assert (damage is None) == (size == ends[whole] and size > 0)


def test_another_file_is_distinguished_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(b"this is a text of some length")
    assert walked(path) == (0, "the file is not a TFRecord file")
    path.write_bytes(framed(b"one") + b"this is a text of some length")
    assert walked(path) == (1, "the checksum of a length is wrong")
    path.write_bytes(b"")
    assert walked(path) == (0, "the file is empty")
