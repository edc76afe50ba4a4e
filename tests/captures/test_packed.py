"""Packed texts are read as the texts in them; damaged, cut and oversized ones are refused in words."""

import bz2
import contextlib
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_bytes, read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.captures.samples import ALL, NCCL, in_turn

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize(("kind", "name"), in_turn(PACKERS, ["topo", "nccl"]))
def test_a_packed_capture_reads_as_the_plain_one(name: str, kind: str) -> None:
    data = PACKERS[kind](ALL[name].encode())
    assert read_bytes(data, origin="x") == read_text(ALL[name], origin="x")


def test_a_text_that_is_too_long_is_refused_before_it_is_unpacked() -> None:
    members = gzip.compress(bytes(2**22)) * 9
    with pytest.raises(InputError, match="larger than 32 MiB unpacked"):
        read_bytes(members, origin="x")


@pytest.mark.parametrize("kind", PACKERS)
def test_a_file_that_is_cut_or_damaged_is_named_as_such(kind: str) -> None:
    data = PACKERS[kind](NCCL.encode() + bytes(range(32, 127)) * 400)
    with pytest.raises(InputError, match=f"{kind} file"):
        read_bytes(data[:-20], origin="x")


@given(st.binary(), st.sampled_from([b"", b"\xff\xfe", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00"]))
def test_any_bytes_are_read_or_refused(data: bytes, magic: bytes) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(read_bytes(magic + data, origin="x"), Machine)


def test_an_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tmp_path / "sys", "sys")
    data = (tmp_path / "tree.tar").read_bytes()
    for packed in (data, gzip.compress(data)):
        with pytest.raises(InputError, match="is an archive") as error:
            read_bytes(packed, origin="tree.tar")
        assert "tar -xf" in error.value.hint
