"""Tables, rows and paragraphs on screens of any width."""

from hypothesis import given
from hypothesis import strategies as st

from gputopo.report.document import Table
from tests.report.shown import text_of_blocks


def table(*columns: tuple[str, ...], words: int = 1) -> Table:
    """Return a table of columns, each with its head first. `words`: the number of columns that are words."""
    heads = [column[0] for column in columns]
    return Table.of(heads, list(zip(*(column[1:] for column in columns), strict=True)), words=heads[:words])


def test_a_cell_that_is_too_long_folds_in_its_column() -> None:
    folded = table(("", "0"), ("Name", "one two three"), ("N", "1"), words=2)
    assert text_of_blocks(folded, width=12) == "   Name\n0  one two\n   three\n\n   N\n0  1\n"


groups_of_widths = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=12), min_size=1, max_size=4)


@given(groups_of_widths, st.integers(15, 90))
def test_a_wide_table_loses_no_column_and_keeps_groups_together_if_they_fit(
    groups: list[list[int]], width: int
) -> None:
    names = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    first, *_ = table(("#", "0")).columns
    columns = [[table((next(names) * size, "1")).head for size in group] for group in groups]
    text = text_of_blocks(Table(first, tuple(map(tuple, columns))), width=width)
    heads = [line.split()[1:] for line in text.splitlines() if line.startswith("#")]
    assert max(map(len, text.splitlines())) <= width
    assert [head for block in heads for head in block] == [one.head for group in columns for one in group]
    for group in columns:
        words = [one.head for one in group]
        if 1 + sum(2 + len(word) for word in words) <= width:
            assert any({*words} <= {*block} for block in heads)


@given(st.text(alphabet="ab ", max_size=200), st.integers(8, 60))
def test_a_paragraph_fits_and_keeps_its_words(text: str, width: int) -> None:
    lines = text_of_blocks(text, width=width).splitlines()
    assert max(map(len, lines), default=0) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())
