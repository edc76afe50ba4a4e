"""Documents as text and as Markdown: everything is shown, nothing that a log contained is markup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report.document import (
    Bar,
    Bullets,
    Document,
    Page,
    Picture,
    Section,
    Table,
    bars,
    document_lines,
)
from gputopo.report.layout import text_of
from gputopo.report.markdown import document_markdown, page_markdown

PICTURE = Picture("speedup", "Speedup", "1.9 at 2 GPUs", "<svg/>")
TABLE = Table.of(
    ("model", "images/sec"), (("alexnet", "2,022"), ("vgg16", "n/a")), ("left", "right"), ("A note.",)
)
DOCUMENT = Document(
    "Runs", "Two models.", (Section("Speed", ("In words.", TABLE, Bullets(("one", "two")), PICTURE)),)
)


def test_a_terminal_gets_every_text_cell_and_item_and_the_words_of_a_picture() -> None:
    text = text_of(document_lines(DOCUMENT, 60))
    for word in ("Runs", "Two models.", "Speed", "In words.", "alexnet", "2,022", "n/a", "A note.", "- two"):
        assert word in text
    assert "Speedup: 1.9 at 2 GPUs" in text
    assert max(map(len, text.splitlines())) <= 60


def test_a_wide_table_is_cut_into_blocks_that_repeat_its_first_column() -> None:
    wide = Table.of(tuple(f"column {number}" for number in range(12)), (tuple(["value"] * 12),))
    text = text_of(document_lines(Document("", "", (Section("", (wide,)),)), 60))
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("column 0") > 1
    assert all(f"column {number}" in text for number in range(12))


def test_markdown_refers_to_the_files_of_its_pictures_or_has_their_words() -> None:
    assert "](pictures/speedup.svg)" in document_markdown(DOCUMENT, "pictures")
    assert "Speedup: 1.9 at 2 GPUs" in document_markdown(DOCUMENT)
    assert "| alexnet | 2,022 |" in document_markdown(DOCUMENT)
    assert "| --- | ---: |" in document_markdown(DOCUMENT)


def test_bars_have_a_row_for_each_value_and_show_what_is_missing_to_the_ideal_one() -> None:
    rows = (Bar("vgg16", "2", 1.5, 2.0), Bar("vgg16", "4", 2.0, 4.0), Bar("lenet", "4", 4.2, 4.0))
    document = Document("", "", (Section("", (bars("Speedup", ("job", "GPUs"), rows, "x"),)),))
    for shown in (text_of(document_lines(document, 60)), document_markdown(document)):
        lines = [one for one in shown.splitlines() if one.endswith("x")]
        assert [one.split()[-1] for one in lines] == ["1.50x", "2.00x", "4.20x"]
        assert [one.split()[0] for one in lines] == ["vgg16", "4", "lenet"]
        drawn = [(one.count("█"), one.count("░")) for one in lines]
        assert drawn[1][0] == pytest.approx(drawn[1][1], abs=1)  # half of the ideal
        assert drawn[2][0] > drawn[1][0] + drawn[1][1]
        assert drawn[2][1] == 0


def test_pages_are_sections_of_one_file_or_files_that_are_linked_both_ways() -> None:
    document = DOCUMENT._replace(pages=(Page("vgg-16", "Model <vgg>", (TABLE,)),))
    assert "## Model \\<vgg\\>" in document_markdown(document)
    linked = document_markdown(document, pages="my (new)-models")
    assert "[Model \\<vgg\\>](my%20%28new%29-models/vgg-16.md)" in linked
    assert "## Model" not in linked
    page = page_markdown(document.pages[0], document, "../my (new).md")
    assert "[Runs](../my%20%28new%29.md)" in page
    assert "| alexnet | 2,022 |" in page


@given(st.text(max_size=60))
def test_no_text_ends_a_cell_or_becomes_markup(text: str) -> None:
    document = Document("t", "s", (Section("x", (Table.of(("a", "b"), ((text, "end"),)),)),))
    row = document_markdown(document).splitlines()[-1]
    assert row.endswith("| end |")
    assert "<" not in row.replace("\\<", "")
    lines = text_of(document_lines(document, 80))
    assert all(character.isprintable() or character == "\n" for character in lines)
