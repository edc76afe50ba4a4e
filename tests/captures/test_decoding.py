"""Bytes of captures as shells, editors and terminals write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures.decoding import decoded

TEXT = "GPU0 X PIX\nGPU1 PIX X\n\x1b[4mC:\\Users\\Andre\x1b[0m\n"


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_text_is_the_same_in_every_form_of_unicode(codec: str) -> None:
    assert decoded(TEXT.encode(codec)) == TEXT


@pytest.mark.parametrize("codec", ["cp1252", "cp850", "iso8859-15"])
def test_a_letter_of_a_code_page_leaves_all_others_readable(codec: str) -> None:
    text = decoded(TEXT.replace("Andre", "André").encode(codec))
    assert text == TEXT.replace("Andre", "Andr\ufffd")


@pytest.mark.parametrize(
    "data",
    [
        b"GPU0\0GPU1",
        b"\x7fELF\x02\x01\x01\0\0\0",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"GPU0 \xff\xfe\x80",
        b"\xff\xfeG",
        b"\x1f\x8b\x08\x08abc",
        bytes(range(256)),
    ],
)
def test_what_is_no_text_is_not_taken_for_one(data: bytes) -> None:
    assert decoded(data) is None


@given(st.binary())
def test_no_bytes_raise_and_no_text_holds_a_zero(data: bytes) -> None:
    assert "\0" not in (decoded(data) or "")


@given(st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), min_size=1))
def test_every_text_of_utf_8_is_read_as_it_stands(text: str) -> None:
    assert decoded(text.encode()) == text
