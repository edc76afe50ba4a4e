from hypothesis import given
from hypothesis import strategies as st

from gputopo.report.layout import (
    Column,
    aligned,
    blocks,
    paragraph,
    text_of,
    width_of,
)


def test_columns_are_aligned_to_their_sides_and_heads_stand_at_the_bottom() -> None:
    rows = Column("GPU", ("0", "10"), "right")
    power = Column("Power W\nnow", ("7", "?"), "right")
    assert text_of(aligned(rows, [power])) == "     Power W\nGPU      now\n  0        7\n 10        ?\n"


def test_a_cell_that_is_too_long_folds_in_its_column() -> None:
    text = text_of(
        aligned(Column("", ("0",)), [Column("Name", ("one two three",), max_width=8), Column("N", ("1",))])
    )
    assert text == "   Name      N\n0  one two   1\n   three\n"


def test_a_group_stays_together_if_a_block_has_space_for_it() -> None:
    a, b = Column("aaaa", ("1",)), Column("bbbb", ("2",))
    assert blocks([[a, a], [b, b]], 18) == [[a, a], [b, b]]
    assert blocks([[a, a], [b, b]], 24) == [[a, a, b, b]]
    assert blocks([[a] * 4], 18) == [[a, a], [a, a]]  # two and two, not three and one


@given(st.lists(st.lists(st.integers(1, 12), max_size=12), max_size=4), st.integers(14, 90))
def test_blocks_lose_nothing_and_fit(groups: list[list[int]], width: int) -> None:
    columns = [[Column("x" * size, ("",)) for size in group] for group in groups]
    shared = blocks(columns, width)
    assert [column for block in shared for column in block] == [
        column for group in columns for column in group
    ]
    assert all(width_of(block) <= width for block in shared)


@given(st.text(alphabet="ab ", max_size=200), st.integers(8, 60))
def test_a_paragraph_fits_and_keeps_its_words(text: str, width: int) -> None:
    lines = text_of(paragraph(text, width)).splitlines()
    assert max(map(len, lines), default=0) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())
