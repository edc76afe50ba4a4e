"""Documents as text and as Markdown: everything is shown, nothing that a log contained is markup."""

from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import Document, document_lines, document_markdown, markdown_files
from gputopo.report.document import Bullets, Picture, Section, Table
from tests.report.shown import text_of

PICTURE = Picture("speedup", "Speedup", "1.9 at 2 GPUs", "<svg/>")
TABLE = Table.of(
    ("model", "images/sec"), (("alexnet", "2,022"), ("vgg16", "n/a")), words=("model",), notes=("A note.",)
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


def test_markdown_refers_to_the_files_of_its_pictures_or_has_their_words() -> None:
    files = markdown_files(DOCUMENT, "my (new).md")
    assert "](my%20%28new%29-pictures/speedup.svg)" in files["my (new).md"]
    assert files["my (new)-pictures/speedup.svg"] == "<svg/>"
    assert "Speedup: 1.9 at 2 GPUs" in document_markdown(DOCUMENT)
    assert "| alexnet | 2,022 |" in document_markdown(DOCUMENT)
    assert "| --- | ---: |" in document_markdown(DOCUMENT)


def test_the_short_form_counts_the_rows_items_and_columns_that_it_leaves_out() -> None:
    rows = tuple((f"row {n}", "1", "a remark of some length", "another") for n in range(9))
    heads = ("job", "speed", "remark", "more")
    table = Table.of(heads, rows, words=heads, shown=7)
    document = Document("", "", (Section("", (Bullets(("a", "b", "c", "d"), shown=2), table)),))
    short = text_of(document_lines(document, 40, whole=False))
    assert [line for line in short.splitlines() if "--all" in line] == [
        "- 2 more (--all)", "2 more rows (--all)", "also: more (--all)",
    ]  # fmt: skip
    assert "row 6" in short
    assert "row 7" not in short
    whole = text_of(document_lines(document, 40))
    assert "row 8" in whole
    assert "another" in whole
    assert "--all" not in whole


def test_pages_are_sections_of_one_text_or_files_that_are_linked_both_ways() -> None:
    page = Section("Model <vgg>", (TABLE,), page="vgg-16")
    document = DOCUMENT._replace(sections=(*DOCUMENT.sections, page))
    assert "## Model \\<vgg\\>" in document_markdown(document)
    files = markdown_files(document, "my (new).md")
    assert "[Model \\<vgg\\>](my%20%28new%29-models/vgg-16.md)" in files["my (new).md"]
    assert "## Model" not in files["my (new).md"]
    text = files["my (new)-models/vgg-16.md"]
    assert "[Runs](../my%20%28new%29.md)" in text
    assert "| alexnet | 2,022 |" in text


@given(st.text(max_size=60))
def test_no_text_ends_a_cell_or_becomes_markup(text: str) -> None:
    document = Document(
        "t", "s", (Section("x", (Table.of(("a", "b"), ((text, "end"),), words=("a", "b")),)),)
    )
    row = document_markdown(document).splitlines()[-1]
    assert row.endswith("| end |")
    assert "<" not in row.replace("\\<", "")
    lines = text_of(document_lines(document, 80))
    assert all(character.isprintable() or character == "\n" for character in lines)
