"""YAML of plain values: what is read is what was written, whatever the texts are."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.exports.yaml_text import Noted, yaml_text
from gputopo.values.errors import UsageError
from tests.launch.spec.exports.reading import read_yaml

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "true",
        "No",
        "1",
        "1.5",
        "~",
        "null",
        "- a",
        "a: b",
        "a #b",
        "#",
        "{}",
        "*x",
        "!t",
        "2222",
        "0x1f",
        "1e3",
    ]
)
SCALARS = TEXTS | st.integers() | st.booleans()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(st.dictionaries(TEXTS, inner, min_size=1) | SCALARS, min_size=1)
        | st.dictionaries(TEXTS, inner, min_size=1)
    ),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1))
def test_what_is_read_is_what_was_written(value: dict[str, Any]) -> None:
    text = yaml_text(value)
    assert read_yaml(text) == value
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]", text)


@pytest.mark.parametrize(
    "text", ["true", "No", "off", "null", "1", "1.5", "~", "", "0x1f", "1e3", "a: b", "-"]
)
def test_a_text_that_a_reader_may_take_for_another_kind_is_quoted(text: str) -> None:
    assert yaml_text({"a": text}) == f'a: "{text}"\n'


def test_comments_are_at_the_end_of_the_first_line_and_part_of_no_value() -> None:
    value = {"a": Noted("b", "c: d"), "list": [Noted({"name": "x", "z": 1}, "why")]}
    assert yaml_text(value) == "a: b  # c: d\nlist:\n  - name: x  # why\n    z: 1\n"
    assert read_yaml(yaml_text(value)) == {"a": "b", "list": [{"name": "x", "z": 1}]}


def test_what_is_not_utf_8_is_refused() -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        yaml_text({"a": b"\xff".decode(errors="surrogateescape")})
