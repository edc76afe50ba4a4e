"""Subjects of findings: each has one text, and the text is read as the same subject."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.values import schema
from gputopo.values.subject import DRIVER, MACHINE, Subject, subjects_in_words

gpus = st.integers(0, 40)
subjects = st.one_of(
    st.sampled_from([DRIVER, MACHINE]),
    st.builds(Subject.of_gpus, st.sets(gpus, min_size=1)),
    st.tuples(gpus, gpus).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Subject.of_link(*pair)),
)


class Document(msgspec.Struct, frozen=True, tag_field="schema", tag="gputopo.test/1"):
    subject: Subject


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (Subject.of_gpus([3]), "gpu:3"),
        (Subject.of_gpus([5, 0, 2, 1, 0]), "gpus:0-2,5"),
        (Subject.of_link(4, 1), "link:1-4"),
        (Subject.of_nics([2]), "nic:2"),
        (Subject.of_nics([2, 0, 1]), "nics:0-2"),
        (DRIVER, "driver"),
        (MACHINE, "machine"),
    ],
)
def test_a_subject_has_one_text(subject: Subject, text: str) -> None:
    assert (subject.text, str(subject), Subject.parse(text)) == (text, text, subject)


@given(subjects)
def test_the_text_is_read_as_the_same_subject(subject: Subject) -> None:
    assert Subject.parse(subject.text) == subject


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "gpu:", "gpu:x", "gpus:3-1", "gpus:1,", "link:1", "link:1-1", "link:a-b", "nic:", "Driver"],
)
def test_another_text_is_no_subject(text: str) -> None:
    with pytest.raises(ValueError, match="no subject such as gpu:3"):
        Subject.parse(text)


def test_a_subject_of_gpus_names_one_and_a_link_two() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Subject.of_gpus([])
    with pytest.raises(ValueError, match="got 2 twice"):
        Subject.of_link(2, 2)


@given(subjects)
def test_json_holds_the_text(subject: Subject) -> None:
    document = Document(subject)
    assert schema.to_builtins(document) == {"schema": "gputopo.test/1", "subject": subject.text}
    assert schema.decode(schema.encode(document), Document, origin="a test") == document


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["gpu:3"], "gpu:3"),
        (["gpu:0", "gpu:1", "gpu:2", "gpu:5", "gpu:0", "driver"], "gpu:0-2,5, driver"),
        (["gpus:0-2,6", "gpus:1,4-6"], "gpus:0-2,4-6"),
        (["link:0-1", "link:2-3", "machine", "machine"], "link:0-1,2-3, machine"),
    ],
)
def test_several_subjects_in_words(texts: list[str], words: str) -> None:
    assert subjects_in_words(map(Subject.parse, texts)) == words
